//! Reports: the directory `mutants.out`, the mutation-testing-elements JSON, and the kill matrix.

mod directory;
mod elements;
mod matrix;

pub use directory::{Directory, JournalError};
pub use elements::elements;
pub use matrix::{matrix, unused_checks};

#[cfg(test)]
mod tests;
