//! Real exhaustion: a pool with a hard ceiling, filled until an operation just does not fit.

use std::sync::Arc;

use kernels::device::{Device, DeviceError, DeviceRef, StreamId};
use kernels::error::LaunchError;
use kernels::scratch::Scratch;
use serde::{Deserialize, Serialize};

use crate::faulty::FaultyDevice;
use crate::operations::Operation;
use crate::outcome::Outcome;
use crate::trial::{Books, SweepError, chain, or_contained};

/// What a full pool did to an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exhaustion {
    /// The most bytes that others may hold for the operation to succeed.
    pub fits_beside: u64,
    /// What the operation reported with one byte more.
    pub reported: String,
    /// What was left behind; `Contained` alone if nothing was.
    pub outcomes: Vec<Outcome>,
}

/// Finds, by bisection, the most that others can hold of a pool with a ceiling of `limit` bytes while the operation still
/// succeeds, and judges its failure with one byte more.
///
/// # Errors
/// When the operation fails in an empty pool, or for another reason than memory, or never runs out of it.
pub fn just_below<D: Device + ?Sized + 'static>(
    device: &Arc<FaultyDevice<D>>,
    limit: u64,
    operation: &Operation,
) -> Result<Exhaustion, SweepError> {
    let handle = device.handle();
    let failed = |error: LaunchError| SweepError::Baseline { source: error.into() };
    let mut run = operation.prepare(&handle).map_err(failed)?;
    let expected = run(&handle).map_err(failed)?;
    device.begin(None);
    let books = Books::open(device)?;
    let (mut fits, mut fails) = (0, limit);
    while fails - fits > 1 {
        let middle = fits + (fails - fits) / 2;
        match beside(&handle, middle, &mut run) {
            Ok(_) => fits = middle,
            Err(LaunchError::Device(DeviceError::OutOfMemory { .. })) => fails = middle,
            Err(other) => return Err(failed(other)),
        }
    }
    let mut outcomes = Vec::new();
    let reported = match beside(&handle, fails, &mut run) {
        Ok(_) => {
            outcomes.push(Outcome::Swallowed);
            String::new()
        }
        Err(error) => {
            if !matches!(error, LaunchError::Device(DeviceError::OutOfMemory { .. })) {
                outcomes.push(Outcome::Masked { reported: chain(&error) });
            }
            chain(&error)
        }
    };
    let trace = device.settle();
    outcomes.extend(books.compare(device)?);
    if !trace.misuses.is_empty() {
        outcomes.push(Outcome::Misused { misuses: trace.misuses });
    }
    match run(&handle) {
        Ok(bytes) if bytes == expected => {}
        Ok(_) => {
            outcomes.push(Outcome::DirtyAfter { detail: "a run with room again gives other bits".to_owned() })
        }
        Err(error) => {
            outcomes.push(Outcome::DirtyAfter { detail: format!("a run with room again failed: {error}") })
        }
    }
    device.reclaim(&books.snapshot);
    Ok(Exhaustion { fits_beside: fits, reported, outcomes: or_contained(outcomes) })
}

/// Runs beside an allocation of so many bytes.
fn beside(device: &DeviceRef, bytes: u64, run: &mut crate::operations::Run) -> Result<Vec<u8>, LaunchError> {
    let _others = Scratch::new(device, bytes, StreamId::DEFAULT)?;
    let result = run(device);
    // Frees are exact once the stream has passed them.
    let waited = device.synchronize(StreamId::DEFAULT);
    let bytes = result?;
    waited?;
    Ok(bytes)
}
