//! A device that fails on request and keeps a ledger.

mod device;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kernels::device::{Device, DeviceError, DeviceRef, GraphId, StreamId};

use crate::call::Call;
use crate::injected::InjectedFault;
use crate::ledger::{Ledger, Misuse, Snapshot};
use crate::plan::{At, FaultPlan};

/// Wraps a device. Without a plan it passes every call on and only keeps its ledger; with one, the chosen calls fail.
///
/// A call that fails at once is not passed on: it had no effect. The exception is `end_capture`, which ends the capture
/// either way, as the driver does. What the device gave out before it was wrapped is not in the ledger, streams included.
pub struct FaultyDevice<D: Device + ?Sized> {
    inner: Arc<D>,
    state: Mutex<State>,
}

struct State {
    plan: Option<FaultPlan>,
    /// Calls that the plan has counted.
    counted: u64,
    /// Every call since the last [`FaultyDevice::begin`].
    sequence: Vec<Call>,
    fired: Vec<Fired>,
    /// Failures that their stream's next wait will report.
    pending: BTreeMap<StreamId, InjectedFault>,
    /// Failures of work that is being recorded.
    recording: BTreeMap<StreamId, InjectedFault>,
    /// Failures that a graph's next run will leave on its stream.
    recorded: BTreeMap<GraphId, InjectedFault>,
    ledger: Ledger,
}

/// A fault that has surfaced.
#[derive(Clone, Debug)]
pub(crate) struct Fired {
    pub fault: InjectedFault,
    /// Position in the sequence of calls at which it was reported.
    pub position: usize,
}

/// What a run did, from [`FaultyDevice::begin`] to [`FaultyDevice::settle`].
#[derive(Debug, Default)]
pub(crate) struct Trace {
    pub sequence: Vec<Call>,
    pub counted: u64,
    pub fired: Vec<Fired>,
    pub misuses: Vec<Misuse>,
    /// What the streams reported when they were waited for at the end, in order.
    pub late: Vec<DeviceError>,
}

impl<D: Device + ?Sized> FaultyDevice<D> {
    /// Wraps a device, with no plan in force.
    #[must_use]
    pub fn new(inner: Arc<D>) -> Arc<Self> {
        let state = State {
            plan: None,
            counted: 0,
            sequence: Vec::new(),
            fired: Vec::new(),
            pending: BTreeMap::new(),
            recording: BTreeMap::new(),
            recorded: BTreeMap::new(),
            ledger: Ledger::new(),
        };
        Arc::new(Self { inner, state: Mutex::new(state) })
    }

    /// The wrapped device.
    #[must_use]
    pub fn inner(&self) -> &Arc<D> {
        &self.inner
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic of the code under test may have poisoned the lock; every update below is complete in itself.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a plan in force, counting from zero, in place of any other. Failures still pending are dropped.
    pub fn arm(&self, plan: FaultPlan) {
        self.begin(Some(plan));
    }

    /// Ends the plan. Failures that are still pending will surface; no new ones are made.
    pub fn disarm(&self) {
        self.lock().plan = None;
    }

    /// Faults that have surfaced since the plan was put in force, in the order in which they were reported.
    #[must_use]
    pub fn fired(&self) -> Vec<InjectedFault> {
        self.lock().fired.iter().map(|fired| fired.fault.clone()).collect()
    }

    /// Calls since the last plan was put in force, in order, whether they failed or not.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.lock().sequence.clone()
    }

