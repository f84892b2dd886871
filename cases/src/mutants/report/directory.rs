//! `mutants.out`: text lists, diffs, logs and outcomes, laid out as users of cargo-mutants know it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::change::Change;
use super::super::outcome::{Counts, Outcome, Record};

/// Text lists, one mutant a line, in the order of outcomes.
const LISTS: &[&str] =
    &["caught", "missed", "timeout", "unviable", "equivalent", "duplicate", "reviewed", "uncovered"];

/// Why a run cannot be taken up again.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// There is nothing to take up.
    #[error("nothing to resume: {0} does not exist")]
    Missing(PathBuf),
    /// Kernels, checks or program have changed since.
    #[error(
        "{path} was written for other kernel sources, checks or another build; start anew without --resume"
    )]
    Stale {
        /// The journal.
        path: PathBuf,
    },
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

#[derive(Serialize, Deserialize)]
struct Header {
    run: String,
}

/// The output directory of a run, which also remembers what is done.
pub struct Directory {
    path: PathBuf,
    journal: File,
    kernel_directory: String,
}

impl Directory {
    /// A new directory; an old one of that name is kept with `.old` appended. `run` names kernel sources, checks and build.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn create(path: &Path, run: &str) -> Result<Self, JournalError> {
        let at = |source| JournalError::File { path: path.to_owned(), source };
        if path.exists() {
            let mut old = path.as_os_str().to_owned();
            old.push(".old");
            let old = PathBuf::from(old);
            let _ = fs::remove_dir_all(&old);
            fs::rename(path, &old).map_err(at)?;
        }
        for folder in ["log", "diff"] {
            fs::create_dir_all(path.join(folder)).map_err(at)?;
        }
        let mut journal = File::create(path.join("journal.jsonl")).map_err(at)?;
        serde_json::to_writer(&mut journal, &Header { run: run.to_owned() }).map_err(|e| at(e.into()))?;
        journal.write_all(b"\n").map_err(at)?;
        Ok(Self { path: path.to_owned(), journal, kernel_directory: "kernels/cuda".to_owned() })
    }

    /// An existing directory with the records that it holds.
    ///
    /// # Errors
    /// When there is none, or it is about something else.
    pub fn resume(path: &Path, run: &str) -> Result<(Self, Vec<Record>), JournalError> {
        let file = path.join("journal.jsonl");
        let at = |source| JournalError::File { path: file.clone(), source };
        if !file.is_file() {
            return Err(JournalError::Missing(file));
        }
        let mut lines = BufReader::new(File::open(&file).map_err(at)?).lines();
        let first = lines.next().transpose().map_err(at)?.unwrap_or_default();
        if serde_json::from_str::<Header>(&first).map_or(true, |header| header.run != run) {
            return Err(JournalError::Stale { path: file });
        }
        // A line that was cut off by an interruption is no record.
        let records =
            lines.map_while(Result::ok).filter_map(|line| serde_json::from_str(&line).ok()).collect();
        let journal = OpenOptions::new().append(true).open(&file).map_err(at)?;
        let directory = Self { path: path.to_owned(), journal, kernel_directory: "kernels/cuda".to_owned() };
        Ok((directory, records))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Remembers one record, with its diff and log.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn record(&mut self, change: &Change, text: Option<&str>, record: &Record) -> io::Result<()> {
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        self.journal.write_all(&line)?;
        let name = file_name(&record.id);
        if let (Change::Kernel(mutant), Some(text)) = (change, text) {
            fs::write(
                self.path.join("diff").join(format!("{name}.diff")),
                mutant.diff(text, &self.kernel_directory),
            )?;
        }
        fs::write(self.path.join("log").join(format!("{name}.log")), log(change, record))
    }

    /// Writes lists and outcomes of everything that is known.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn finish(&self, changes: &[Change], records: &[Record], counts: &Counts) -> io::Result<()> {
        let by_id: BTreeMap<String, &Change> = changes.iter().map(|change| (change.id(), change)).collect();
        for list in LISTS {
            let mut text = String::new();
            for record in records.iter().filter(|record| record.outcome.word() == *list) {
                let described =
                    by_id.get(&record.id).map_or_else(|| record.id.clone(), |change| change.describe());
                let _ = writeln!(text, "{described}");
            }
            fs::write(self.path.join(format!("{list}.txt")), text)?;
        }
        let mutants: Vec<Value> = changes.iter().map(mutant_json).collect();
        self.json("mutants.json", &json!(mutants))?;
        let outcomes: Vec<Value> =
            records.iter().filter_map(|r| by_id.get(&r.id).map(|change| outcome_json(change, r))).collect();
        self.json(
            "outcomes.json",
            &json!({
                "outcomes": outcomes,
                "total_mutants": counts.total(),
                "caught": counts.caught,
                "missed": counts.missed + counts.uncovered,
                "timeout": counts.timeout,
                "unviable": counts.unviable,
                "equivalent": counts.equivalent,
                "duplicate": counts.duplicate,
                "reviewed": counts.reviewed,
                "success": counts.missed + counts.uncovered == 0,
                "attest_version": env!("CARGO_PKG_VERSION"),
            }),
        )
    }

    /// Writes a JSON file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn json(&self, name: &str, value: &Value) -> io::Result<()> {
        let mut text = serde_json::to_string_pretty(value)?;
        text.push('\n');
        fs::write(self.path.join(name), text)
    }

    /// Writes a text file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn text(&self, name: &str, text: &str) -> io::Result<()> {
        fs::write(self.path.join(name), text)
    }
}

