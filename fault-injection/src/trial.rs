//! One run of an operation under one plan, judged against its first clean run.

use std::any::Any;
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use kernels::device::{Device, DeviceError, DeviceRef};

use crate::call::Call;
use crate::faulty::{FaultyDevice, Trace};
use crate::injected::InjectedFault;
use crate::ledger::Snapshot;
use crate::outcome::Outcome;
use crate::plan::FaultPlan;

/// An error of any type.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// An operation: works on a device and returns its result as bytes.
pub(crate) type Operation<'a> = dyn FnMut(&DeviceRef) -> Result<Vec<u8>, BoxError> + 'a;

/// Why an operation could not be judged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SweepError {
    /// The operation fails without any fault.
    #[error("the operation fails without any injected fault: {}", chain(.source.as_ref()))]
    Baseline {
        /// What it reported.
        source: BoxError,
    },
    /// The operation panics without any fault.
    #[error("the operation panics without any injected fault: {message}")]
    BaselinePanicked {
        /// The panic's message.
        message: String,
    },
    /// The device cannot say how many bytes of its pool are in use.
    #[error("the pool cannot be read: {0}")]
    Pool(#[source] DeviceError),
    /// The pool could not be filled so that the operation fails.
    #[error("a pool of {limit} bytes is full before the operation runs out of memory")]
    NeverExhausted {
        /// Ceiling of the pool.
        limit: u64,
    },
}

/// What was live at one moment, in the ledger and in the pool.
pub(crate) struct Books {
    pub snapshot: Snapshot,
    pub pool_bytes: u64,
}

impl Books {
    /// The books as they stand, once frees that are still on their way have arrived.
    pub fn open<D: Device + ?Sized>(device: &FaultyDevice<D>) -> Result<Self, SweepError> {
        device.drain().map_err(SweepError::Pool)?;
        Ok(Self { snapshot: device.snapshot(), pool_bytes: pool_bytes(device)? })
    }

    /// What has been left behind or taken away since.
    pub fn compare<D: Device + ?Sized>(&self, device: &FaultyDevice<D>) -> Result<Vec<Outcome>, SweepError> {
        let now = device.snapshot();
        let held = pool_bytes(device)?;
        let mut outcomes = Vec::new();
        let allocations = now.allocations_since(&self.snapshot);
        // Memory whose free was made to fail is held through no fault of the operation.
        let unexplained = held > self.pool_bytes && now.refused_bytes() == 0;
        if !allocations.is_empty() || unexplained {
            outcomes.push(Outcome::LeakedBytes { baseline: self.pool_bytes, held, allocations });
        }
        let handles = now.handles_since(&self.snapshot);
        if !handles.is_empty() {
            outcomes.push(Outcome::LeakedHandles { handles });
        }
        let missing = now.missing_since(&self.snapshot);
        if held < self.pool_bytes || !missing.is_empty() {
            let missing: Vec<_> = missing.iter().map(|m| format!("\n  {m}")).collect();
            let baseline = self.pool_bytes;
            let detail = format!(
                "memory of others was freed: {held} bytes held, baseline {baseline}{}",
                missing.concat()
            );
            outcomes.push(Outcome::DirtyAfter { detail });
        }
        Ok(outcomes)
    }
}

/// The state before the operation and what its first clean run did.
pub(crate) struct Baseline {
    pub books: Books,
    pub output: Vec<u8>,
    pub sequence: Vec<Call>,
    /// What was wrong with the clean runs themselves; `Contained` alone if nothing was.
    pub outcomes: Vec<Outcome>,
}

/// A run under a plan.
pub(crate) enum Attempt {
    /// No call was made to fail, or the failure never surfaced; so many calls were counted.
    Quiet { counted: u64 },
    /// At least one was.
    Fired { first: InjectedFault, outcomes: Vec<Outcome> },
}

enum End {
    Ok(Vec<u8>),
    Err(BoxError),
    Panicked(String),
}

