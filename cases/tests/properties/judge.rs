//! Judging in this process, shrinking and keeping what fails.

use std::cell::RefCell;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cases::case::Case;
use cases::executor::InProcess;
use cases::report::describe::describe;
use cases::run::{Checking, Settings, run_case};
use cases::shrink::{same_fault, shrink};
use cases::verdict::{Class, Verdict};
use kernels::device::DeviceKind;

thread_local! {
    static EXECUTOR: RefCell<InProcess> = RefCell::default();
}

/// Judges a case on an arm, with every access checked on the scalar and store kernels.
pub fn judge(case: &Case, arm: &str) -> Verdict {
    // Tensor-core kernels have an instance per head dim and kind of batch: to compile each twice would take minutes.
    let checking = if ["scalar", "store"].contains(&arm) { Checking::WhereSmall } else { Checking::Never };
    let settings =
        Settings { device: DeviceKind::Simt, checking, schedule: None, limit: Duration::from_secs(60) };
    EXECUTOR.with_borrow_mut(|executor| run_case(case, arm, executor, &settings))
}

/// Whether a case that the arm serves passes.
pub fn passes(case: &Case, arm: &str) -> Result<(), Verdict> {
    let verdict = judge(case, arm);
    if verdict.class() == Class::Passed { Ok(()) } else { Err(verdict) }
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions/properties.txt")
}

/// Shrinks a failing case, appends it to the file of regressions, and fails the test.
pub fn shrink_and_record(case: &Case, arm: &str) -> ! {
    let first = judge(case, arm);
    let still_fails = |candidate: &Case| {
        let verdict = judge(candidate, arm);
        Ok::<_, std::convert::Infallible>(verdict.class() == Class::Failed && same_fault(&verdict, &first))
    };
    let Ok(shrunk) = shrink(case, 400, still_fails, |_| ());
    let headline = describe(&judge(&shrunk.case, arm)).headline;
    let line = format!("{} # {arm}: {headline}", shrunk.case);
    let mut file = std::fs::OpenOptions::new().append(true).open(file()).expect("the file of regressions");
    writeln!(file, "{line}").expect("the file of regressions");
    panic!(
        "{} on {arm}, found as\n  {case}\nsmallest, and kept among the regressions:\n  {line}",
        first.word()
    );
}

/// The kept cases, with the arm on which they failed.
pub fn recorded() -> Vec<(Case, String)> {
    let text = std::fs::read_to_string(file()).expect("the file of regressions");
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let parsed = lines.map(|line| {
        let (case, comment) = line.split_once(" # ").unwrap_or_else(|| panic!("no arm: {line}"));
        let (arm, _) = comment.split_once(':').unwrap_or_else(|| panic!("no arm: {line}"));
        (case.parse().unwrap_or_else(|error| panic!("{line}: {error}")), arm.to_owned())
    });
    parsed.collect()
}
