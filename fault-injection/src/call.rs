//! The calls of a device that can be made to fail, and their kinds.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What a call is about. Plans choose the calls that may fail by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CallKind {
    /// Allocations.
    Alloc,
    /// Frees.
    Free,
    /// Copies, in any direction.
    Copy,
    /// Memory sets.
    Memset,
    /// Kernel launches.
    Launch,
    /// Everything about events.
    Event,
    /// Waiting for a stream.
    Synchronize,
    /// Compiling and loading kernels.
    ModuleLoad,
    /// Everything about graphs, capture included.
    Graph,
    /// Making and destroying streams.
    Stream,
}

impl CallKind {
    /// Every kind.
    pub const ALL: [Self; 10] = [
        Self::Alloc,
        Self::Free,
        Self::Copy,
        Self::Memset,
        Self::Launch,
        Self::Event,
        Self::Synchronize,
        Self::ModuleLoad,
        Self::Graph,
        Self::Stream,
    ];

    /// Name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::Free => "free",
            Self::Copy => "copy",
            Self::Memset => "memset",
            Self::Launch => "launch",
            Self::Event => "event",
            Self::Synchronize => "synchronize",
            Self::ModuleLoad => "module-load",
            Self::Graph => "graph",
            Self::Stream => "stream",
        }
    }
}

impl fmt::Display for CallKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is not a kind of call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "call kind is {value}; accepted: alloc, free, copy, memset, launch, event, synchronize, module-load, graph or stream"
)]
pub struct UnknownKind {
    /// The name.
    pub value: String,
}

impl FromStr for CallKind {
    type Err = UnknownKind;

    fn from_str(name: &str) -> Result<Self, UnknownKind> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| UnknownKind { value: name.to_owned() })
    }
}

/// A set of kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KindSet(u16);

impl KindSet {
    /// No kind.
    pub const NONE: Self = Self(0);
    /// Every kind.
    pub const ALL: Self = Self((1 << CallKind::ALL.len()) - 1);

    /// One kind alone.
    #[must_use]
    pub const fn only(kind: CallKind) -> Self {
        Self(1 << kind as u16)
    }

    /// This set and one more kind.
    #[must_use]
    pub const fn and(self, kind: CallKind) -> Self {
        Self(self.0 | 1 << kind as u16)
    }

    /// Whether a kind belongs to it.
    #[must_use]
    pub const fn contains(self, kind: CallKind) -> bool {
        self.0 & 1 << kind as u16 != 0
    }
}

impl FromIterator<CallKind> for KindSet {
    fn from_iter<I: IntoIterator<Item = CallKind>>(kinds: I) -> Self {
        kinds.into_iter().fold(Self::NONE, Self::and)
    }
}

/// One method of the device interface that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// `create_stream`.
    CreateStream,
    /// `destroy_stream`.
    DestroyStream,
    /// `alloc`.
    Alloc,
    /// `free`.
    Free,
    /// `copy_to_device`.
    CopyToDevice,
    /// `copy_to_host`.
    CopyToHost,
    /// `copy_on_device`.
    CopyOnDevice,
    /// `memset`.
    Memset,
    /// `load_kernel`.
    LoadKernel,
    /// `launch`.
    Launch,
    /// `create_event`.
    CreateEvent,
    /// `destroy_event`.
    DestroyEvent,
    /// `record_event`.
    RecordEvent,
    /// `wait_event`.
    WaitEvent,
    /// `elapsed_ms`.
    ElapsedMs,
    /// `begin_capture`.
    BeginCapture,
    /// `end_capture`.
    EndCapture,
    /// `launch_graph`.
    LaunchGraph,
    /// `destroy_graph`.
    DestroyGraph,
    /// `synchronize`.
    Synchronize,
}

impl Call {
    /// The method's name, as errors give it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::CreateStream => "create_stream",
            Self::DestroyStream => "destroy_stream",
            Self::Alloc => "alloc",
            Self::Free => "free",
            Self::CopyToDevice => "copy_to_device",
            Self::CopyToHost => "copy_to_host",
            Self::CopyOnDevice => "copy_on_device",
            Self::Memset => "memset",
            Self::LoadKernel => "load_kernel",
            Self::Launch => "launch",
            Self::CreateEvent => "create_event",
            Self::DestroyEvent => "destroy_event",
            Self::RecordEvent => "record_event",
            Self::WaitEvent => "wait_event",
            Self::ElapsedMs => "elapsed_ms",
            Self::BeginCapture => "begin_capture",
            Self::EndCapture => "end_capture",
            Self::LaunchGraph => "launch_graph",
            Self::DestroyGraph => "destroy_graph",
            Self::Synchronize => "synchronize",
        }
    }

    /// Its kind.
    #[must_use]
    pub fn kind(self) -> CallKind {
        match self {
            Self::Alloc => CallKind::Alloc,
            Self::Free => CallKind::Free,
            Self::CopyToDevice | Self::CopyToHost | Self::CopyOnDevice => CallKind::Copy,
            Self::Memset => CallKind::Memset,
            Self::LoadKernel => CallKind::ModuleLoad,
            Self::Launch => CallKind::Launch,
            Self::CreateEvent
            | Self::DestroyEvent
            | Self::RecordEvent
            | Self::WaitEvent
            | Self::ElapsedMs => CallKind::Event,
            Self::BeginCapture | Self::EndCapture | Self::LaunchGraph | Self::DestroyGraph => CallKind::Graph,
            Self::Synchronize => CallKind::Synchronize,
            Self::CreateStream | Self::DestroyStream => CallKind::Stream,
        }
    }

    /// Whether the call gives something back: these fail only where a plan asks for it.
    #[must_use]
    pub fn is_teardown(self) -> bool {
        matches!(self, Self::Free | Self::DestroyEvent | Self::DestroyGraph | Self::DestroyStream)
    }

    /// Whether the call puts work on a stream that can still fail after the call has returned.
    #[must_use]
    pub fn is_deferrable(self) -> bool {
        matches!(
            self,
            Self::CopyToDevice
                | Self::CopyOnDevice
                | Self::Memset
                | Self::Launch
                | Self::LaunchGraph
                | Self::RecordEvent
                | Self::WaitEvent
        )
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_hold_what_was_put_in() {
        let set: KindSet = [CallKind::Alloc, CallKind::Stream, CallKind::Alloc].into_iter().collect();
        let held: Vec<_> = CallKind::ALL.into_iter().filter(|kind| set.contains(*kind)).collect();
        assert_eq!(held, [CallKind::Alloc, CallKind::Stream]);
        assert!(CallKind::ALL.into_iter().all(|kind| KindSet::ALL.contains(kind)));
        assert!(!CallKind::ALL.into_iter().any(|kind| KindSet::NONE.contains(kind)));
    }

    #[test]
    fn every_kind_parses_back_from_its_name() {
        for kind in CallKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        assert!("allocs".parse::<CallKind>().unwrap_err().to_string().contains("allocs"));
    }
}
