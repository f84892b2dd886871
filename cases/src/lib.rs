//! What is tried, and the verdict on it.
