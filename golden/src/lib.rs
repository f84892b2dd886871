//! Snapshots and exported vectors, and the tests that hold them.
