//! Work queues: what is put on a stream runs only when somebody waits for it.
//!
//! Running late and stream by stream makes a missing dependency between streams show: the other stream's work has
//! simply not happened.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use crate::device::{DeviceError, DevicePtr, EventId, KernelId, LaunchConfig, StreamId};

/// One piece of work.
#[derive(Clone)]
pub(super) enum Work {
    CopyIn { dst: DevicePtr, data: Arc<[u8]> },
    CopyWithin { dst: DevicePtr, src: DevicePtr, bytes: u64 },
    Fill { dst: DevicePtr, value: u8, bytes: u64 },
    Launch { kernel: KernelId, config: LaunchConfig, params: Arc<[u8]> },
    Free { ptr: DevicePtr },
    Record { event: EventId, generation: u64 },
    Wait { event: EventId, generation: u64 },
}

/// A stream's queue, and what went wrong in it.
#[derive(Default)]
pub(super) struct Stream {
    pub queue: VecDeque<Work>,
    /// Errors of finished work, not yet reported.
    pub errors: Vec<DeviceError>,
    /// Set when a launch had to be stopped: later work is skipped until the error has been reported.
    pub broken: bool,
    /// Work recorded since capture began.
    pub capture: Option<Vec<Work>>,
    /// Bytes whose release is queued.
    pub pending_free: u64,
}

/// What is known of an event.
#[derive(Default)]
pub(super) struct Event {
    /// Number of the last record call.
    pub recorded: u64,
    /// Stream of each record that has not happened yet.
    pub waiting: HashMap<u64, StreamId>,
    /// Last record that has happened, and when.
    pub happened: Option<(u64, Instant)>,
    /// The capturing stream of the last record, if that one was captured rather than queued.
    pub captured_on: Option<StreamId>,
    /// Destroyed by its owner; kept while work may refer to it.
    pub destroyed: bool,
}

/// An instantiated graph.
pub(super) struct Graph {
    pub work: Arc<[Work]>,
}
