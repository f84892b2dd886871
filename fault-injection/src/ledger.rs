//! The second set of books: everything that a device has given out, kept beside the device's own pool.
//!
//! It knows sizes, streams and places. Order between streams is tracked with vector clocks: work queued on a stream comes
//! after that stream's earlier work, after what the events it waited for cover, and after whatever the host had waited
//! for when it was queued.

mod clock;
mod misuse;
mod record;
mod snapshot;

use std::collections::BTreeMap;

use kernels::device::{DevicePtr, EventId, GraphId, KernelId, StreamId};

pub(crate) use self::clock::Clock;
use self::clock::Moment;
pub use self::misuse::{Misuse, MisuseKind};
use self::record::{Event, Graph, Memory, Stream, Touch};
pub use self::snapshot::{Handle, HandleKind, LiveAllocation, Snapshot};
use crate::call::Call;
use crate::site::Site;

/// A device's allocations, streams, events, graphs and modules, and the rules broken with them.
pub(crate) struct Ledger {
    live: BTreeMap<u64, Memory>,
    freed: BTreeMap<u64, Memory>,
    streams: BTreeMap<StreamId, Stream>,
    events: BTreeMap<EventId, Event>,
    graphs: BTreeMap<GraphId, Graph>,
    modules: BTreeMap<KernelId, String>,
    /// What the host has waited for.
    host: Clock,
    misuses: Vec<Misuse>,
}

impl Ledger {
    pub fn new() -> Self {
        let default = (StreamId::DEFAULT, Stream::new(Site::here()));
        Self {
            live: BTreeMap::new(),
            freed: BTreeMap::new(),
            streams: BTreeMap::from([default]),
            events: BTreeMap::new(),
            graphs: BTreeMap::new(),
            modules: BTreeMap::new(),
            host: Clock::default(),
            misuses: Vec::new(),
        }
    }

    /// Puts one piece of work on a stream and returns its place in the order. `None` for a stream that is not in the ledger:
    /// nothing is known of its order, so nobody is blamed for it.
    fn advance(&mut self, stream: StreamId) -> Option<Moment> {
        let record = self.streams.get_mut(&stream)?;
        record.clock.merge(&self.host);
        Some(Moment { stream, time: record.clock.advance(stream) })
    }

    fn clock(&self, stream: StreamId) -> Clock {
        self.streams.get(&stream).map(|s| s.clock.clone()).unwrap_or_default()
    }

    fn blame(&mut self, kind: MisuseKind, message: String, site: &Site, other: Option<&Site>) {
        let other_site = other.map(Site::describe);
        self.misuses.push(Misuse { kind, message, site: site.describe(), other_site });
    }

    // Memory

    pub fn allocated(&mut self, ptr: DevicePtr, bytes: u64, stream: StreamId) {
        // The pool hands addresses out again: what lay there before is gone.
        self.freed.retain(|_, old| old.ptr.0 + old.bytes <= ptr.0 || ptr.0 + bytes <= old.ptr.0);
        let allocated = self.advance(stream).unwrap_or(Moment { stream, time: 0 });
        self.live.insert(ptr.0, Memory::new(ptr, bytes, allocated, Site::here()));
    }

    /// A free that the device has accepted.
    pub fn freed(&mut self, ptr: DevicePtr, stream: StreamId) {
        let site = Site::here();
        let known = self.advance(stream).is_some();
        let Some(mut memory) = self.live.remove(&ptr.0) else { return };
        if known {
            self.judge_free(&memory, stream, &site);
        }
        memory.freed = Some(site);
        self.freed.insert(ptr.0, memory);
    }

    fn judge_free(&mut self, memory: &Memory, stream: StreamId, site: &Site) {
        let clock = self.clock(stream);
        let what = format!("{} bytes allocated on stream {}", memory.bytes, memory.allocated.stream.0);
        let unordered = memory.unordered_use(&clock);
        if stream != memory.allocated.stream && (unordered.is_some() || !memory.allocated.is_before(&clock)) {
            let message = format!("{what}, freed on stream {}, which is not ordered after it", stream.0);
            self.blame(MisuseKind::WrongStreamFree, message, site, Some(&memory.site));
        } else if let Some((user, call)) = unordered {
            let message = format!(
                "{what}, freed on stream {}, while {call} on stream {} may still be running",
                stream.0, user.0
            );
            self.blame(MisuseKind::FreeBeforeLastUse, message, site, Some(&memory.site));
        }
    }

