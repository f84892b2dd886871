//! The device interface: the stream-ordered part of a GPU driver's API, and nothing else.
//!
//! Every backend and every decorator (fault injection, ledgers) implements [`Device`], so what is tested on one
//! is what runs on another. All work is ordered by stream; nothing is promised to have happened before
//! [`Device::synchronize`] on that stream, or a [`Device::copy_to_host`], returns.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::source::KernelSpec;

/// A shared handle to a device. Guards keep one, so that a scratch buffer can outlive the call that made it.
pub type DeviceRef = Arc<dyn Device>;

/// Which backend a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// CUDA source compiled for the host, one fiber per lane.
    Simt,
    /// An NVIDIA GPU through the driver API.
    Cuda,
    /// This machine's own memory: where a foreign kernel for the CPU runs. No [`Device`] is of this kind.
    Host,
}

impl DeviceKind {
    /// The word on the command line and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Simt => "simt",
            Self::Cuda => "cuda",
            Self::Host => "host",
        }
    }
}

/// What a device is and how much it has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// Which backend.
    pub kind: DeviceKind,
    /// Name as the driver gives it; for `simt` the host compiler's name and version.
    pub name: String,
    /// Compute capability (major, minor); `simt` claims the one its instruction models follow.
    pub capability: (u32, u32),
    /// Number of streaming multiprocessors; `simt` reports a configured figure.
    pub multiprocessors: u32,
    /// Largest dynamic shared memory of one block, opt-in limit included, in bytes.
    pub max_shared_bytes: u32,
    /// Driver and compiler versions, for records.
    pub versions: String,
}

/// A device address. On `simt` it is a host address, on a GPU a `CUdeviceptr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// The null address.
    pub const NULL: Self = Self(0);

    /// The address `bytes` further on.
    #[must_use]
    pub fn offset(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }

    /// Whether this is the null address.
    #[must_use]
    pub fn is_null(self) -> bool {
        self.0 == 0
    }
}

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);
    };
}
handle!(/// A stream of one device. `StreamId::DEFAULT` exists as long as the device does.
    StreamId);
handle!(/// An event of one device.
    EventId);
handle!(/// An instantiated graph of one device.
    GraphId);
handle!(/// A loaded kernel of one device.
    KernelId);

impl StreamId {
    /// The stream that every device has from the start.
    pub const DEFAULT: Self = Self(0);
}

/// Launch geometry. Blocks and threads per axis, dynamic shared memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LaunchConfig {
    /// Thread blocks along x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
}

/// Bytes of the device's stream-ordered pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolBytes {
    /// Bytes handed out and not yet freed in stream order (exact after a synchronise).
    pub used: u64,
    /// Bytes the pool holds from the system.
    pub reserved: u64,
    /// Largest `used` since the last [`Device::reset_high_water`].
    pub high_water: u64,
}

/// What a checked run of a kernel found, one per distinct place.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Finding {
    /// Kind of the finding.
    pub kind: FindingKind,
    /// One line: what happened, to which bytes of which allocation or of shared memory, by which lane and block.
    pub message: String,
    /// `file:line` of the access that completed the finding.
    pub site: Option<String>,
    /// `file:line` of the other party: the earlier access of a race, the other barrier.
    pub other_site: Option<String>,
    /// How many times it was seen in this launch.
    pub count: u64,
}

/// Kinds of findings of a checked run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FindingKind {
    /// Two lanes touched the same shared byte with no barrier between, one of them writing.
    SharedRace,
    /// Two thread blocks touched the same global byte, one of them writing.
    GlobalRace,
    /// An access outside every live allocation.
    OutOfBounds,
    /// An access to an allocation that had been freed.
    UseAfterFree,
    /// An address not a multiple of the access's width.
    Misaligned,
    /// A read of a byte that nothing wrote.
    Uninitialised,
    /// Lanes waiting at different barriers, or a shuffle whose mask does not match.
    Divergence,
    /// Every lane waits and none can go on.
    Deadlock,
    /// Bytes after an allocation changed (fast mode's canary).
    Canary,
    /// A foreign kernel does not keep to `attest_kernel.h`.
    Interface,
    /// A foreign kernel wrote to an input.
    InputWritten,
    /// A foreign kernel's work went on after its call had returned, or not in the order of the given stream.
    WorkAfterReturn,
    /// A foreign kernel keeps more memory with every call.
    Leak,
    /// A foreign kernel left an error behind, or a state in which later code fails.
    LingeringError,
}