fn run<D: Device + ?Sized + 'static>(
    device: &Arc<FaultyDevice<D>>,
    plan: Option<FaultPlan>,
    operation: &mut Operation<'_>,
) -> (End, Trace) {
    device.begin(plan);
    let handle = device.handle();
    let end = match catch_unwind(AssertUnwindSafe(|| operation(&handle))) {
        Ok(Ok(output)) => End::Ok(output),
        Ok(Err(error)) => End::Err(error),
        Err(payload) => End::Panicked(panic_message(payload.as_ref())),
    };
    (end, device.settle())
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without text".to_owned())
}

/// An error and its causes, on one line.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(&format!(": {cause}"));
        next = cause.source();
    }
    text
}

impl Baseline {
    /// Runs the operation twice without faults: what the second does differently it would do differently later, too.
    pub fn establish<D: Device + ?Sized + 'static>(
        device: &Arc<FaultyDevice<D>>,
        operation: &mut Operation<'_>,
    ) -> Result<Self, SweepError> {
        let before = Books::open(device)?;
        let (end, trace) = run(device, None, operation);
        let output = match (end, trace.late) {
            (End::Panicked(message), _) => return Err(SweepError::BaselinePanicked { message }),
            (End::Err(source), _) => return Err(SweepError::Baseline { source }),
            (End::Ok(_), late) if !late.is_empty() => {
                let first = late.into_iter().next().expect("not empty");
                return Err(SweepError::Baseline { source: first.into() });
            }
            (End::Ok(output), _) => output,
        };
        let books = Books { snapshot: before.snapshot.with_modules_of(&device.snapshot()), ..before };
        let mut outcomes = books.compare(device)?;
        let mut this = Self { books, output, sequence: trace.sequence, outcomes: Vec::new() };
        if !trace.misuses.is_empty() {
            outcomes.push(Outcome::Misused { misuses: trace.misuses });
        }
        device.reclaim(&this.books.snapshot);
        outcomes.extend(this.run_clean(device, operation)?);
        this.outcomes = or_contained(outcomes);
        Ok(this)
    }

    /// Runs the operation under a plan, judges it, and runs it once more without faults.
    pub fn attempt<D: Device + ?Sized + 'static>(
        &self,
        device: &Arc<FaultyDevice<D>>,
        plan: FaultPlan,
        operation: &mut Operation<'_>,
    ) -> Result<Attempt, SweepError> {
        let (end, trace) = run(device, Some(plan), operation);
        let Some(first) = trace.fired.first().cloned() else {
            device.reclaim(&self.books.snapshot);
            return Ok(Attempt::Quiet { counted: trace.counted });
        };
        let mut outcomes = judge_end(end, &trace, &first.fault);
        if let Some(detail) =
            self.first_difference(&trace.sequence[..trace.sequence.len().min(first.position + 1)])
        {
            outcomes.push(Outcome::Nondeterministic { detail });
        }
        outcomes.extend(self.books.compare(device)?);
        if !trace.misuses.is_empty() {
            outcomes.push(Outcome::Misused { misuses: trace.misuses });
        }
        device.reclaim(&self.books.snapshot);
        outcomes.extend(self.run_clean(device, operation)?);
        Ok(Attempt::Fired { first: first.fault, outcomes: or_contained(outcomes) })
    }

    /// Runs the operation without faults and says how that differs from the first time.
    fn run_clean<D: Device + ?Sized + 'static>(
        &self,
        device: &Arc<FaultyDevice<D>>,
        operation: &mut Operation<'_>,
    ) -> Result<Vec<Outcome>, SweepError> {
        let (end, trace) = run(device, None, operation);
        let mut outcomes = Vec::new();
        let dirty = |detail: String| Outcome::DirtyAfter { detail };
        match end {
            End::Panicked(message) => {
                outcomes.push(dirty(format!("a clean run afterwards panicked: {message}")))
            }
            End::Err(error) => {
                outcomes.push(dirty(format!("a clean run afterwards failed: {}", chain(error.as_ref()))));
            }
            End::Ok(output) => {
                outcomes.extend(
                    trace
                        .late
                        .first()
                        .map(|late| dirty(format!("a clean run afterwards left: {}", chain(late)))),
                );
                outcomes.extend(difference(&self.output, &output).map(dirty));
            }
        }
        let whole = trace.sequence.len() == self.sequence.len();
        let detail = self.first_difference(&trace.sequence).or_else(|| {
            (!whole).then(|| {
                format!(
                    "a clean run makes {} calls, the first made {}",
                    trace.sequence.len(),
                    self.sequence.len()
                )
            })
        });
        outcomes.extend(detail.map(|detail| Outcome::Nondeterministic { detail }));
        device.reclaim(&self.books.snapshot);
        let (held, baseline) = (pool_bytes(device)?, self.books.pool_bytes);
        if held != baseline && device.snapshot().refused_bytes() == 0 {
            outcomes.push(dirty(format!(
                "the pool holds {held} bytes, baseline {baseline}, after all has been freed"
            )));
        }
        Ok(outcomes)
    }

    /// Where calls begin to differ from those of the first clean run.
    fn first_difference(&self, sequence: &[Call]) -> Option<String> {
        let at = sequence.iter().zip(&self.sequence).position(|(now, first)| now != first);
        let at = at.or_else(|| (sequence.len() > self.sequence.len()).then_some(self.sequence.len()))?;
        let first = self.sequence.get(at).map_or("nothing", |call| call.name());
        Some(format!("call {} is {}, in the first clean run it was {first}", at + 1, sequence[at]))
    }
}