    /// A free that the device has turned down.
    pub fn free_rejected(&mut self, ptr: DevicePtr, stream: StreamId) {
        if self.live.contains_key(&ptr.0) {
            return;
        }
        let site = Site::here();
        match self.freed.get(&ptr.0).cloned() {
            Some(old) => {
                let message = format!("{} bytes, freed again on stream {}", old.bytes, stream.0);
                self.blame(MisuseKind::DoubleFree, message, &site, old.freed.as_ref());
            }
            None => {
                let message = format!("address {:#x} on stream {}", ptr.0, stream.0);
                self.blame(MisuseKind::UnknownFree, message, &site, None);
            }
        }
    }

    /// A free that was made to fail.
    pub fn free_refused(&mut self, ptr: DevicePtr) {
        if let Some(memory) = self.live.get_mut(&ptr.0) {
            memory.free_refused = true;
        }
    }

    // Work

    /// Work that touches the allocations behind these addresses.
    pub fn work(&mut self, call: Call, stream: StreamId, addresses: impl IntoIterator<Item = u64>) {
        let touches = addresses.into_iter().map(|address| Touch { address, call });
        let capture = self.streams.get_mut(&stream).and_then(|record| record.capture.as_mut());
        if let Some((captured, _)) = capture {
            captured.extend(touches);
            return;
        }
        let touches: Vec<_> = touches.collect();
        self.queue(stream, &touches);
    }

    fn queue(&mut self, stream: StreamId, touches: &[Touch]) {
        let moment = self.advance(stream);
        let clock = self.clock(stream);
        for touch in touches {
            self.touch(*touch, stream, moment, &clock);
        }
    }

    fn touch(&mut self, touch: Touch, stream: StreamId, moment: Option<Moment>, clock: &Clock) {
        let Touch { address, call } = touch;
        let found = self.live.range_mut(..=address).next_back().map(|(_, memory)| memory);
        if let Some(memory) = found.filter(|memory| memory.contains(address)) {
            let Some(moment) = moment else { return };
            memory.uses.insert(moment.stream, (moment.time, call));
            if !memory.allocated.is_before(clock) {
                let message = format!(
                    "{call} on stream {} touches {} bytes allocated on stream {}, which it is not ordered after",
                    moment.stream.0, memory.bytes, memory.allocated.stream.0
                );
                let allocated = memory.site.clone();
                self.blame(MisuseKind::UseBeforeAllocation, message, &Site::here(), Some(&allocated));
            }
            return;
        }
        let found = self.freed.range(..=address).next_back().map(|(_, memory)| memory);
        if let Some(memory) = found.filter(|memory| memory.contains(address)).cloned() {
            let message = format!(
                "{call} on stream {} touches byte {} of {} bytes that were freed",
                stream.0,
                address - memory.ptr.0,
                memory.bytes
            );
            self.blame(MisuseKind::UseAfterFree, message, &Site::here(), memory.freed.as_ref());
        }
    }

    /// Addresses of known memory among the 8-byte words of a kernel's parameters.
    pub fn pointers_in(&self, params: &[u8]) -> Vec<u64> {
        let known = |map: &BTreeMap<u64, Memory>, address: u64| {
            map.range(..=address).next_back().is_some_and(|(_, memory)| memory.contains(address))
        };
        let words = params.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
        words.filter(|&address| known(&self.live, address) || known(&self.freed, address)).collect()
    }

    /// What waiting for a stream from now on covers.
    pub fn covered_by(&self, stream: StreamId) -> Clock {
        self.clock(stream)
    }

    /// The host has waited for all that `covered` covers.
    pub fn waited(&mut self, covered: &Clock) {
        self.host.merge(covered);
    }

    // Handles

    pub fn stream_created(&mut self, stream: StreamId) {
        self.streams.insert(stream, Stream::new(Site::here()));
    }

    pub fn stream_destroyed(&mut self, stream: StreamId) {
        let covered = self.clock(stream);
        self.waited(&covered);
        self.streams.remove(&stream);
    }

    pub fn event_created(&mut self, event: EventId) {
        let record = Event { site: Site::here(), covers: Clock::default(), destroy_refused: false };
        self.events.insert(event, record);
    }

    pub fn event_destroyed(&mut self, event: EventId) {
        self.events.remove(&event);
    }

    pub fn event_recorded(&mut self, event: EventId, stream: StreamId) {
        self.advance(stream);
        let clock = self.clock(stream);
        if let Some(event) = self.events.get_mut(&event) {
            event.covers = clock;
        }
    }

    pub fn event_awaited(&mut self, stream: StreamId, event: EventId) {
        let covers = self.events.get(&event).map(|event| event.covers.clone()).unwrap_or_default();
        self.advance(stream);
        if let Some(record) = self.streams.get_mut(&stream) {
            record.clock.merge(&covers);
        }
    }

    /// The host knows that an event has happened.
    pub fn event_happened(&mut self, event: EventId) {
        if let Some(event) = self.events.get(&event) {
            self.host.merge(&event.covers);
        }
    }

