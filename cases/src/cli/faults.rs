//! `attest faults`.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Args;
use fault_injection::campaign::{self, Line, Selection, Surroundings, Verdict};
use fault_injection::{Child, Repeat};
use kernels::cuda::{CudaDevice, CudaOptions};
use kernels::device::{DeviceError, DeviceKind, DeviceRef, DeviceResult};
use kernels::simt::{Mode, SimtDevice, SimtOptions};
use kernels::source::SourceSet;
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

use super::options::{DeviceChoice, interrupt_flag, nothing_judged, parse_arm};
use super::{Failure, NO_VERDICT};
use crate::devices;

pub(super) const EXAMPLES: &str = "\
Examples:
  attest faults                                  every device call of every arm and composite fails in turn
  attest faults --arm fp8-dense --once           after an edit to the dense route
  attest faults --device cuda --report json=faults.json";

/// Make every device call fail in turn and check that nothing is left behind.
#[derive(Debug, Args)]
pub(super) struct Faults {
    /// Where kernels run. `auto` takes a card if there is one, else `simt`, and says which.
    #[arg(long, value_name = "DEVICE", env = "ATTEST_DEVICE", default_value = "auto")]
    device: DeviceChoice,
    /// Only what this arm serves; may be repeated. Default: every arm, and what belongs to none.
    #[arg(long, value_name = "ARM", value_parser = parse_arm)]
    arm: Vec<String>,
    /// Fail one call at a time only. Default: also every call from one on.
    #[arg(long, conflicts_with = "persistent")]
    once: bool,
    /// Fail every call from one on only.
    #[arg(long)]
    persistent: bool,
    /// Check every access of every kernel, too (simt; slower).
    #[arg(long)]
    checked: bool,
    /// Also write a report; may be repeated.
    #[arg(long, value_name = "json=FILE|junit=FILE")]
    report: Vec<ReportFile>,
    /// Say nothing but failures and the summary.
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,
    /// Say also what the pool and the devices reported.
    #[arg(short, long)]
    verbose: bool,
    /// Do one task that needs a process of its own.
    #[arg(long, hide = true, value_name = "TASK")]
    child: Option<Child>,
}

/// A report and its format.
#[derive(Clone, Debug)]
enum ReportFile {
    Json(PathBuf),
    Junit(PathBuf),
}

impl FromStr for ReportFile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some(("json", path)) if !path.is_empty() => Ok(Self::Json(PathBuf::from(path))),
            Some(("junit", path)) if !path.is_empty() => Ok(Self::Junit(PathBuf::from(path))),
            _ => Err("accepted: json=FILE, junit=FILE".to_owned()),
        }
    }
}

impl ReportFile {
    fn path(&self) -> &PathBuf {
        let (Self::Json(path) | Self::Junit(path)) = self;
        path
    }

    fn write(&self, text: &str) -> Result<(), Failure> {
        let path = self.path();
        std::fs::write(path, text).map_err(|error| {
            Failure::surroundings(format!("the report cannot be written: {}: {error}", path.display()))
        })
    }
}

