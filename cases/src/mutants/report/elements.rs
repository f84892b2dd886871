//! The report format of mutation-testing-elements, schema version 2: its HTML component shows every mutant in the
//! kernel's text.

use std::collections::BTreeMap;

use kernels::source::SourceSet;
use serde_json::{Value, json};

use super::super::change::Change;
use super::super::mutant::Position;
use super::super::outcome::{Outcome, Record};

/// Shares of noticed mutants below which the report is red, and from which it is green.
const THRESHOLDS: (u32, u32) = (80, 95);

/// The report as JSON. Launch mutants have no place in a kernel file and are left out.
#[must_use]
pub fn elements(sources: &SourceSet, changes: &[Change], records: &[Record]) -> Value {
    let by_id: BTreeMap<&str, &Record> = records.iter().map(|record| (record.id.as_str(), record)).collect();
    let mut files: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for change in changes {
        let Change::Kernel(mutant) = change else { continue };
        let record = by_id.get(mutant.id.as_str()).copied();
        let (status, reason, killer) = status(record);
        // A place of no width is not shown: an insertion marks the byte before it.
        let start = match mutant.from == mutant.to {
            true => {
                Position { line: mutant.start.line, column: mutant.start.column.saturating_sub(1).max(1) }
            }
            false => mutant.start,
        };
        let mut value = json!({
            "id": mutant.id,
            "mutatorName": mutant.operator.name(),
            "description": mutant.describe(),
            "replacement": mutant.replacement,
            "location": { "start": start, "end": mutant.end },
            "status": status,
        });
        if let Some(reason) = reason {
            value["statusReason"] = json!(reason);
        }
        if let Some(killer) = killer {
            value["killedBy"] = json!([killer]);
        }
        if let Some(record) = record {
            value["testsCompleted"] = json!(record.checks.len());
            value["duration"] = json!((record.seconds * 1e3).round());
            value["coveredBy"] = json!(record.checks.iter().map(|(name, _)| name).collect::<Vec<_>>());
        }
        files.entry(mutant.file.as_str()).or_default().push(value);
    }
    let files: BTreeMap<String, Value> = files
        .into_iter()
        .map(|(file, mutants)| {
            let source = sources.get(file).unwrap_or_default();
            (
                format!("kernels/cuda/{file}"),
                json!({ "language": "cpp", "source": source, "mutants": mutants }),
            )
        })
        .collect();
    json!({
        "schemaVersion": "2",
        "thresholds": { "low": THRESHOLDS.0, "high": THRESHOLDS.1 },
        "files": files,
        "testFiles": { "catalogue": { "tests": tests(records) } },
        "framework": { "name": "attest", "version": env!("CARGO_PKG_VERSION") },
    })
}

fn tests(records: &[Record]) -> Vec<Value> {
    let mut names: Vec<&str> =
        records.iter().flat_map(|r| &r.checks).map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().map(|name| json!({ "id": name, "name": name })).collect()
}

/// Status, reason and killing check in the schema's terms.
fn status(record: Option<&Record>) -> (&'static str, Option<String>, Option<String>) {
    let Some(record) = record else { return ("Pending", None, None) };
    match &record.outcome {
        Outcome::Caught { check, verdict, .. } => ("Killed", Some(verdict.clone()), Some(check.clone())),
        Outcome::Timeout { check, limit_s, .. } => {
            ("Timeout", Some(format!("{check}: more than {limit_s} s")), None)
        }
        Outcome::Missed => ("Survived", None, None),
        Outcome::Uncovered => ("NoCoverage", None, None),
        Outcome::Unviable { message } => ("CompileError", Some(message.clone()), None),
        Outcome::Reviewed { why } => ("Ignored", Some(why.clone()), None),
        Outcome::Equivalent { how } => ("Ignored", Some(format!("equivalent: {how}")), None),
        Outcome::Duplicate { of } => ("Ignored", Some(format!("same machine code as {of}")), None),
    }
}