/// A failed device call. `source()` leads to the cause, down to an injected fault's token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The pool cannot give that many bytes.
    #[error("out of memory: {requested} bytes asked for, {used} of the pool in use{}", limit.map(|l| format!(", limit {l}")).unwrap_or_default())]
    OutOfMemory {
        /// Bytes asked for.
        requested: u64,
        /// Bytes in use at that moment.
        used: u64,
        /// Ceiling of the pool, if it has one.
        limit: Option<u64>,
    },
    /// An argument of the call is not acceptable.
    #[error("{call}: {argument} is {value}; accepted: {accepted}")]
    InvalidArgument {
        /// The call, for example `launch`.
        call: &'static str,
        /// The argument's name.
        argument: &'static str,
        /// Its value.
        value: String,
        /// What would be accepted.
        accepted: String,
    },
    /// The kernel does not compile.
    #[error("kernel {kernel} does not compile with {compiler}:\n{log}")]
    Compile {
        /// File and entry.
        kernel: String,
        /// Compiler and version.
        compiler: String,
        /// Its log.
        log: String,
    },
    /// The surroundings failed: no compiler, no driver, cache not writable. Never a verdict on a kernel.
    #[error("{0}")]
    Environment(String),
    /// A checked run found faults of the kernel.
    #[error("{}", display_findings(.0))]
    Findings(Vec<Finding>),
    /// The driver reports an error of the kernel or of the call.
    #[error("{call}: {code} ({message})")]
    Driver {
        /// The call that reported it; asynchronous errors surface late.
        call: &'static str,
        /// The driver's symbolic code, such as `CUDA_ERROR_ILLEGAL_ADDRESS`.
        code: String,
        /// Its text.
        message: String,
        /// Whether the context is lost.
        sticky: bool,
    },
    /// The call is not allowed while the stream is being captured, or the reverse.
    #[error("{call}: not allowed {state}")]
    Capture {
        /// The call.
        call: &'static str,
        /// For example `while stream 1 is capturing`.
        state: String,
    },
    /// The backend cannot do this at all.
    #[error("{device} does not support {what}")]
    Unsupported {
        /// The device's name.
        device: String,
        /// What was asked.
        what: String,
    },
    /// A decorator made this call fail on purpose, or wraps another error.
    #[error("{call} failed")]
    Other {
        /// The call.
        call: &'static str,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

fn display_findings(findings: &[Finding]) -> String {
    let mut text = String::new();
    for (i, f) in findings.iter().enumerate() {
        if i > 0 {
            text.push('\n');
        }
        text.push_str(&f.message);
        if let Some(site) = &f.site {
            text.push_str(&format!("\n  at {site}"));
        }
        if let Some(site) = &f.other_site {
            text.push_str(&format!("\n  and {site}"));
        }
    }
    text
}

/// Result of a device call.
pub type DeviceResult<T> = Result<T, DeviceError>;

/// A device: stream-ordered memory, copies, launches, events, graphs.
///
/// Implementations are thread-safe; calls from several threads on one stream are ordered as they arrive.
/// Handles of one device are meaningless to another. Destroying or freeing an unknown handle is
/// [`DeviceError::InvalidArgument`], never undefined behaviour.
pub trait Device: Send + Sync {
    /// What the device is. Never fails and never touches the stream.
    fn info(&self) -> DeviceInfo;

    /// A new stream that runs independently of the others.
    fn create_stream(&self) -> DeviceResult<StreamId>;
    /// A new stream whose work gives way: where blocks of several streams wait for a multiprocessor, those of others go
    /// first. A device without priorities gives an ordinary stream.
    fn create_background_stream(&self) -> Result<StreamId, DeviceError> {
        self.create_stream()
    }
    /// Drains and destroys a stream; the default stream cannot be destroyed.
    fn destroy_stream(&self, stream: StreamId) -> DeviceResult<()>;

    /// `bytes` of device memory, aligned to at least 16 bytes, usable by work put on `stream` from now on.
    /// Contents are undefined (checked devices say so when they are read). Zero bytes is an error.
    /// Not allowed while `stream` is capturing.
    fn alloc(&self, bytes: u64, stream: StreamId) -> DeviceResult<DevicePtr>;
    /// Returns an allocation to the pool once the work already on `stream` is done. `ptr` is exactly what
    /// [`Device::alloc`] returned.
    fn free(&self, ptr: DevicePtr, stream: StreamId) -> DeviceResult<()>;

    /// Copies host bytes to the device; `src` is read before the call returns.
    fn copy_to_device(&self, dst: DevicePtr, src: &[u8], stream: StreamId) -> DeviceResult<()>;
    /// Copies device bytes to the host. Waits for the stream: on return `dst` is filled and earlier asynchronous
    /// errors of the stream have been reported.
    fn copy_to_host(&self, dst: &mut [u8], src: DevicePtr, stream: StreamId) -> DeviceResult<()>;
    /// Copies `bytes` from one device address to another, in stream order.
    fn copy_on_device(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
        stream: StreamId,
    ) -> DeviceResult<()>;
    /// Sets `bytes` bytes to `value`, in stream order.
    fn memset(&self, dst: DevicePtr, value: u8, bytes: u64, stream: StreamId) -> DeviceResult<()>;

    /// Compiles (or finds in the cache) and loads one kernel. Repeated calls return the same handle.
    fn load_kernel(&self, spec: &KernelSpec) -> DeviceResult<KernelId>;
    /// Puts one launch on the stream. `params` are the bytes of the kernel's one parameter struct.
    /// Grid, block and shared memory are checked against the device's limits before anything is queued.
    fn launch(
        &self,
        kernel: KernelId,
        config: LaunchConfig,
        params: &[u8],
        stream: StreamId,
    ) -> DeviceResult<()>;
    /// Number of launches so far per kernel entry name, graph replays included.
    fn launch_counts(&self) -> Vec<(String, u64)>;

    /// A new event.
    fn create_event(&self) -> DeviceResult<EventId>;
    /// Destroys an event.
    fn destroy_event(&self, event: EventId) -> DeviceResult<()>;
    /// Marks the present end of `stream`.
    fn record_event(&self, event: EventId, stream: StreamId) -> DeviceResult<()>;
    /// Makes later work of `stream` wait for the event's last record.
    fn wait_event(&self, stream: StreamId, event: EventId) -> DeviceResult<()>;
    /// Milliseconds between two recorded events, both complete.
    fn elapsed_ms(&self, start: EventId, end: EventId) -> DeviceResult<f32>;

    /// Starts recording the stream's work into a graph instead of running it.
    fn begin_capture(&self, stream: StreamId) -> DeviceResult<()>;
    /// Ends the recording and instantiates it.
    fn end_capture(&self, stream: StreamId) -> DeviceResult<GraphId>;
    /// Runs a graph on a stream.
    fn launch_graph(&self, graph: GraphId, stream: StreamId) -> DeviceResult<()>;
    /// Destroys a graph.
    fn destroy_graph(&self, graph: GraphId) -> DeviceResult<()>;

    /// Bytes of the pool. `used` is exact once every stream with pending frees has been synchronised.
    fn pool(&self) -> DeviceResult<PoolBytes>;
    /// Sets the high-water mark to the present use.
    fn reset_high_water(&self) -> DeviceResult<()>;

    /// Waits for the stream and reports the first error of its work.
    fn synchronize(&self, stream: StreamId) -> DeviceResult<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_called_by_the_words_of_the_command_line() {
        let kinds = [DeviceKind::Simt, DeviceKind::Cuda, DeviceKind::Host];
        assert_eq!(kinds.map(DeviceKind::name), ["simt", "cuda", "host"]);
    }

    #[test]
    fn findings_are_shown_one_after_another_with_both_parties() {
        let finding = |message: &str, site: Option<&str>, other_site: Option<&str>| Finding {
            kind: FindingKind::SharedRace,
            message: message.to_owned(),
            site: site.map(str::to_owned),
            other_site: other_site.map(str::to_owned),
            count: 1,
        };
        let race = finding("a race", Some("mma.cu:7"), Some("mma.cu:5"));
        let shown = DeviceError::Findings(vec![race, finding("a read", None, None)]).to_string();
        assert_eq!(shown, "a race\n  at mma.cu:7\n  and mma.cu:5\na read");
    }
}
