//! Makes every device call fail in turn and checks that nothing is left behind.
