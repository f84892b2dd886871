//! Guards that are dropped where their author did not expect it: the pool must get its bytes back all the same.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use kernels::device::{Device, DeviceError, DeviceRef, StreamId};
use kernels::guards::OwnedStream;
use kernels::scratch::Scratch;

use crate::faulty::FaultyDevice;
use crate::outcome::Outcome;
use crate::trial::{Books, SweepError, or_contained};

/// Sizes of the guarded pieces in bytes; different, so that a report tells them apart.
const SIZES: [u64; 2] = [4096, 24];

/// A place to drop guards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropPlace {
    /// On a thread that has never called the device: no context is current there.
    OnAnotherThread,
    /// After the stream that they were allocated on was destroyed.
    AfterTheStream,
    /// While a panic unwinds.
    WhileUnwinding,
}

impl DropPlace {
    /// Every place.
    pub const ALL: [Self; 3] = [Self::OnAnotherThread, Self::AfterTheStream, Self::WhileUnwinding];

    /// Name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::OnAnotherThread => "guards dropped on a thread without a context",
            Self::AfterTheStream => "guards dropped after their stream",
            Self::WhileUnwinding => "guards dropped while a panic unwinds",
        }
    }

    /// Makes guards with work pending on their memory, drops them there and compares the books.
    ///
    /// # Errors
    /// When guards cannot be made at all, or the pool cannot be read.
    pub fn check<D: Device + ?Sized + 'static>(
        self,
        device: &Arc<FaultyDevice<D>>,
    ) -> Result<Vec<Outcome>, SweepError> {
        device.begin(None);
        let books = Books::open(device)?;
        let done = self.run(&device.handle());
        let trace = device.settle();
        done.map_err(|error| SweepError::Baseline { source: error.into() })?;
        let mut outcomes = books.compare(device)?;
        if !trace.misuses.is_empty() {
            outcomes.push(Outcome::Misused { misuses: trace.misuses });
        }
        let late = trace
            .late
            .iter()
            .map(|late| Outcome::DirtyAfter { detail: format!("a stream reported: {late}") });
        outcomes.extend(late);
        device.reclaim(&books.snapshot);
        Ok(or_contained(outcomes))
    }

    fn run(self, device: &DeviceRef) -> Result<(), DeviceError> {
        match self {
            Self::OnAnotherThread => {
                let guards = guards(device, StreamId::DEFAULT)?;
                std::thread::scope(|scope| scope.spawn(move || drop(guards)).join())
                    .unwrap_or_else(|p| resume_unwind(p));
            }
            Self::AfterTheStream => {
                let stream = OwnedStream::new(device)?;
                let guards = guards(device, stream.id())?;
                stream.release()?;
                drop(guards);
            }
            Self::WhileUnwinding => {
                let guards = guards(device, StreamId::DEFAULT)?;
                // Unwinds without the panic hook, which would print.
                let unwound = catch_unwind(AssertUnwindSafe(move || {
                    let _guards = guards;
                    resume_unwind(Box::new("unwinding"))
                }));
                debug_assert!(unwound.is_err());
            }
        }
        Ok(())
    }
}

/// Guards over memory that queued work still touches.
fn guards(device: &DeviceRef, stream: StreamId) -> Result<Vec<Scratch>, DeviceError> {
    let guards: Vec<_> =
        SIZES.iter().map(|bytes| Scratch::new(device, *bytes, stream)).collect::<Result<_, _>>()?;
    for guard in &guards {
        device.memset(guard.ptr(), 1, guard.bytes(), stream)?;
    }
    Ok(guards)
}

thread_local! {
    static LEFT_TO_THE_THREAD: std::cell::RefCell<Vec<Scratch>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Makes guards that only the end of the process drops: some when its main thread ends, some never. The process must
/// still end well; call this on the main thread.
///
/// # Errors
/// When guards cannot be made.
pub fn leave_to_process_exit(device: &DeviceRef) -> Result<(), DeviceError> {
    static LEFT_TO_THE_PROCESS: std::sync::OnceLock<Vec<Scratch>> = std::sync::OnceLock::new();
    let for_the_thread = guards(device, StreamId::DEFAULT)?;
    LEFT_TO_THE_THREAD.with_borrow_mut(|left| left.extend(for_the_thread));
    let _ = LEFT_TO_THE_PROCESS.set(guards(device, StreamId::DEFAULT)?);
    Ok(())
}
