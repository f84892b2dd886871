//! Mutation testing: would the suite have noticed a small mistake in a kernel or in how it is launched?
//!
//! [`discover`](discover::discover) finds mutants in the kernels' syntax trees, [`choose`](checks::choose) picks the
//! committed cases that judge them, [`Baseline`](baseline::Baseline) makes sure that these pass on the unchanged
//! kernels, [`Coverage`](coverage::Coverage) tells which of them execute what a mutant changes, and
//! [`Campaign`](campaign::Campaign) tries one mutant after the other.

pub mod baseline;
pub mod campaign;
pub mod canary;
pub mod change;
pub mod checks;
pub mod compiled;
pub mod coverage;
pub mod discover;
pub mod engine;
pub mod launch;
pub mod marks;
pub mod masked;
pub mod mutant;
pub mod operators;
pub mod outcome;
mod progress;
pub mod report;
pub mod reviewed;
pub mod select;
pub mod serve;
pub mod trial;
