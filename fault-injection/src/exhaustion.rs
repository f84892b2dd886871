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

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use kernels::device::{DevicePtr, DeviceResult};

    use super::*;
    use crate::host_device::HostDevice;

    const STREAM: StreamId = StreamId::DEFAULT;

    /// An operation that needs so many bytes at once.
    fn needs<const BYTES: u64>(_: &DeviceRef) -> Result<Run, LaunchError> {
        Ok(Box::new(|device| {
            Scratch::new(device, BYTES, STREAM)?.release()?;
            Ok(vec![1])
        }))
    }

    const LIMIT: u64 = 1 << 16;
    const CHUNK: u64 = 2000;

    /// A pool carved from chunks: an allocation lies in one of them, in the first that has room for it.
    struct Carved {
        inner: HostDevice,
        chunks: Mutex<Chunks>,
    }

    struct Chunks {
        /// Bytes in use of each.
        used: Vec<u64>,
        /// Every allocation, its size and its chunk.
        live: Vec<(DevicePtr, u64, usize)>,
    }

    impl Carved {
        fn device() -> Arc<FaultyDevice<Self>> {
            let chunks = Chunks { used: vec![0; LIMIT.div_ceil(CHUNK) as usize], live: Vec::new() };
            let chunks = Mutex::new(chunks);
            FaultyDevice::new(Arc::new(Self { inner: HostDevice::new(Some(LIMIT)), chunks }))
        }
    }

    impl Device for Carved {
        fn alloc(&self, bytes: u64, stream: StreamId) -> DeviceResult<DevicePtr> {
            let mut guard = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
            let Chunks { used, live } = &mut *guard;
            let Some(chunk) = used.iter().position(|used| used + bytes <= CHUNK) else {
                let used = used.iter().sum();
                return Err(DeviceError::OutOfMemory { requested: bytes, used, limit: Some(LIMIT) });
            };
            let ptr = self.inner.alloc(bytes, stream)?;
            used[chunk] += bytes;
            live.push((ptr, bytes, chunk));
            Ok(ptr)
        }

        fn free(&self, ptr: DevicePtr, stream: StreamId) -> DeviceResult<()> {
            self.inner.free(ptr, stream)?;
            let mut guard = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
            let Chunks { used, live } = &mut *guard;
            let at = live.iter().position(|(live, ..)| *live == ptr).expect("the inner device knew it");
            let (_, bytes, chunk) = live.swap_remove(at);
            used[chunk] -= bytes;
            Ok(())
        }

        kernels::forward_device! { inner:
            info create_stream destroy_stream copy_to_device copy_to_host copy_on_device memset
            load_kernel launch launch_counts create_event destroy_event record_event wait_event elapsed_ms
            begin_capture end_capture launch_graph destroy_graph pool reset_high_water synchronize
        }
    }

    #[test]
    fn holes_between_the_pieces_of_others_are_filled() {
        // 33 chunks take a piece of 1024 bytes each. 976 bytes are left of each, and as pieces shrink, 512 of them are taken.
        // In all but the last chunk that leaves 464 bytes, which the rest of what others hold may take.
        let found = just_below(&Carved::device(), LIMIT, &Operation::new("600", None, needs::<600>)).unwrap();
        assert_eq!(
            (found.fits_beside, found.outcomes),
            (33 * 1024 + 32 * 512 + 464, vec![Outcome::Contained])
        );
        assert!(found.reported.contains("600"), "{}", found.reported);
    }

    #[test]
    fn holes_that_a_card_would_not_give_out_are_left() {
        let operation = Operation::new("300", None, needs::<300>);
        let error = just_below(&Carved::device(), LIMIT, &operation).unwrap_err();
        assert!(matches!(error, SweepError::NeverExhausted { limit: LIMIT }), "{error}");
    }

    /// Works until it runs out of memory for the first time.
    fn broken_by_exhaustion<const FAILS: bool>(_: &DeviceRef) -> Result<Run, LaunchError> {
        let mut broken = false;
        Ok(Box::new(move |device| {
            match Scratch::new(device, 600, STREAM) {
                Ok(scratch) => scratch.release()?,
                Err(error) => {
                    broken = true;
                    return Err(error.into());
                }
            }
            match (broken, FAILS) {
                (true, true) => Err(DeviceError::Environment("it stays broken".to_owned()).into()),
                (broken, _) => Ok(vec![u8::from(broken)]),
            }
        }))
    }

    #[test]
    fn an_operation_that_a_full_pool_breaks_is_dirty_after() {
        let device = FaultyDevice::new(Arc::new(HostDevice::new(Some(LIMIT))));
        let operation = Operation::new("other bits", None, broken_by_exhaustion::<false>);
        let found = just_below(&device, LIMIT, &operation).unwrap();
        let detail = "a run with room again gives other bits".to_owned();
        assert_eq!(found.outcomes, [Outcome::DirtyAfter { detail }]);
        let operation = Operation::new("fails", None, broken_by_exhaustion::<true>);
        let error = just_below(&device, LIMIT, &operation).unwrap_err();
        assert!(error.to_string().contains("it stays broken"), "{error}");
    }

    /// Every run leaves an allocation.
    fn leaks(_: &DeviceRef) -> Result<Run, LaunchError> {
        Ok(Box::new(|device| {
            device.alloc(8, STREAM)?;
            needs::<600>(device)?(device)
        }))
    }

    #[test]
    fn an_operation_that_leaks_in_a_full_pool_is_named() {
        let device = FaultyDevice::new(Arc::new(HostDevice::new(Some(LIMIT))));
        let found = just_below(&device, LIMIT, &Operation::new("leaks", None, leaks)).unwrap();
        assert!(matches!(found.outcomes[..], [Outcome::LeakedBytes { .. }]), "{:?}", found.outcomes);
    }
}