impl Faults {
    pub fn run(self) -> Result<u8, Failure> {
        let selection = self.selection();
        let planned = campaign::planned(&selection);
        let unavailable = |message: String| -> Failure {
            let failure = Failure::surroundings(message);
            match nothing_judged(planned, failure.reason()) {
                Ok(()) => failure,
                Err(cannot_write) => cannot_write,
            }
        };
        let kind = self.kind().map_err(unavailable)?;
        let sources = SourceSet::load()
            .map_err(|error| unavailable(format!("the kernel sources cannot be read: {error}")))?;
        let open = |sources: SourceSet, limit: Option<u64>| open(kind, self.checked, sources, limit);
        if let Some(child) = self.child {
            let said = child.run(|sources| open(sources, None), sources).map_err(Failure::surroundings)?;
            writeln!(anstream::stdout(), "{said}")?;
            return Ok(0);
        }
        // A path that cannot be written is known before the run.
        self.report.iter().try_for_each(|report| report.write(""))?;
        let interrupted = interrupt_flag()?;
        let surroundings = Surroundings { open: &open, spawn: &|child| spawn(kind, child), sources };
        let mut written = Ok(());
        let lines = campaign::run(&surroundings, &selection, |line| {
            written = self.say(line, kind);
            let stop = written.is_err() || interrupted.load(Ordering::Relaxed);
            if stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let lines = lines.map_err(|error| unavailable(error.to_string()))?;
        written?;
        for report in &self.report {
            match report {
                ReportFile::Json(_) => report.write(&json(&lines, kind)?)?,
                ReportFile::Junit(_) => report.write(&junit(&lines, kind)?)?,
            }
        }
        Ok(summarise(&lines, planned)?)
    }

    fn selection(&self) -> Selection {
        let repeats = match (self.once, self.persistent) {
            (true, _) => vec![Repeat::Once],
            (_, true) => vec![Repeat::Persistent],
            _ => vec![Repeat::Once, Repeat::Persistent],
        };
        Selection { arms: self.arm.clone(), repeats }
    }

    fn kind(&self) -> Result<DeviceKind, String> {
        let cuda = || devices::cuda_info().map(|info| info.name);
        match self.device {
            DeviceChoice::Simt => Ok(DeviceKind::Simt),
            DeviceChoice::Cuda => match cuda() {
                Ok(_) => Ok(DeviceKind::Cuda),
                Err(error) => Err(format!("--device cuda cannot be used: {error}")),
            },
            DeviceChoice::Auto => {
                let (kind, why) = match cuda() {
                    Ok(name) => (DeviceKind::Cuda, name),
                    Err(error) => (DeviceKind::Simt, error.to_string()),
                };
                if self.child.is_none() && !self.quiet {
                    anstream::eprintln!("device {}, chosen by auto: {why}", kind.name());
                }
                Ok(kind)
            }
        }
    }

    fn say(&self, line: &Line, kind: DeviceKind) -> std::io::Result<()> {
        let mut out = anstream::stdout().lock();
        if !self.quiet || matches!(line.verdict, Verdict::Failed { .. } | Verdict::NoVerdict { .. }) {
            writeln!(out, "{:<10} {:<75} {}", word(&line.verdict), line.name, counts(line))?;
        }
        match &line.verdict {
            Verdict::Failed { details } => {
                for text in details.iter().flat_map(|detail| detail.lines()) {
                    writeln!(out, "  {text}")?;
                }
                writeln!(out, "  again: {}", again(line, kind))?;
            }
            Verdict::NoVerdict { reason } => writeln!(out, "  {reason}")?,
            Verdict::Passed | Verdict::Skipped { .. } => {}
        }
        if self.verbose {
            for text in line.remark.iter().flat_map(|remark| remark.lines()) {
                writeln!(out, "  {text}")?;
            }
        }
        out.flush()
    }
}

fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Passed => "passed",
        Verdict::Failed { .. } => "FAILED",
        Verdict::Skipped { .. } => "skipped",
        Verdict::NoVerdict { .. } => "NO VERDICT",
    }
}

/// Calls, faults fired, faults contained, time.
fn counts(line: &Line) -> String {
    let calls = if line.calls > 0 { format!("{} calls", line.calls) } else { String::new() };
    let Line { fired, contained, seconds, .. } = line;
    format!("{calls:>9}  faults: {fired:>3} fired {contained:>3} contained  {seconds:>5.1} s")
}

/// The command that runs a line again.
fn again(line: &Line, kind: DeviceKind) -> String {
    let arm = line.arm.as_ref().map(|arm| format!(" --arm {arm}")).unwrap_or_default();
    format!("attest faults --device {}{arm}", kind.name())
}

fn open(
    kind: DeviceKind,
    checked: bool,
    sources: SourceSet,
    memory_limit: Option<u64>,
) -> DeviceResult<DeviceRef> {
    Ok(match kind {
        DeviceKind::Simt => {
            let mode = if checked { Mode::Checked } else { Mode::Fast };
            SimtDevice::new(SimtOptions { mode, memory_limit, ..SimtOptions::new(sources) })?
        }
        DeviceKind::Cuda => {
            let cache_dir = std::env::var_os("ATTEST_CACHE_DIR").map(|dir| PathBuf::from(dir).join("cuda"));
            CudaDevice::new(CudaOptions { ordinal: 0, sources, cache_dir, memory_limit })?
        }
        DeviceKind::Host => return Err(DeviceError::Environment("host memory is no device".to_owned())),
    })
}