    /// What is live now, according to the ledger.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.lock().ledger.snapshot()
    }

    /// Rules of stream-ordered memory that were broken since the last call.
    #[must_use]
    pub fn take_misuses(&self) -> Vec<Misuse> {
        self.lock().ledger.take_misuses()
    }

    /// Starts a run, under a plan or without one.
    pub(crate) fn begin(&self, plan: Option<FaultPlan>) {
        let mut state = self.lock();
        state.plan = plan;
        state.counted = 0;
        state.sequence.clear();
        state.fired.clear();
        state.pending.clear();
        state.recording.clear();
        state.recorded.clear();
        state.ledger.forget_freed();
        let _ = state.ledger.take_misuses();
    }

    /// Ends a run: no more faults are made, every stream is waited for, and what happened is handed over.
    pub(crate) fn settle(&self) -> Trace
    where
        D: 'static,
    {
        let mut trace = {
            let mut state = self.lock();
            state.plan = None;
            // What surfaces from here on surfaces behind all these calls.
            Trace { sequence: state.sequence.clone(), counted: state.counted, ..Trace::default() }
        };
        let streams = self.lock().ledger.stream_ids();
        // A stream that was left recording cannot be waited for; the snapshot shows it.
        for stream in streams.into_iter().filter(|stream| !self.lock().ledger.is_capturing(*stream)) {
            if let Err(error) = self.synchronize(stream) {
                trace.late.push(error);
            }
        }
        let mut state = self.lock();
        state.sequence.clear();
        trace.fired = std::mem::take(&mut state.fired);
        let end = trace.sequence.len();
        trace.fired.iter_mut().for_each(|fired| fired.position = fired.position.min(end));
        trace.misuses = state.ledger.take_misuses();
        trace
    }

    /// Waits for every stream that is not recording, past the plan.
    pub(crate) fn drain(&self) -> Result<(), DeviceError> {
        let streams = {
            let ledger = &self.lock().ledger;
            ledger.stream_ids().into_iter().filter(|stream| !ledger.is_capturing(*stream)).collect::<Vec<_>>()
        };
        streams.into_iter().try_for_each(|stream| self.inner.synchronize(stream))
    }

    /// Gives back whatever is live now and was not in `before`, so that one leak is reported once.
    pub(crate) fn reclaim(&self, before: &Snapshot) {
        let leftovers = self.lock().ledger.leftovers(before);
        for stream in leftovers.captures {
            if let Ok(graph) = self.inner.end_capture(stream) {
                let _ = self.inner.destroy_graph(graph);
            }
            self.lock().ledger.capture_ended(stream, None);
        }
        // What the device refuses here stays in its own books, and the next comparison of the pool shows it.
        for graph in leftovers.graphs {
            let _ = self.destroy_graph(graph);
        }
        for event in leftovers.events {
            let _ = self.destroy_event(event);
        }
        for (ptr, stream) in leftovers.memory {
            if self.free(ptr, stream).is_err() {
                let _ = self.free(ptr, StreamId::DEFAULT);
            }
        }
        for stream in leftovers.streams {
            let _ = self.destroy_stream(stream);
        }
        let _ = self.drain();
    }
}

impl<D: Device + ?Sized + 'static> FaultyDevice<D> {
    /// The device behind the handle that launch code takes.
    #[must_use]
    pub fn handle(self: &Arc<Self>) -> DeviceRef {
        Arc::clone(self) as DeviceRef
    }
}

impl State {
    /// Lets a call through, or fails it. Work of `stream` that is to fail later is noted there.
    fn admit(&mut self, call: Call, stream: Option<StreamId>) -> Result<(), DeviceError> {
        let position = self.sequence.len();
        self.sequence.push(call);
        let Some(plan) = self.plan.filter(|plan| plan.counts(call)) else { return Ok(()) };
        self.counted += 1;
        if !plan.strikes(self.counted) {
            return Ok(());
        }
        let fault = InjectedFault::new(call, self.counted, plan.at);
        match (plan.at, stream) {
            (At::NextSynchronize, Some(stream)) => {
                // A stream reports its first failure; later ones are lost behind it.
                let recording = self.ledger.is_capturing(stream);
                let waiting = if recording { &mut self.recording } else { &mut self.pending };
                waiting.entry(stream).or_insert(fault);
                Ok(())
            }
            _ => Err(self.surface(fault, call, position)),
        }
    }

    /// Reports a failure that waits on a stream, if there is one.
    fn report_pending(&mut self, call: Call, stream: StreamId) -> Result<(), DeviceError> {
        match self.pending.remove(&stream) {
            Some(fault) => {
                let position = self.sequence.len().saturating_sub(1);
                Err(self.surface(fault, call, position))
            }
            None => Ok(()),
        }
    }

    fn surface(&mut self, fault: InjectedFault, call: Call, position: usize) -> DeviceError {
        let error = fault.error(call);
        self.fired.push(Fired { fault, position });
        error
    }
}
