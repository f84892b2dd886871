//! What a device has given out at one moment, to be compared with another moment.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use kernels::device::{DevicePtr, EventId, GraphId, StreamId};
use serde::{Deserialize, Serialize};

use super::Ledger;
use super::record::Key;
use crate::site::Site;

/// One allocation that has not been freed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveAllocation {
    /// Its size.
    pub bytes: u64,
    /// The stream it was allocated on.
    pub stream: u64,
    /// `file:line` that asked for it.
    pub site: String,
}

impl fmt::Display for LiveAllocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes on stream {} from {}", self.bytes, self.stream, self.site)
    }
}

/// Things other than memory that have to be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HandleKind {
    /// A stream.
    Stream,
    /// An event.
    Event,
    /// A graph.
    Graph,
    /// A stream that was left recording.
    OpenCapture,
    /// A kernel that the clean run did not load. Kernels are kept on purpose, but a failure must not load others.
    Module,
}

/// One such thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handle {
    /// What it is.
    pub kind: HandleKind,
    /// `file:line` that made it; for a module its name.
    pub site: String,
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            HandleKind::Stream => "stream",
            HandleKind::Event => "event",
            HandleKind::Graph => "graph",
            HandleKind::OpenCapture => "open capture",
            HandleKind::Module => "module",
        };
        write!(f, "{kind} from {}", self.site)
    }
}

/// What is live at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Size, stream, place and whether its free was made to fail.
    memory: BTreeMap<Key, (u64, StreamId, Site, bool)>,
    handles: BTreeMap<(HandleKind, u64), (Site, bool)>,
    modules: BTreeSet<String>,
}

impl Snapshot {
    /// The same with the modules of another moment.
    pub(crate) fn with_modules_of(self, other: &Self) -> Self {
        Self { modules: other.modules.clone(), ..self }
    }

    /// Bytes of all live allocations, as they were asked for.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.memory.values().map(|(bytes, ..)| bytes).sum()
    }

    /// Allocations that are live here and were not in `before`. Those whose free was made to fail are excused.
    #[must_use]
    pub fn allocations_since(&self, before: &Self) -> Vec<LiveAllocation> {
        let new =
            self.memory.iter().filter(|(key, (.., refused))| !refused && !before.memory.contains_key(key));
        new.map(|(_, (bytes, stream, site, _))| LiveAllocation {
            bytes: *bytes,
            stream: stream.0,
            site: site.describe(),
        })
        .collect()
    }

    /// Bytes of allocations whose free was made to fail.
    #[must_use]
    pub fn refused_bytes(&self) -> u64 {
        self.memory.values().filter(|(.., refused)| *refused).map(|(bytes, ..)| bytes).sum()
    }

    /// Allocations of `before` that are gone.
    #[must_use]
    pub fn missing_since(&self, before: &Self) -> Vec<LiveAllocation> {
        before.allocations_since(self)
    }

    /// Handles that are live here and were not in `before`.
    #[must_use]
    pub fn handles_since(&self, before: &Self) -> Vec<Handle> {
        let new =
            self.handles.iter().filter(|(key, (_, refused))| !refused && !before.handles.contains_key(key));
        let handles = new.map(|((kind, _), (site, _))| Handle { kind: *kind, site: site.describe() });
        let modules = self.modules.difference(&before.modules);
        handles.chain(modules.map(|label| Handle { kind: HandleKind::Module, site: label.clone() })).collect()
    }
}

/// Raw handles that are live now and were not in a snapshot.
#[derive(Debug, Default)]
pub(crate) struct Leftovers {
    pub memory: Vec<(DevicePtr, StreamId)>,
    pub captures: Vec<StreamId>,
    pub graphs: Vec<GraphId>,
    pub events: Vec<EventId>,
    pub streams: Vec<StreamId>,
}

impl Ledger {
    pub fn snapshot(&self) -> Snapshot {
        let memory = self.live.values();
        let memory = memory.map(|m| (m.key(), (m.bytes, m.allocated.stream, m.site.clone(), m.free_refused)));
        let streams = self.streams.iter().filter(|(id, _)| **id != StreamId::DEFAULT);
        let streams =
            streams.map(|(id, s)| ((HandleKind::Stream, id.0), (s.site.clone(), s.destroy_refused)));
        let events = self.events.iter();
        let events = events.map(|(id, e)| ((HandleKind::Event, id.0), (e.site.clone(), e.destroy_refused)));
        let graphs = self.graphs.iter();
        let graphs = graphs.map(|(id, g)| ((HandleKind::Graph, id.0), (g.site.clone(), g.destroy_refused)));
        let open = self.streams.iter().filter_map(|(id, s)| {
            s.capture.as_ref().map(|(_, site)| ((HandleKind::OpenCapture, id.0), (site.clone(), false)))
        });
        Snapshot {
            memory: memory.collect(),
            handles: streams.chain(events).chain(graphs).chain(open).collect(),
            modules: self.modules.values().cloned().collect(),
        }
    }

    /// What has to be given back to return to a snapshot.
    pub(crate) fn leftovers(&self, before: &Snapshot) -> Leftovers {
        let is_new = |kind, id| !before.handles.contains_key(&(kind, id));
        let memory = self.live.values().filter(|m| !before.memory.contains_key(&m.key()));
        let open = self
            .streams
            .iter()
            .filter(|(id, s)| s.capture.is_some() && is_new(HandleKind::OpenCapture, id.0));
        let streams =
            self.streams.keys().filter(|id| **id != StreamId::DEFAULT && is_new(HandleKind::Stream, id.0));
        Leftovers {
            memory: memory.map(|m| (m.ptr, m.allocated.stream)).collect(),
            captures: open.map(|(id, _)| *id).collect(),
            graphs: self.graphs.keys().filter(|id| is_new(HandleKind::Graph, id.0)).copied().collect(),
            events: self.events.keys().filter(|id| is_new(HandleKind::Event, id.0)).copied().collect(),
            streams: streams.copied().collect(),
        }
    }
}
