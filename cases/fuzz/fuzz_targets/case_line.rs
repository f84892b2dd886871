#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cases::fuzz::case_line(bytes));
