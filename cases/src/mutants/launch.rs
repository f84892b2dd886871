//! Mutants of launch code, made at run time: a decorator changes what reaches the device, so that nothing is rebuilt.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kernels::device::{Device, DevicePtr, DeviceResult, KernelId, LaunchConfig, StreamId};
use kernels::source::KernelSpec;

named_kinds! {
    /// A wrong way to launch a kernel or to handle its scratch.
    LaunchChange:
    GridLess, "grid-less", "launches one block along x less";
    GridMore, "grid-more", "launches one block along x more";
    GridSwapped, "grid-swapped", "swaps the grid's x and y";
    BlockHalved, "block-halved", "launches half the threads of a block";
    SharedLess, "shared-less", "asks for 64 bytes of shared memory less";
    LaunchDropped, "launch-dropped", "reports success without launching: an error swallowed";
    OtherStream, "other-stream", "launches on a stream that nobody orders after the call's";
    ScratchLess, "scratch-less", "allocates 16 bytes of scratch less";
    ScratchKept, "free-dropped", "never frees scratch: the guard's free is disabled";
    FreedEarly, "freed-early", "frees scratch as soon as it is allocated";
    FreedOnOtherStream, "freed-on-other-stream", "frees scratch on a stream of its own";
    CopyDropped, "copy-dropped", "does not copy tables into scratch";
}

impl LaunchChange {
    /// Whether it is about scratch rather than one kernel's launch.
    #[must_use]
    pub fn is_of_scratch(self) -> bool {
        matches!(
            self,
            Self::ScratchLess
                | Self::ScratchKept
                | Self::FreedEarly
                | Self::FreedOnOtherStream
                | Self::CopyDropped
        )
    }
}

/// A launch mutant: a change of the launches of one kernel entry, or of the scratch of calls that launch it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaunchMutant {
    /// The kernel's entry point.
    pub entry: String,
    /// What is wrong.
    pub change: LaunchChange,
}

impl fmt::Display for LaunchMutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "launch:{} {}", self.entry, self.change.name())
    }
}

impl FromStr for LaunchMutant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.strip_prefix("launch:").and_then(|rest| rest.split_once(' '));
        let found = parts.and_then(|(entry, name)| {
            let change = LaunchChange::ALL.iter().copied().find(|change| change.name() == name)?;
            Some(Self { entry: entry.to_owned(), change })
        });
        found.ok_or_else(|| format!("launch mutant is `{text}`; accepted: launch:ENTRY CHANGE"))
    }
}

#[derive(Default)]
struct State {
    entries: HashMap<KernelId, &'static str>,
    /// Allocations that belong to the harness and are still to come.
    harness_left: usize,
    scratch: HashSet<DevicePtr>,
    other_stream: Option<StreamId>,
}

/// Passes every call on, but for those that its mutant is about.
pub struct MutatingDevice<D: ?Sized> {
    inner: Arc<D>,
    mutant: LaunchMutant,
    state: Mutex<State>,
}

impl<D: Device + ?Sized> MutatingDevice<D> {
    /// A device with one mistake.
    pub fn new(inner: Arc<D>, mutant: LaunchMutant) -> Self {
        Self { inner, mutant, state: Mutex::default() }
    }

    /// The next call comes with this many allocations of its caller; every later one is scratch.
    pub fn begin_call(&self, callers_allocations: usize) {
        let mut state = self.state();
        state.harness_left = callers_allocations;
        state.scratch.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is(&self, change: LaunchChange) -> bool {
        self.mutant.change == change
    }

    fn other_stream(&self) -> DeviceResult<StreamId> {
        if let Some(stream) = self.state().other_stream {
            return Ok(stream);
        }
        let stream = self.inner.create_stream()?;
        self.state().other_stream = Some(stream);
        Ok(stream)
    }

    /// The launch as the mutant makes it; `None` where it makes none.
    fn changed(&self, mut config: LaunchConfig) -> Option<LaunchConfig> {
        match self.mutant.change {
            LaunchChange::GridLess if config.grid[0] > 1 => config.grid[0] -= 1,
            LaunchChange::GridMore => config.grid[0] += 1,
            LaunchChange::GridSwapped => config.grid.swap(0, 1),
            LaunchChange::BlockHalved if config.block[0] > 1 => config.block[0] /= 2,
            LaunchChange::SharedLess => config.shared_bytes = config.shared_bytes.saturating_sub(64),
            LaunchChange::LaunchDropped => return None,
            _ => {}
        }
        Some(config)
    }
}

impl<D: Device + ?Sized> Device for MutatingDevice<D> {
    fn alloc(&self, bytes: u64, stream: StreamId) -> DeviceResult<DevicePtr> {
        let is_scratch = {
            let mut state = self.state();
            let callers = state.harness_left > 0;
            state.harness_left = state.harness_left.saturating_sub(1);
            !callers
        };
        let less = is_scratch && self.is(LaunchChange::ScratchLess) && bytes > 16;
        let ptr = self.inner.alloc(if less { bytes - 16 } else { bytes }, stream)?;
        if is_scratch {
            self.state().scratch.insert(ptr);
            if self.is(LaunchChange::FreedEarly) {
                self.inner.free(ptr, stream)?;
            }
        }
        Ok(ptr)
    }

    fn free(&self, ptr: DevicePtr, stream: StreamId) -> DeviceResult<()> {
        let is_scratch = self.state().scratch.remove(&ptr);
        match self.mutant.change {
            LaunchChange::ScratchKept | LaunchChange::FreedEarly if is_scratch => Ok(()),
            LaunchChange::FreedOnOtherStream if is_scratch => self.inner.free(ptr, self.other_stream()?),
            _ => self.inner.free(ptr, stream),
        }
    }

    fn copy_to_device(&self, dst: DevicePtr, src: &[u8], stream: StreamId) -> DeviceResult<()> {
        if self.is(LaunchChange::CopyDropped) && self.state().scratch.contains(&dst) {
            return Ok(());
        }
        self.inner.copy_to_device(dst, src, stream)
    }

    fn load_kernel(&self, spec: &KernelSpec) -> DeviceResult<KernelId> {
        let kernel = self.inner.load_kernel(spec)?;
        self.state().entries.insert(kernel, spec.entry);
        Ok(kernel)
    }

    fn launch(
        &self,
        kernel: KernelId,
        config: LaunchConfig,
        params: &[u8],
        stream: StreamId,
    ) -> DeviceResult<()> {
        let concerned = self.state().entries.get(&kernel).is_some_and(|entry| *entry == self.mutant.entry);
        if !concerned {
            return self.inner.launch(kernel, config, params, stream);
        }
        let Some(config) = self.changed(config) else { return Ok(()) };
        let stream = if self.is(LaunchChange::OtherStream) { self.other_stream()? } else { stream };
        self.inner.launch(kernel, config, params, stream)
    }

    kernels::forward_device! { inner:
        info create_stream destroy_stream copy_to_host copy_on_device memset launch_counts create_event
        destroy_event record_event wait_event elapsed_ms begin_capture end_capture launch_graph
        destroy_graph pool reset_high_water synchronize
    }
}