    pub fn capture_begun(&mut self, stream: StreamId) {
        if let Some(record) = self.streams.get_mut(&stream) {
            record.capture = Some((Vec::new(), Site::here()));
        }
    }

    /// A capture has ended, with a graph or without.
    pub fn capture_ended(&mut self, stream: StreamId, graph: Option<GraphId>) {
        let captured = self.streams.get_mut(&stream).and_then(|record| record.capture.take());
        if let Some(graph) = graph {
            let touches = captured.map(|(touches, _)| touches).unwrap_or_default();
            self.graphs.insert(graph, Graph { site: Site::here(), touches, destroy_refused: false });
        }
    }

    pub fn is_capturing(&self, stream: StreamId) -> bool {
        self.streams.get(&stream).is_some_and(|stream| stream.capture.is_some())
    }

    pub fn graph_launched(&mut self, graph: GraphId, stream: StreamId) {
        let touches = self.graphs.get(&graph).map(|graph| graph.touches.clone()).unwrap_or_default();
        self.queue(stream, &touches);
    }

    pub fn graph_destroyed(&mut self, graph: GraphId) {
        self.graphs.remove(&graph);
    }

    pub fn module_loaded(&mut self, kernel: KernelId, label: String) {
        self.modules.insert(kernel, label);
    }

    pub fn stream_destroy_refused(&mut self, stream: StreamId) {
        if let Some(record) = self.streams.get_mut(&stream) {
            record.destroy_refused = true;
        }
    }

    pub fn event_destroy_refused(&mut self, event: EventId) {
        if let Some(event) = self.events.get_mut(&event) {
            event.destroy_refused = true;
        }
    }

    pub fn graph_destroy_refused(&mut self, graph: GraphId) {
        if let Some(graph) = self.graphs.get_mut(&graph) {
            graph.destroy_refused = true;
        }
    }

    // Reading

    pub fn stream_ids(&self) -> Vec<StreamId> {
        self.streams.keys().copied().collect()
    }

    /// Rules broken since the last call.
    pub fn take_misuses(&mut self) -> Vec<Misuse> {
        std::mem::take(&mut self.misuses)
    }

    /// Forgets where freed memory lay: nothing that is queued may still refer to it.
    pub fn forget_freed(&mut self) {
        self.freed.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: StreamId = StreamId::DEFAULT;

    fn freed(ledger: &mut Ledger, from: u64, bytes: u64) {
        ledger.allocated(DevicePtr(from), bytes, STREAM);
        ledger.freed(DevicePtr(from), STREAM);
    }

    /// Whether work at an address counts as use after free.
    fn blamed(ledger: &mut Ledger, address: u64) -> bool {
        ledger.work(Call::Memset, STREAM, [address]);
        !ledger.take_misuses().is_empty()
    }

    /// Three neighbours of 64 bytes from 1000 on, freed; then the pool gives out `bytes` from `from` on.
    fn given_out_again(from: u64, bytes: u64) -> Ledger {
        let mut ledger = Ledger::new();
        for start in [1000, 1064, 1128] {
            freed(&mut ledger, start, 64);
        }
        ledger.allocated(DevicePtr(from), bytes, STREAM);
        ledger
    }

    #[test]
    fn memory_given_out_again_is_not_what_was_freed_there_and_its_neighbours_still_are() {
        let mut ledger = given_out_again(1064, 64);
        let blamed = [999, 1000, 1063, 1064, 1127, 1128, 1191, 1192].map(|at| blamed(&mut ledger, at));
        assert_eq!(blamed, [false, true, true, false, false, true, true, false]);
    }

    #[test]
    fn an_allocation_is_told_from_an_earlier_one_at_its_address_on_whatever_stream() {
        let (ptr, other) = (DevicePtr(1000), StreamId(1));
        for stream in [STREAM, other] {
            let mut ledger = Ledger::new();
            ledger.stream_created(other);
            ledger.allocated(ptr, 64, STREAM);
            let before = ledger.snapshot();
            ledger.freed(ptr, STREAM);
            ledger.allocated(ptr, 64, stream);
            let after = ledger.snapshot();
            let [new] = after.allocations_since(&before).try_into().expect("one allocation is new");
            assert_eq!((new.stream, after.missing_since(&before).len()), (stream.0, 1));
        }
    }

    #[test]
    fn freed_memory_is_forgotten_when_any_of_its_bytes_is_given_out_again() {
        for (from, bytes, gone) in [(1010, 10, 1000), (990, 11, 1063), (1063, 1, 1000), (1191, 100, 1128)] {
            let mut ledger = given_out_again(from, bytes);
            assert!(!blamed(&mut ledger, gone), "{bytes} bytes at {from}");
            assert!(blamed(&mut ledger, 1064), "{bytes} bytes at {from} leave the second as it was");
        }
    }
}
