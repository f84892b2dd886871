//! `attest export`.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;

use super::Failure;
use super::options::{parse_arm, parse_case};
use crate::case::Case;
use crate::catalogue::{self, Tier};
use crate::export::{ExportError, MANIFEST, Suite, SuiteCase, estimated_bytes, export};
use crate::filter::Filter;

pub(super) const EXAMPLES: &str = "\
Examples:
  attest export 'decode bf16 kv=e4m3 h8/2 d64 page16 NHD q=[1] kv=[40] kscale=0.25 seed=7' -o case.safetensors
  attest export --tier smoke -o vectors/                       every attention case of a tier, one file each, and suite.json
  attest export --tier standard --filter kv=e4m3 -o vectors/   some of them
  attest export --cases mine.txt -o vectors/                   the case lines of a file";

/// Largest file of a suite, in bytes; one case by name may be larger.
const SUITE_LIMIT: usize = 64 << 20;

/// Write cases as safetensors files: inputs, expected output and the error allowed to each element.
///
/// The file's layout is described in docs/vectors.md. `attest check` judges an output that was computed from it anywhere.
#[derive(Debug, Args)]
pub(super) struct Export {
    /// The case line.
    #[arg(required_unless_present_any = ["tier", "cases"], conflicts_with_all = ["tier", "cases"])]
    line: Option<String>,
    /// Export the attention cases of a tier instead; -o is a directory then.
    #[arg(long, value_name = "TIER")]
    tier: Option<Tier>,
    /// Export the case lines of this file, one a line, instead; -o is a directory then. Lines that start with # are left out.
    #[arg(long, value_name = "FILE", conflicts_with = "tier")]
    cases: Option<PathBuf>,
    /// With --tier: only cases that match, as for `attest verify`; may be repeated.
    #[arg(long, value_name = "FILTER", requires = "tier")]
    filter: Vec<String>,
    /// Whose rounding the bound allows. The default keeps the softmax weights in the query's format, as most kernels do.
    #[arg(long, value_name = "ARM", value_parser = parse_arm, default_value = "mma")]
    arm: String,
    /// The file; with --tier or --cases a directory, which is made.
    #[arg(short, long, value_name = "PATH")]
    output: PathBuf,
}

impl Export {
    pub fn run(self) -> Result<u8, Failure> {
        match (&self.line, self.tier, &self.cases) {
            (Some(line), ..) => {
                let case = parse_case(line)?;
                let bytes = write(&case, &self.arm, &self.output)?;
                report(&format!("{}: {bytes} bytes", self.output.display()))
            }
            (None, Some(tier), _) => self.tier(tier),
            (None, None, Some(path)) => self.lines(path),
            (None, None, None) => {
                Err(Failure::usage("none of LINE, --tier and --cases is given; accepted: one of them"))
            }
        }
    }

    fn tier(&self, tier: Tier) -> Result<u8, Failure> {
        let filters: Vec<Filter> = self.filter.iter().map(|text| Filter::new(text)).collect();
        let entries = catalogue::entries().map_err(|error| Failure::surroundings(error.to_string()))?;
        let mut suite = Suite::new(tier.name(), &self.arm);
        for entry in entries.into_iter().filter(|entry| entry.tier <= tier) {
            if !filters.iter().all(|filter| filter.matches(&entry.case, entry.group)) {
                continue;
            }
            if entry.case.problem.op == crate::problem::Op::Store || entry.case.must_reject() {
                suite.without_output += 1;
            } else if estimated_bytes(&entry.case.problem) > SUITE_LIMIT {
                suite.too_large.push(entry.case.to_string());
            } else {
                self.add(&mut suite, &entry.case, entry.group, &entry.comment)?;
            }
        }
        if suite.cases.is_empty() {
            return Err(Failure::usage("no attention case matches; accepted: filters that choose some"));
        }
        self.finish(&suite)
    }

    /// The lines of a file. Whoever names a case wants it however large it is.
    fn lines(&self, path: &Path) -> Result<u8, Failure> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::usage(format!("{} cannot be read: {error}", path.display())))?;
        let mut suite = Suite::new("none", &self.arm);
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        for line in lines {
            self.add(&mut suite, &parse_case(line)?, "", "")?;
        }
        if suite.cases.is_empty() {
            return Err(Failure::usage(format!(
                "{} has no case line; accepted: one case a line",
                path.display()
            )));
        }
        self.finish(&suite)
    }

    /// Writes a case's file and adds it to the suite.
    fn add(&self, suite: &mut Suite, case: &Case, group: &str, comment: &str) -> Result<(), Failure> {
        std::fs::create_dir_all(&self.output).map_err(|error| cannot_write(&self.output, &error))?;
        let entry = SuiteCase {
            id: case.id(),
            case: case.to_string(),
            group: group.to_owned(),
            comment: comment.to_owned(),
        };
        write(case, &self.arm, &entry.file(&self.output))?;
        suite.cases.push(entry);
        Ok(())
    }

    fn finish(&self, suite: &Suite) -> Result<u8, Failure> {
        suite.write(&self.output)?;
        report(&format!(
            "{} files and {MANIFEST} in {}; {} stores and refusals have none, {} cases are over {} MiB",
            suite.cases.len(),
            self.output.display(),
            suite.without_output,
            suite.too_large.len(),
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
