//! Real exhaustion: a pool with a hard ceiling, filled until an operation just does not fit.

use std::sync::Arc;

use kernels::device::{Device, DeviceError, DeviceRef, StreamId};
use kernels::error::LaunchError;
use kernels::scratch::Scratch;
use serde::{Deserialize, Serialize};

use crate::faulty::FaultyDevice;
use crate::operations::{Operation, Run};
use crate::outcome::Outcome;
use crate::trial::{Books, SweepError, chain, or_contained};

/// Others take the pool in pieces of this part of it.
const PIECES: u64 = 64;
/// Holes smaller than this are not filled: a card's pool gives no less.
const SMALLEST_PIECE: u64 = 512;

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
/// When the operation fails in an empty pool or for another reason than memory, or does not run out of it.
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
        match beside(&handle, (middle, limit), &mut run).map_err(failed)? {
            Beside::Succeeded => fits = middle,
            Beside::NoRoom | Beside::OutOfMemory(_) => fails = middle,
        }
    }
    let Beside::OutOfMemory(reported) = beside(&handle, (fails, limit), &mut run).map_err(failed)? else {
        return Err(SweepError::NeverExhausted { limit });
    };
    let mut outcomes = Vec::new();
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

/// How a run beside other allocations ended.
enum Beside {
    Succeeded,
    /// The others alone did not fit.
    NoRoom,
    /// The operation ran out of memory; what it said.
    OutOfMemory(String),
}

/// Runs beside allocations of so many bytes in all. Their pieces shrink where they do not fit, or a card's pool, which is
/// carved from larger chunks, would keep holes that are too small for them and large enough for the operation.
fn beside(device: &DeviceRef, (bytes, limit): (u64, u64), run: &mut Run) -> Result<Beside, LaunchError> {
    let mut piece = (limit / PIECES).max(1);
    let mut others = Vec::new();
    let mut left = bytes;
    while left > 0 {
        let bytes = left.min(piece);
        match Scratch::new(device, bytes, StreamId::DEFAULT) {
            Ok(scratch) => {
                others.push(scratch);
                left -= bytes;
            }
            Err(DeviceError::OutOfMemory { .. }) if bytes > SMALLEST_PIECE => piece = bytes / 2,
            Err(DeviceError::OutOfMemory { .. }) => return Ok(Beside::NoRoom),
            Err(other) => return Err(other.into()),
        }
    }
    let result = run(device);
    // Frees are exact once the stream has passed them.
    device.synchronize(StreamId::DEFAULT)?;
    match result {
        Ok(_) => Ok(Beside::Succeeded),
        Err(error @ LaunchError::Device(DeviceError::OutOfMemory { .. })) => {
            Ok(Beside::OutOfMemory(chain(&error)))
        }
        Err(other) => Err(other),
    }
}
