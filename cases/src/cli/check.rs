//! `attest check`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use rayon::prelude::*;

use super::Failure;
use super::options::OutputOptions;
use crate::case::Case;
use crate::events::{Consumer, Event, Judged, Started};
use crate::export::{Answer, Exported, FileError, MadeBy, Output, Suite, SuiteCase, SuiteError, judge};
use crate::session::{Demand, tally::Tally};
use crate::verdict::Verdict;

pub(super) const EXAMPLES: &str = "\
Examples:
  attest check case.safetensors --output out.safetensors   an output in a file of its own
  attest check vectors/*.safetensors                       files with their `out` inside
  attest check suite/ --report html=report.html            what a framework left beside the files of a suite";

/// Judge outputs that were computed anywhere for exported cases.
///
/// The output is a tensor `out` (and, if there is one, `lse`) in the exported file itself or in the file that --output names. In
/// the directory of a suite it is `ID.out.safetensors`; `ID.skip.txt` says why a case has none, `ID.crash.txt` how the
/// computation died. A case with none of them is a skip that nobody declared. The comparison is the one that judges devices.
#[derive(Debug, Args)]
pub(super) struct Check {
    /// Files that `attest export` wrote, or directories that `attest export --tier` wrote.
    #[arg(required = true)]
    file: Vec<PathBuf>,
    /// A file with `out` and, if wanted, `lse`; only with one exported file.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    reports: OutputOptions,
}

/// Cases judged at once: their verdicts come in order, and not all outputs are in memory.
const AT_ONCE: usize = 16;

/// One case and where its answer is.
struct Item {
    file: PathBuf,
    /// `None` for an output inside the file, which is not part of a suite.
    suite: Option<(PathBuf, SuiteCase)>,
    output: Option<PathBuf>,
    made_by: MadeBy,
}

impl Check {
    pub fn run(self) -> Result<u8, Failure> {
        let start = Instant::now();
        let items = self.items()?;
        let mut consumers = self.reports.consumers()?;
        let mut arms: Vec<String> = items.iter().map(|item| item.made_by.by.clone()).collect();
        arms.dedup();
        let made_by = items.first().map(|item| item.made_by.clone()).unwrap_or_default();
        consumers.take(&Event::Started(Started {
            version: env!("CARGO_PKG_VERSION"),
            device: made_by.on,
            device_detail: made_by.versions,
            arms,
            tier: None,
            planned: items.len(),
            jobs: rayon::current_num_threads(),
        }))?;
        let mut tally = Tally::new(items.len());
        for chunk in items.chunks(AT_ONCE) {
            let judged: Vec<Result<Judged, Failure>> = chunk.par_iter().map(Item::judged).collect();
            for judged in judged {
                let judged = judged?;
                tally.add(&judged);
                consumers.take(&Event::Judged(Box::new(judged)))?;
            }
        }
        let finished = tally.finish(&Demand::default(), start.elapsed());
        let code = finished.exit_code;
        consumers.take(&Event::Finished(finished))?;
        Ok(code)
    }

    fn items(&self) -> Result<Vec<Item>, Failure> {
        let directory = self.file.iter().find(|path| path.is_dir());
        if let (Some(_), n, directory) = (&self.output, self.file.len(), directory)
            && (n > 1 || directory.is_some())
        {
            let what = directory.map_or(format!("{n} files"), |path| format!("{}", path.display()));
            return Err(Failure::usage(format!("--output is given for {what}; accepted: one exported file")));
        }
        let mut items = Vec::new();
        for path in &self.file {
            if path.is_dir() {
                items.extend(suite(path)?);
            } else {
                let output = self.output.clone();
                items.push(Item { file: path.clone(), suite: None, output, made_by: MadeBy::default() });
            }
        }
        Ok(items)
    }
}

fn suite(directory: &Path) -> Result<Vec<Item>, Failure> {
    let suite = Suite::read(directory)?;
    let made_by = MadeBy::read(directory)?;
    let item = |case: SuiteCase| Item {
        file: case.file(directory),
        suite: Some((directory.to_owned(), case)),
        output: None,
        made_by: made_by.clone(),
    };
    Ok(suite.cases.into_iter().map(item).collect())
}

impl From<SuiteError> for Failure {
    fn from(error: SuiteError) -> Self {
        match error {
            SuiteError::Write { .. } => Self::surroundings(error.to_string()),
            _ => Self::usage(error.to_string()),
        }
    }
}

impl Item {
    fn judged(&self) -> Result<Judged, Failure> {
        let start = Instant::now();
        let (exported, verdict, output) = match &self.suite {
            None => self.judge_file()?,
            Some((directory, case)) => self.judge_answer(case.answer(directory)?)?,
        };
        let case: Case = exported.case;
        let (group, comment) = self
            .suite
            .as_ref()
            .map_or_else(Default::default, |(_, case)| (case.group.clone(), case.comment.clone()));
        let output = output.map(|path| format!(" --output {}", path.display())).unwrap_or_default();
        Ok(Judged {
            id: case.id(),
            line: case.to_string(),
            group,
            flags: case.flags().iter().map(ToString::to_string).collect(),
            comment,
            arm: self.made_by.by.clone(),
            device: self.made_by.on.clone(),
            checked: false,
            class: verdict.class(),
            verdict,
            seconds: start.elapsed().as_secs_f64(),
            replay: format!("attest check {}{output}", self.file.display()),
        })
    }

    /// A file by name: what cannot be judged there is a wrong use of the command.
    fn judge_file(&self) -> Result<(Exported, Verdict, Option<PathBuf>), Failure> {
        let bytes = read(&self.file)?;
        let exported = Exported::read(&bytes).map_err(|error| refused(&self.file, &error))?;
        let output = match &self.output {
            None => Output::read(&bytes, &exported).map_err(|error| refused(&self.file, &error))?,
            Some(path) => Output::read(&read(path)?, &exported).map_err(|error| refused(path, &error))?,
        };
        let verdict = judge(&exported, &output).map_err(|error| refused(&self.file, &error))?;
        Ok((exported, verdict, self.output.clone()))
    }

    /// What a framework left for a case of a suite: an output that cannot be judged is the framework's failure.
    fn judge_answer(&self, answer: Answer) -> Result<(Exported, Verdict, Option<PathBuf>), Failure> {
        let exported = Exported::read(&read(&self.file)?).map_err(|error| refused(&self.file, &error))?;
        let (verdict, output) = match answer {
            Answer::Output(path) => {
                let bytes = read(&path)?;
                let output = Output::read(&bytes, &exported).and_then(|output| judge(&exported, &output));
                let verdict = output.unwrap_or_else(|error| Verdict::DeviceError {
                    findings: Vec::new(),
                    error: Some(format!("the output cannot be judged: {error}")),
                });
                (verdict, Some(path))
            }
            Answer::Skipped(reason) => (Verdict::Skipped { reason }, None),
            Answer::Crashed(words) => {
                let (signal, detail) = words.split_once('\n').unwrap_or((words.as_str(), ""));
                (Verdict::Crashed { signal: signal.to_owned(), detail: detail.trim().to_owned() }, None)
            }
            Answer::Missing => {
                let what = "neither an output nor a reason for having none".to_owned();
                (Verdict::Unsupported { what, declared: false }, None)
            }
        };
        Ok((exported, verdict, output))
    }
}

fn refused(path: &Path, error: &FileError) -> Failure {
    Failure::usage(format!("{}: {error}", path.display()))
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|error| Failure::usage(format!("{} cannot be read: {error}", path.display())))
}
