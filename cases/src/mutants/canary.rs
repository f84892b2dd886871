//! Proof that a run can tell dead from alive: a mutant that must die and a control that must survive.

use std::path::Path;

use super::change::Change;
use super::discover::position;
use super::engine::{Engine, EngineError};
use super::masked::kernel_bodies;
use super::mutant::Mutant;
use super::operators::Operator;
use super::outcome::Outcome;

/// What was wrong with the detectors.
#[derive(Debug, thiserror::Error)]
pub enum CanaryError {
    /// No kernel body was found to put the canary in.
    #[error("no kernel entry found in {0}: there is nowhere to put the canary")]
    NoKernel(String),
    /// The canary lives.
    #[error("the canary lives: a kernel that returns at once in {file} is {outcome}, not caught")]
    CanaryLives {
        /// The kernel file.
        file: String,
        /// What became of it.
        outcome: &'static str,
    },
    /// The control died.
    #[error("the control died: an empty statement in {file} is {outcome}, not equivalent")]
    ControlDied {
        /// The kernel file.
        file: String,
        /// What became of it.
        outcome: &'static str,
    },
    /// No verdict.
    #[error("{0}")]
    Engine(#[from] EngineError),
}

/// Tries both in a kernel file that checks use. Returns the name of the check that killed the canary.
///
/// # Errors
/// When the canary is not caught, when the control is not found equivalent, or when the surroundings fail.
pub fn prove(engine: &Engine<'_>, file: &str, stage: &Path) -> Result<String, CanaryError> {
    let text = engine.sources.get(file).unwrap_or_default();
    let body = *kernel_bodies(text).first().ok_or_else(|| CanaryError::NoKernel(file.to_owned()))?;
    let control = inserted(file, text, body, " (void)0;", "control");
    match engine.judge(&Change::Kernel(control), stage)?.outcome {
        Outcome::Equivalent { .. } => {}
        other => return Err(CanaryError::ControlDied { file: file.to_owned(), outcome: other.word() }),
    }
    let canary = inserted(file, text, body, " return;", "canary");
    match engine.judge(&Change::Kernel(canary), stage)?.outcome {
        Outcome::Caught { check, .. } => Ok(check),
        other => Err(CanaryError::CanaryLives { file: file.to_owned(), outcome: other.word() }),
    }
}

fn inserted(file: &str, text: &str, at: usize, insertion: &str, name: &str) -> Mutant {
    Mutant {
        id: format!("{file} {name}"),
        file: file.to_owned(),
        function: String::new(),
        operator: Operator::Statement,
        from: at,
        to: at,
        start: position(text, at),
        end: position(text, at),
        original: String::new(),
        replacement: insertion.to_owned(),
    }
}
