//! The kill matrix in words: for a terminal, and as the document that is committed.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::matrix::{Check, Matrix, Score, Untried};
use super::{Impostor, Kind};

/// The command that writes the document.
pub const COMMAND: &str = "attest verify --impostors --matrix docs/KILL-MATRIX.md";

/// A summary for a terminal: one line per impostor, then what is not as it should be.
#[must_use]
pub fn terminal(matrix: &Matrix) -> String {
    let scores = matrix.scores();
    let mut text = String::new();
    for (impostor, score) in matrix.impostors.iter().zip(&scores) {
        let word = if score.killed.is_empty() { "LIVE  " } else { "killed" };
        let (killed, tried) = (total(score.killed.values()), total(score.tried.values()));
        let by = Check::ALL.iter().filter_map(|check| Some(format!("{check} {}", score.checks.get(check)?)));
        let by: Vec<String> = by.collect();
        let _ = writeln!(
            text,
            "{word} {:30} {:12} by {killed:3} of {tried:3} cases   {}",
            impostor.name,
            impostor.kind.to_string(),
            by.join(", ")
        );
    }
    for (entry, why) in matrix.false_alarms() {
        let _ = writeln!(text, "FALSE ALARM  {}: {why}", entry.case);
    }
    for entry in matrix.vacuous() {
        let _ = writeln!(text, "VACUOUS  {}: it catches no impostor", entry.case);
    }
    for impostor in matrix.survivors() {
        let _ = writeln!(text, "LIVE IMPOSTOR  {}: {}", impostor.name, impostor.wrong);
    }
    text
}

fn total<'a>(counts: impl Iterator<Item = &'a usize>) -> usize {
    counts.sum()
}

/// The committed document.
#[must_use]
pub fn markdown(matrix: &Matrix) -> String {
    let scores = matrix.scores();
    let mut text = String::from("# Kill matrix\n\n");
    text.push_str(&preface(matrix));
    for kind in Kind::ALL {
        let rows: Vec<(&Impostor, &Score)> =
            matrix.impostors.iter().zip(&scores).filter(|(impostor, _)| impostor.kind == kind).collect();
        if !rows.is_empty() {
            let _ = writeln!(text, "\n## {kind}\n");
            text.push_str(&table(&rows));
        }
    }
    text.push_str("\n## By group of cases\n\n");
    text.push_str(&groups(matrix, &scores));
    text
}

fn preface(matrix: &Matrix) -> String {
    let tried = matrix.cases.iter().filter(|(_, trial)| trial.is_ok()).count();
    let mut text = format!(
        "An impostor is a kernel that is wrong in one known way. It computes its answer from the bytes that a kernel \
         gets and\nruns through the same judgement as a kernel on a device. {} impostors were tried on {tried} \
         committed cases; {} live.\n\nEach count is of cases: those that caught the impostor, of those in which it can \
         differ from a right kernel, and how\nmany of them each check noticed. Cases are judged with the widest bound \
         of the arms that serve them, so what dies here\ndies on every arm. Impostors marked * are wrong wherever there \
         is anything to be wrong about: a case that catches no\nother is vacuous. Large cases stop at the first \
         telling kill.\n\nThis file is written by `{COMMAND}`.\n",
        matrix.impostors.len(),
        matrix.survivors().len(),
    );
    for (reason, cases) in matrix.untried() {
        let why = match reason {
            Untried::TooLarge => "too large for computing every row in f64",
            Untried::Unserved => "served by no arm",
        };
        let _ = writeln!(text, "\n{cases} cases were not tried: {why}.");
    }
    text
}

fn table(rows: &[(&Impostor, &Score)]) -> String {
    let used: Vec<Check> = Check::ALL
        .into_iter()
        .filter(|check| rows.iter().any(|(_, score)| score.checks.contains_key(check)))
        .collect();
    let mut text = String::from("| impostor | what it does | caught |");
    used.iter().for_each(|check| {
        let _ = write!(text, " {check} |");
    });
    text.push_str("\n| --- | --- | ---: |");
    text.push_str(&" ---: |".repeat(used.len()));
    text.push('\n');
    for (impostor, score) in rows {
        let mark = if impostor.blunt { " *" } else { "" };
        let (killed, tried) = (total(score.killed.values()), total(score.tried.values()));
        let _ = write!(text, "| {}{mark} | {} | {killed} of {tried} |", impostor.name, impostor.wrong);
        for check in &used {
            let count = score.checks.get(check).map_or(String::new(), ToString::to_string);
            let _ = write!(text, " {count} |");
        }
        text.push('\n');
    }
    text
}

fn groups(matrix: &Matrix, scores: &[Score]) -> String {
    let names: BTreeSet<&str> = matrix.cases.iter().map(|(entry, _)| entry.group).collect();
    let mut text = String::from("| impostor |");
    names.iter().for_each(|name| {
        let _ = write!(text, " {name} |");
    });
    text.push_str("\n| --- |");
    text.push_str(&" ---: |".repeat(names.len()));
    text.push('\n');
    for (impostor, score) in matrix.impostors.iter().zip(scores) {
        let _ = write!(text, "| {} |", impostor.name);
        for name in &names {
            let cell = score.tried.get(*name).map_or(String::new(), |tried| {
                format!("{}/{tried}", score.killed.get(*name).copied().unwrap_or(0))
            });
            let _ = write!(text, " {cell} |");
        }
        text.push('\n');
    }
    text
}
