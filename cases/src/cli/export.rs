//! `attest export`.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;

use super::Failure;
use super::options::{parse_arm, parse_case};
use crate::case::Case;
use crate::catalogue::{self, Tier};
use crate::export::{ExportError, estimated_bytes, export};
use crate::filter::Filter;

pub(super) const EXAMPLES: &str = "\
Examples:
  attest export 'decode bf16 kv=e4m3 h8/2 d64 page16 NHD q=[1] kv=[40] kscale=0.25 seed=7' -o case.safetensors
  attest export --tier smoke -o vectors/                       every attention case of a tier, one file each
  attest export --tier standard --filter kv=e4m3 -o vectors/   some of them";

/// Largest file of a suite, in bytes; one case by name may be larger.
const SUITE_LIMIT: usize = 64 << 20;

/// Write cases as safetensors files: inputs, expected output and the error allowed to each element.
///
/// The file's layout is described in docs/vectors.md. `attest check` judges an output that was computed from it anywhere.
#[derive(Debug, Args)]
pub(super) struct Export {
    /// The case line.
    #[arg(required_unless_present = "tier", conflicts_with = "tier")]
    line: Option<String>,
    /// Export the attention cases of a tier instead; -o is a directory then.
    #[arg(long, value_name = "TIER")]
    tier: Option<Tier>,
    /// With --tier: only cases that match, as for `attest verify`; may be repeated.
    #[arg(long, value_name = "FILTER", requires = "tier")]
    filter: Vec<String>,
    /// Whose rounding the bound allows. The default keeps the softmax weights in the query's format, as most kernels do.
    #[arg(long, value_name = "ARM", value_parser = parse_arm, default_value = "mma")]
    arm: String,
    /// The file; with --tier a directory, which is made.
    #[arg(short, long, value_name = "PATH")]
    output: PathBuf,
}

impl Export {
    pub fn run(self) -> Result<u8, Failure> {
        match (&self.line, self.tier) {
            (Some(line), _) => {
                let case = parse_case(line)?;
                let bytes = write(&case, &self.arm, &self.output)?;
                report(&format!("{}: {bytes} bytes", self.output.display()))
            }
            (None, Some(tier)) => self.suite(tier),
            (None, None) => Err(Failure::usage("neither LINE nor --tier is given; accepted: one of them")),
        }
    }

    fn suite(&self, tier: Tier) -> Result<u8, Failure> {
        std::fs::create_dir_all(&self.output).map_err(|error| cannot_write(&self.output, &error))?;
        let filters: Vec<Filter> = self.filter.iter().map(|text| Filter::new(text)).collect();
        let entries = catalogue::entries().map_err(|error| Failure::surroundings(error.to_string()))?;
        let (mut written, mut without, mut too_large) = (0, 0, 0);
        for entry in entries.into_iter().filter(|entry| entry.tier <= tier) {
            if !filters.iter().all(|filter| filter.matches(&entry.case, entry.group)) {
                continue;
            }
            if entry.case.problem.op == crate::problem::Op::Store || entry.case.must_reject() {
                without += 1;
            } else if estimated_bytes(&entry.case.problem) > SUITE_LIMIT {
                too_large += 1;
            } else {
                write(&entry.case, &self.arm, &self.output.join(format!("{}.safetensors", entry.case.id())))?;
                written += 1;
            }
        }
        if written == 0 {
            return Err(Failure::usage("no attention case matches; accepted: filters that choose some"));
        }
        report(&format!(
            "{written} files in {}; {without} stores and refusals have none, {too_large} cases are over {} MiB",
            self.output.display(),
            SUITE_LIMIT >> 20
        ))
    }
}

fn report(line: &str) -> Result<u8, Failure> {
    writeln!(anstream::stdout().lock(), "{line}")?;
    Ok(0)
}

fn write(case: &Case, arm: &str, path: &Path) -> Result<usize, Failure> {
    let bytes = export(case, arm).map_err(|error| match error {
        ExportError::Format(_) => Failure::surroundings(error.to_string()),
        _ => Failure::usage(error.to_string()),
    })?;
    std::fs::write(path, &bytes).map_err(|error| cannot_write(path, &error))?;
    Ok(bytes.len())
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::surroundings(format!("{} cannot be written: {error}", path.display()))
}
