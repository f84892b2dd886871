//! Which check killed what.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::super::engine::kills_by_check;
use super::super::outcome::Record;

/// One line per check and mutant that met: comma-separated mutant, check, and whether the check failed.
#[must_use]
pub fn matrix(records: &[Record]) -> String {
    let mut text = String::from("mutant,check,failed\n");
    for record in records {
        for (check, failed) in &record.checks {
            let _ = writeln!(text, "{},{},{}", quoted(&record.id), quoted(check), u8::from(*failed));
        }
    }
    text
}

fn quoted(field: &str) -> String {
    format!("\"{}\"", field.replace('"', "\"\""))
}

/// Checks that killed nothing, though they met mutants: candidates to drop. A run that stops at the first failure says
/// less than one over all checks.
#[must_use]
pub fn unused_checks(records: &[Record], checks: &[String]) -> Vec<String> {
    let kills = kills_by_check(records);
    let met: BTreeSet<&str> = kills.keys().copied().collect();
    checks
        .iter()
        .filter(|check| met.contains(check.as_str()) && kills.get(check.as_str()) == Some(&0))
        .cloned()
        .collect()
}
