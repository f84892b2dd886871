//! The bench: times arms that have just been proved right, and nothing else.
//!
//! All arms of a problem run in one process on the same values, in interleaved rounds, from inputs that rotate through
//! more memory than the card's cache. Each arm is compared with the oracle on sampled rows and with the first arm in
//! full, before and after it is timed; one that fails has no time.
pub mod compare;
mod data;
pub mod lock;
mod parity;
mod peak;
mod phases;
pub mod plot;
mod prefill;
pub mod problem;
pub mod report;
mod store;
mod timing;

pub use parity::ParityError;
pub use prefill::{PrefillRun, prefill_32k};
pub use problem::{ArmRun, BenchProblem, Preset};
pub use report::{ArmTiming, BenchReport, Ceilings, ProblemReport};

use kernels::device::{DeviceError, DeviceRef};
use kernels::error::LaunchError;

/// Why a bench could not be run. A wrong result is no error: it is reported instead of a time.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A launch was refused or failed.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The oracle refused the problem.
    #[error(transparent)]
    Oracle(#[from] oracle::OracleError),
}

/// Times every arm of a problem.
///
/// # Errors
/// What the device, a launch or the oracle reports.
pub fn run_problem(
    device: &DeviceRef,
    problem: &BenchProblem,
    arms: &[ArmRun],
) -> Result<ProblemReport, BenchError> {
    let data = data::Data::new(device, problem)?;
    let mut report = ProblemReport::new(problem);
    let mut parity = parity::Parity::new(&data)?;
    let mut passed = Vec::new();
    for &arm in arms {
        match parity.check(device, &data, arm)? {
            Ok(share) => passed.push((arm, share)),
            Err(error) => report.arms.push(ArmTiming::mismatch(arm, &error)),
        }
    }
    let runs: Vec<ArmRun> = passed.iter().map(|(arm, _)| *arm).collect();
    let timings = timing::time_arms(device, &data, &runs)?;
    for ((arm, share), times) in passed.into_iter().zip(timings) {
        match parity.check(device, &data, arm)? {
            Ok(after) => {
                let phases = phases::measure(device, &data, arm)?;
                report.arms.push(ArmTiming::new(problem, arm, share.max(after), &times, phases));
            }
            Err(error) => report.arms.push(ArmTiming::mismatch(arm, &error)),
        }
    }
    Ok(report)
}

/// What the card can do at best, measured now.
///
/// # Errors
/// What the device reports.
pub fn ceilings(device: &DeviceRef) -> Result<Ceilings, BenchError> {
    peak::measure(device)
}

/// Times the store kernel on a problem's keys and values.
///
/// # Errors
/// What the device or a launch reports.
pub fn run_store(device: &DeviceRef, problem: &BenchProblem) -> Result<ProblemReport, BenchError> {
    store::run(device, problem)
}