/// `scalar.cu:331:9 drop-barrier` as a file name.
fn file_name(id: &str) -> String {
    id.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' || c == '-' { c } else { '_' }).collect()
}

fn log(change: &Change, record: &Record) -> String {
    let mut text = format!("{}\n{}\n", change.describe(), record.outcome.word());
    match &record.outcome {
        Outcome::Caught { check, verdict, replay } => {
            let _ = write!(text, "killed by {check}\n  {verdict}\n  replay: {replay}\n");
        }
        Outcome::Timeout { check, limit_s, replay } => {
            let _ = write!(text, "{check} took more than {limit_s} s\n  replay: {replay}\n");
        }
        Outcome::Reviewed { why } => {
            let _ = writeln!(text, "{why}");
        }
        Outcome::Equivalent { how } => {
            let _ = writeln!(text, "{how}");
        }
        Outcome::Duplicate { of } => {
            let _ = writeln!(text, "same machine code as {of}");
        }
        Outcome::Unviable { message } => {
            let _ = writeln!(text, "{message}");
        }
        Outcome::Missed | Outcome::Uncovered => {}
    }
    let _ = writeln!(text, "{:.2} s, {} instances compiled, checks:", record.seconds, record.compiled);
    for (check, failed) in &record.checks {
        let _ = writeln!(text, "  {} {check}", if *failed { "failed" } else { "passed" });
    }
    let _ = writeln!(text, "again: attest mutants --mutant '{}'", record.id);
    text
}

fn mutant_json(change: &Change) -> Value {
    match change {
        Change::Kernel(mutant) => json!({
            "package": "kernels",
            "file": format!("kernels/cuda/{}", mutant.file),
            "function": { "function_name": mutant.function, "return_type": "", "span": span(mutant) },
            "span": span(mutant),
            "replacement": mutant.replacement,
            "genre": mutant.operator.name(),
            "name": mutant.describe(),
            "id": mutant.id,
        }),
        Change::Launch(launch) => json!({
            "package": "kernels",
            "file": "kernels/src/launch.rs",
            "function": { "function_name": launch.entry, "return_type": "" },
            "replacement": launch.change.summary(),
            "genre": launch.change.name(),
            "name": change.describe(),
            "id": change.id(),
        }),
    }
}

fn span(mutant: &super::super::mutant::Mutant) -> Value {
    json!({ "start": mutant.start, "end": mutant.end })
}

fn outcome_json(change: &Change, record: &Record) -> Value {
    let summary = match record.outcome {
        Outcome::Caught { .. } => "CaughtMutant",
        Outcome::Timeout { .. } => "Timeout",
        Outcome::Missed | Outcome::Uncovered => "MissedMutant",
        Outcome::Unviable { .. } => "Unviable",
        Outcome::Equivalent { .. } => "Equivalent",
        Outcome::Duplicate { .. } => "Duplicate",
        Outcome::Reviewed { .. } => "Reviewed",
    };
    let name = file_name(&record.id);
    json!({
        "scenario": { "Mutant": mutant_json(change) },
        "summary": summary,
        "log_path": format!("log/{name}.log"),
        "diff_path": format!("diff/{name}.diff"),
        "detail": record.outcome,
        "phase_results": [{ "phase": "Test", "duration": record.seconds }],
    })
}