/// Runs this binary for one task; what it said, or how it ended.
fn spawn(kind: DeviceKind, child: Child) -> Result<String, String> {
    let binary =
        std::env::current_exe().map_err(|error| format!("cannot find this program's own file: {error}"))?;
    let output = Command::new(binary)
        .args(["faults", "--device", kind.name(), "--child", child.name()])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("a process cannot be started: {error}"))?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() && err.is_empty() {
        Ok(out.trim_end().to_owned())
    } else {
        Err(format!(
            "the process for {} ended with {}: {}{}",
            child.name(),
            output.status,
            out.trim_end(),
            err.trim_end()
        ))
    }
}

/// Prints what was skipped and the counts; the exit code.
fn summarise(lines: &[Line], planned: usize) -> std::io::Result<u8> {
    let count = |wanted: fn(&Verdict) -> bool| lines.iter().filter(|line| wanted(&line.verdict)).count();
    let passed = count(|verdict| matches!(verdict, Verdict::Passed));
    let failed = count(|verdict| matches!(verdict, Verdict::Failed { .. }));
    let no_verdict = count(|verdict| matches!(verdict, Verdict::NoVerdict { .. }));
    let mut reasons: Vec<(String, usize)> = Vec::new();
    let mut skip = |reason: &str, count: usize| match reasons.iter_mut().find(|(known, _)| known == reason) {
        Some((_, known)) => *known += count,
        None => reasons.push((reason.to_owned(), count)),
    };
    for line in lines {
        match &line.verdict {
            Verdict::Skipped { reason } => skip(reason, 1),
            Verdict::NoVerdict { .. } => skip("no verdict", 1),
            Verdict::Passed | Verdict::Failed { .. } => {}
        }
    }
    let left = planned - lines.len();
    if left > 0 {
        skip("interrupted", left);
    }
    let skipped = planned - passed - failed;
    let mut out = anstream::stdout().lock();
    if skipped > 0 {
        let text: Vec<_> = reasons.iter().map(|(reason, count)| format!("{count} ({reason})")).collect();
        writeln!(out, "skipped: {}", text.join(", "))?;
    }
    writeln!(out, "{passed} passed, {failed} failed, {skipped} skipped")?;
    Ok(match (failed, no_verdict, passed) {
        (1.., ..) => 1,
        (0, 1.., _) => NO_VERDICT,
        (0, 0, 0) => 4,
        _ if left > 0 => NO_VERDICT,
        _ => 0,
    })
}

fn json(lines: &[Line], kind: DeviceKind) -> Result<String, Failure> {
    let report = serde_json::json!({ "device": kind.name(), "lines": lines });
    serde_json::to_string_pretty(&report)
        .map_err(|error| Failure::surroundings(format!("the report cannot be written: {error}")))
}

fn junit(lines: &[Line], kind: DeviceKind) -> Result<String, Failure> {
    let mut suite = TestSuite::new(format!("faults on {}", kind.name()));
    for line in lines {
        let mut status = match &line.verdict {
            Verdict::Passed => TestCaseStatus::success(),
            Verdict::Failed { .. } => TestCaseStatus::non_success(NonSuccessKind::Failure),
            Verdict::NoVerdict { .. } => TestCaseStatus::non_success(NonSuccessKind::Error),
            Verdict::Skipped { .. } => TestCaseStatus::skipped(),
        };
        match &line.verdict {
            Verdict::Passed => {}
            Verdict::Failed { details } => {
                status.set_message(format!("{} of {} faults contained", line.contained, line.fired));
                status.set_description(format!("{}\nagain: {}", details.join("\n"), again(line, kind)));
            }
            Verdict::Skipped { reason } | Verdict::NoVerdict { reason } => {
                status.set_message(reason.clone());
            }
        }
        let mut case = TestCase::new(line.name.clone(), status);
        case.set_classname(line.arm.as_deref().unwrap_or("no arm"));
        case.set_time(Duration::from_secs_f64(line.seconds));
        suite.add_test_case(case);
    }
    let mut report = Report::new("attest faults");
    report.add_test_suite(suite);
    report
        .to_string()
        .map_err(|error| Failure::surroundings(format!("the report cannot be written: {error}")))
}
