//! What the ledger remembers of each thing that a device has given out.

use std::collections::BTreeMap;

use kernels::device::{DevicePtr, StreamId};

use super::clock::{Clock, Moment};
use crate::call::Call;
use crate::site::Site;

/// What no two allocations share: an address is given out again, to any stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    address: u64,
    allocated: Moment,
}

/// One allocation, live or freed.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    pub ptr: DevicePtr,
    pub bytes: u64,
    pub allocated: Moment,
    pub site: Site,
    /// Last work of each stream that touched it.
    pub uses: BTreeMap<StreamId, (u64, Call)>,
    /// A free was asked for and made to fail, so nobody can be blamed for what is left.
    pub free_refused: bool,
    /// Where it was freed.
    pub freed: Option<Site>,
}

impl Memory {
    pub fn new(ptr: DevicePtr, bytes: u64, allocated: Moment, site: Site) -> Self {
        Self { ptr, bytes, allocated, site, uses: BTreeMap::new(), free_refused: false, freed: None }
    }

    /// Sets it apart from every other allocation, at the same address too.
    pub fn key(&self) -> Key {
        Key { address: self.ptr.0, allocated: self.allocated }
    }

    pub fn contains(&self, address: u64) -> bool {
        (self.ptr.0..self.ptr.0 + self.bytes).contains(&address)
    }

    /// Work on this memory that does not come before `clock`.
    pub fn unordered_use(&self, clock: &Clock) -> Option<(StreamId, Call)> {
        let late = |(stream, (time, _)): &(&StreamId, &(u64, Call))| {
            !Moment { stream: **stream, time: *time }.is_before(clock)
        };
        self.uses.iter().find(late).map(|(stream, (_, call))| (*stream, *call))
    }
}

/// Memory that a piece of recorded work touches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touch {
    pub address: u64,
    pub call: Call,
}

/// A stream.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    pub clock: Clock,
    pub site: Site,
    /// What its capture touches so far, and where it began.
    pub capture: Option<(Vec<Touch>, Site)>,
    pub destroy_refused: bool,
}

impl Stream {
    pub fn new(site: Site) -> Self {
        Self { clock: Clock::default(), site, capture: None, destroy_refused: false }
    }
}

/// An event.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub site: Site,
    /// What its last record covers.
    pub covers: Clock,
    pub destroy_refused: bool,
}

/// A graph.
#[derive(Clone, Debug)]
pub(crate) struct Graph {
    pub site: Site,
    pub touches: Vec<Touch>,
    pub destroy_refused: bool,
}