fn judge_end(end: End, trace: &Trace, first: &InjectedFault) -> Vec<Outcome> {
    let is_first = |error: &(dyn Error + 'static)| InjectedFault::find(error) == Some(first);
    let mut outcomes = Vec::new();
    match end {
        End::Panicked(message) => outcomes.push(Outcome::Panicked { message }),
        End::Err(error) if is_first(error.as_ref()) => {}
        End::Err(error) => outcomes.push(Outcome::Masked { reported: chain(error.as_ref()) }),
        // A launch may well succeed and its stream report the failure later, to whoever waits.
        End::Ok(_) if trace.late.iter().any(|late| is_first(late)) => {}
        End::Ok(_) => outcomes.push(Outcome::Swallowed),
    }
    let own = trace.late.iter().find(|late| InjectedFault::find(*late).is_none());
    outcomes.extend(
        own.map(|late| Outcome::DirtyAfter { detail: format!("a stream reported: {}", chain(late)) }),
    );
    outcomes
}

pub(crate) fn or_contained(outcomes: Vec<Outcome>) -> Vec<Outcome> {
    if outcomes.is_empty() { vec![Outcome::Contained] } else { outcomes }
}

fn pool_bytes<D: Device + ?Sized>(device: &FaultyDevice<D>) -> Result<u64, SweepError> {
    device.inner().pool().map(|pool| pool.used).map_err(SweepError::Pool)
}

fn difference(first: &[u8], now: &[u8]) -> Option<String> {
    if first == now {
        return None;
    }
    let differing = first.iter().zip(now).filter(|(a, b)| a != b).count();
    let at = first.iter().zip(now).position(|(a, b)| a != b).unwrap_or(first.len().min(now.len()));
    Some(format!(
        "a clean run afterwards gives {} bytes, {differing} of them other than the first time ({} bytes), from byte {at} on",
        now.len(),
        first.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_that_differ_say_how_much_and_where() {
        let told = |first: &[u8], now: &[u8]| difference(first, now).unwrap_or_default();
        assert_eq!(told(&[1, 2, 3, 4], &[1, 2, 3, 4]), "");
        let some = "a clean run afterwards gives 4 bytes, 2 of them other than the first time (4 bytes), from byte 1 on";
        assert_eq!(told(&[1, 2, 3, 4], &[1, 9, 3, 9]), some);
        let longer = "a clean run afterwards gives 3 bytes, 0 of them other than the first time (2 bytes), from byte 2 on";
        assert_eq!(told(&[1, 2], &[1, 2, 3]), longer);
    }

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Layer(&'static str, #[source] Option<Box<Layer>>);

    #[test]
    fn an_error_is_told_with_all_its_causes() {
        let cause = Layer("the pool is full", None);
        let error = Layer("attention failed", Some(Box::new(Layer("alloc", Some(Box::new(cause))))));
        assert_eq!(chain(&error), "attention failed: alloc: the pool is full");
    }
}
