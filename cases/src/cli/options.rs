//! Options that several commands share.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args, ValueEnum};
use kernels::arm::Arm;
use kernels::device::DeviceKind;

use super::Failure;
use crate::case::{Case, ParseError};
use crate::devices;
use crate::events::Consumer;
use crate::executor::{DeviceSpec, Executor, Worker};
use crate::report::{Fanout, ReportTarget, Terminal, Verbosity};
use crate::run::{Checking, STORE_ARM, Settings};

/// Time that one launch may take: enough for the largest case in checked mode on a slow machine.
const DEFAULT_LIMIT: &str = "60s";

/// Which device to run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum DeviceChoice {
    /// A card if there is one, else simt.
    Auto,
    /// The CPU: every access can be checked.
    Simt,
    /// An NVIDIA GPU.
    Cuda,
}

/// Device and how cases run on it.
#[derive(Debug, Args)]
pub(super) struct DeviceOptions {
    /// Where kernels run. `auto` takes a card if there is one, else `simt`, and says which.
    #[arg(long, value_name = "DEVICE", env = "ATTEST_DEVICE", default_value = "auto")]
    device: DeviceChoice,
    /// Check every access in every case, however large (simt). By default small cases are checked.
    #[arg(long, conflicts_with = "fast")]
    checked: bool,
    /// Check no access (simt): only results are judged.
    #[arg(long)]
    fast: bool,
    /// Time limit of one launch; a kernel that takes longer is killed and its case has timed out.
    #[arg(long, value_name = "TIME", default_value = DEFAULT_LIMIT, value_parser = parse_time)]
    timeout: Duration,
}

/// Reports and how much is said.
#[derive(Debug, Args)]
pub(super) struct OutputOptions {
    /// Also write a report; may be repeated.
    #[arg(long, value_name = "json=FILE|junit=FILE|html=FILE")]
    report: Vec<ReportTarget>,
    /// Say nothing but failures and the summary.
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,
    /// Say something about every case.
    #[arg(short, long)]
    verbose: bool,
}

/// The device in use: its kind, and its name and versions for people.
pub(super) struct Chosen {
    pub kind: DeviceKind,
    pub detail: String,
}

impl DeviceChoice {
    /// Settles `auto` and makes sure that the device can be opened.
    pub fn choose(self) -> Result<Chosen, Failure> {
        let cuda = |why: &str| {
            devices::cuda_info().map(|info| Chosen {
                kind: DeviceKind::Cuda,
                detail: format!("{}, {}{why}", info.name, info.versions),
            })
        };
        match self {
            DeviceChoice::Cuda => cuda("")
                .map_err(|error| Failure::surroundings(format!("--device cuda cannot be used: {error}"))),
            DeviceChoice::Auto => match cuda(", chosen by auto") {
                Ok(chosen) => Ok(chosen),
                Err(error) => simt(&format!(", chosen by auto: {error}")),
            },
            DeviceChoice::Simt => simt(""),
        }
    }
}

impl DeviceOptions {
    /// Settles `auto` and makes sure that the device can be opened.
    pub fn choose(&self) -> Result<Chosen, Failure> {
        self.device.choose()
    }

    /// Time limit of one launch.
    pub fn limit(&self) -> Duration {
        self.timeout
    }

    pub fn settings(&self, device: DeviceKind, schedule: Option<u64>) -> Settings {
        let checking = match (self.checked, self.fast) {
            (true, _) => Checking::Always,
            (_, true) => Checking::Never,
            _ => Checking::WhereSmall,
        };
        Settings { device, checking, schedule, limit: self.timeout }
    }
}

fn simt(why: &str) -> Result<Chosen, Failure> {
    let spec = DeviceSpec { kind: DeviceKind::Simt, checked: true, schedule: None };
    let device = devices::open(&spec).map_err(|error| Failure::surroundings(error.to_string()))?;
    let info = device.info();
    Ok(Chosen { kind: DeviceKind::Simt, detail: format!("{}{why}", info.name) })
}

impl OutputOptions {
    /// Whether nothing but failures and the summary is to be said.
    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// The consumers that these options ask for.
    pub fn consumers(&self) -> Result<Fanout, Failure> {
        let verbosity = match (self.quiet, self.verbose) {
            (true, _) => Verbosity::Quiet,
            (_, true) => Verbosity::Verbose,
            _ => Verbosity::Normal,
        };
        let mut consumers: Vec<Box<dyn Consumer>> = vec![Box::new(Terminal::new(verbosity))];
        for target in &self.report {
            let report = target
                .open()
                .map_err(|e| Failure::surroundings(format!("the report cannot be written: {e}")))?;
            consumers.push(report);
        }
        Ok(Fanout { consumers })
    }
}

/// Without a device nothing can be judged: the summary line says so, as for every command that judges.
pub(super) fn nothing_judged(planned: usize, reason: &str) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    writeln!(out, "skipped: {planned} ({})", reason.lines().next().unwrap_or(reason))?;
    writeln!(out, "0 passed, 0 failed, {planned} skipped")?;
    Ok(())
}

impl Failure {
    /// The message, for the summary of what was skipped.
    pub(super) fn reason(&self) -> &str {
        &self.message
    }
}

/// Set when the user interrupts. The second interrupt ends the process at once.
pub(super) fn interrupt_flag() -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    let set = flag.clone();
    ctrlc::set_handler(move || {
        if set.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    })
    .map_err(|error| Failure::surroundings(format!("cannot listen for interrupts: {error}")))?;
    Ok(flag)
}

/// Makes worker processes of this binary.
pub(super) fn workers(
    interrupted: &Arc<AtomicBool>,
) -> Result<impl Fn() -> Box<dyn Executor> + Sync + use<>, Failure> {
    let binary: PathBuf = std::env::current_exe()
        .map_err(|error| Failure::surroundings(format!("cannot find this program's own file: {error}")))?;
    let interrupted = interrupted.clone();
    Ok(move || Box::new(Worker::new(binary.clone(), interrupted.clone())) as Box<dyn Executor>)
}

/// The names that `--arm` accepts.
pub(super) fn arm_names() -> Vec<String> {
    Arm::ALL.iter().map(|arm| arm.name().to_owned()).chain([STORE_ARM.to_owned()]).collect()
}

pub(super) fn parse_arm(text: &str) -> Result<String, String> {
    let names = arm_names();
    if names.iter().any(|name| name == text) {
        Ok(text.to_owned())
    } else {
        Err(format!("accepted: {}", names.join(", ")))
    }
}

/// A case line from the command line; an error points at the column.
pub(super) fn parse_case(line: &str) -> Result<Case, Failure> {
    line.parse().map_err(|error: ParseError| {
        let pointer = " ".repeat(error.column.saturating_sub(1));
        Failure::usage(format!("{error}\n  {line}\n  {pointer}^"))
    })
}

/// `90s`, `2m`, `1h`, `500ms`, or seconds.
pub(super) fn parse_time(text: &str) -> Result<Duration, String> {
    let accepted = || "accepted: a time such as 500ms, 90s, 2m or 1h".to_owned();
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let seconds_per_unit = match unit {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(accepted()),
    };
    let number: f64 = number.parse().map_err(|_| accepted())?;
    Duration::try_from_secs_f64(number * seconds_per_unit).ok().filter(|t| !t.is_zero()).ok_or_else(accepted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(parse_time("90"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_time("1.5m"), Ok(Duration::from_secs(90)));
        for wrong in ["", "0s", "-3s", "3d", "s", "1e99h"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }
}
