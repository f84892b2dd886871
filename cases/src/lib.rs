//! What is tried: the catalogue of cases, their inputs, the one path that judges them, and the reports.
pub mod case;
pub mod catalogue;
pub mod cli;
pub mod devices;
pub mod events;
pub mod executor;
pub mod filter;
pub mod inputs;
pub mod job;
pub mod judge;
pub mod problem;
pub mod reference;
pub mod report;
pub mod run;
pub mod session;
pub mod support;
pub mod verdict;
