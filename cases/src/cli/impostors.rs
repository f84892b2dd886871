//! `attest verify --impostors`: judging the cases instead of the kernels.

use std::io::Write;
use std::path::Path;

use super::Failure;
use crate::catalogue::Entry;
use crate::impostors::matrix::{Matrix, Trial};
use crate::impostors::{all, report};

/// Runs every impostor over the chosen cases. `whole` says that they are a whole tier, where every impostor must die.
pub(super) fn run(entries: Vec<Entry>, whole: bool, document: Option<&Path>) -> Result<u8, Failure> {
    let trial = Trial::new().map_err(|error| Failure::surroundings(error.to_string()))?;
    let matrix = trial.matrix(entries, all());
    let mut out = anstream::stdout().lock();
    write!(out, "{}", report::terminal(&matrix))?;
    if let Some(path) = document {
        std::fs::write(path, report::markdown(&matrix)).map_err(|error| {
            Failure::surroundings(format!("the kill matrix cannot be written to {}: {error}", path.display()))
        })?;
    }
    summary(&matrix, whole, &mut out)
}

/// The last lines and the exit code. What a part of the cases does not catch, another part may.
fn summary(matrix: &Matrix, whole: bool, out: &mut impl Write) -> Result<u8, Failure> {
    let live = matrix.survivors().len();
    let dead = matrix.impostors.len() - live;
    let (vacuous, alarms) = (matrix.vacuous().len(), matrix.false_alarms().len());
    let (failed, skipped) = if whole { (live, 0) } else { (0, live) };
    if skipped > 0 {
        writeln!(out, "skipped: {skipped} (no chosen case catches them)")?;
    }
    if vacuous + alarms > 0 {
        writeln!(out, "{vacuous} vacuous cases, {alarms} false alarms")?;
    }
    let failed = failed + vacuous + alarms;
    writeln!(out, "{dead} passed, {failed} failed, {skipped} skipped")?;
    Ok(match (failed, dead) {
        (0, 0) => 4,
        (0, _) => 0,
        _ => 1,
    })
}
