//! `attest check`.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;

use super::Failure;
use crate::export::{Exported, Output, judge};
use crate::report::describe::describe;
use crate::verdict::{Class, Verdict};

pub(super) const EXAMPLES: &str = "\
Examples:
  attest check case.safetensors --output out.safetensors   an output in a file of its own
  attest check vectors/*.safetensors                       files with their `out` inside";

/// Judge outputs that were computed anywhere for exported cases.
///
/// The output is a tensor `out` (and, if there is one, `lse`) in the exported file itself or in the file that --output names.
/// The comparison is the one that judges devices.
#[derive(Debug, Args)]
pub(super) struct Check {
    /// Files that `attest export` wrote.
    #[arg(required = true)]
    file: Vec<PathBuf>,
    /// A file with `out` and, if wanted, `lse`; only with one exported file.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Check {
    pub fn run(self) -> Result<u8, Failure> {
        if self.output.is_some() && self.file.len() > 1 {
            let message =
                format!("--output is given for {} files; accepted: one exported file", self.file.len());
            return Err(Failure::usage(message));
        }
        let (mut passed, mut failed) = (0, 0);
        for file in &self.file {
            let verdict = check(file, self.output.as_deref())?;
            let mut out = anstream::stdout().lock();
            let described = describe(&verdict);
            writeln!(out, "{}  {}   {}", verdict.word(), file.display(), described.headline)?;
            if verdict.class() == Class::Passed {
                passed += 1;
                continue;
            }
            failed += 1;
            for line in described.details {
                writeln!(out, "  {line}")?;
            }
        }
        writeln!(anstream::stdout().lock(), "{passed} passed, {failed} failed, 0 skipped")?;
        Ok(u8::from(failed > 0))
    }
}

fn check(file: &Path, output: Option<&Path>) -> Result<Verdict, Failure> {
    let bytes = read(file)?;
    let refused = |path: &Path| {
        let path = path.display().to_string();
        move |error: crate::export::FileError| Failure::usage(format!("{path}: {error}"))
    };
    let exported = Exported::read(&bytes).map_err(refused(file))?;
    let output = match output {
        None => Output::read(&bytes, &exported).map_err(refused(file))?,
        Some(path) => Output::read(&read(path)?, &exported).map_err(refused(path))?,
    };
    judge(&exported, &output).map_err(refused(file))
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|error| Failure::usage(format!("{} cannot be read: {error}", path.display())))
}
