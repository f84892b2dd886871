//! What is tried: the catalogue of cases, their inputs, the one path that judges them, and the reports.
pub mod case;
pub mod inputs;
pub mod problem;
