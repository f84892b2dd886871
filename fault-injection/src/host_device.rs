//! A device of host memory, for sweeping launch code with neither a GPU nor a compiler.

mod memory;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use kernels::device::{
    Device, DeviceError, DeviceInfo, DeviceKind, DevicePtr, DeviceResult, EventId, GraphId, KernelId,
    LaunchConfig, PoolBytes, StreamId,
};
use kernels::source::KernelSpec;

pub use self::memory::HostMemory;
use self::memory::invalid;

type Body = dyn Fn(&mut HostMemory, LaunchConfig, &[u8]) -> DeviceResult<()> + Send + Sync;

/// Runs work at once, in the calling thread. A kernel is a Rust function registered under its entry name; any other kernel
/// loads and does nothing. Errors of work are reported by the next wait for its stream.
pub struct HostDevice {
    kernels: HashMap<String, Arc<Body>>,
    state: Mutex<State>,
}

struct State {
    memory: HostMemory,
    streams: BTreeMap<StreamId, Stream>,
    events: BTreeMap<EventId, Option<Instant>>,
    graphs: BTreeMap<GraphId, Arc<[Work]>>,
    loaded: Vec<KernelSpec>,
    launches: BTreeMap<String, u64>,
    next: u64,
}

#[derive(Default)]
struct Stream {
    error: Option<DeviceError>,
    capture: Option<Vec<Work>>,
}

#[derive(Clone)]
enum Work {
    CopyIn { dst: DevicePtr, data: Arc<[u8]> },
    CopyWithin { dst: DevicePtr, src: DevicePtr, bytes: u64 },
    Fill { dst: DevicePtr, value: u8, bytes: u64 },
    Launch { kernel: KernelId, config: LaunchConfig, params: Arc<[u8]> },
}

impl HostDevice {
    /// An empty device without kernels. `limit` caps its memory, in bytes.
    #[must_use]
    pub fn new(limit: Option<u64>) -> Self {
        let state = State {
            memory: HostMemory::new(limit),
            streams: BTreeMap::from([(StreamId::DEFAULT, Stream::default())]),
            events: BTreeMap::new(),
            graphs: BTreeMap::new(),
            loaded: Vec::new(),
            launches: BTreeMap::new(),
            next: 0,
        };
        Self { kernels: HashMap::new(), state: Mutex::new(state) }
    }

    /// The same device with a kernel: `body` gets the memory, the geometry and the parameter bytes of each launch.
    #[must_use]
    pub fn with_kernel(
        mut self,
        entry: &str,
        body: impl Fn(&mut HostMemory, LaunchConfig, &[u8]) -> DeviceResult<()> + Send + Sync + 'static,
    ) -> Self {
        self.kernels.insert(entry.to_owned(), Arc::new(body));
        self
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the work if its stream is capturing, else does it.
    fn put(&self, call: &'static str, stream: StreamId, work: Work) -> Result<(), DeviceError> {
        let mut state = self.lock();
        match &mut state.stream(call, stream)?.capture {
            Some(captured) => {
                captured.push(work);
                Ok(())
            }
            None => {
                self.perform(&mut state, stream, &work);
                Ok(())
            }
        }
    }

    fn perform(&self, state: &mut State, stream: StreamId, work: &Work) {
        if let Err(error) = self.attempt(state, work)
            && let Some(stream) = state.streams.get_mut(&stream)
        {
            stream.error.get_or_insert(error);
        }
    }

    fn attempt(&self, state: &mut State, work: &Work) -> Result<(), DeviceError> {
        match work {
            Work::CopyIn { dst, data } => {
                state.memory.bytes_mut(*dst, data.len() as u64)?.copy_from_slice(data);
            }
            Work::CopyWithin { dst, src, bytes } => {
                let copied = state.memory.bytes_mut(*src, *bytes)?.to_vec();
                state.memory.bytes_mut(*dst, *bytes)?.copy_from_slice(&copied);
            }
            Work::Fill { dst, value, bytes } => state.memory.bytes_mut(*dst, *bytes)?.fill(*value),
            Work::Launch { kernel, config, params } => {
                let entry = state.loaded[kernel.0 as usize].entry;
                *state.launches.entry(entry.to_owned()).or_default() += 1;
                if let Some(body) = self.kernels.get(entry) {
                    body(&mut state.memory, *config, params)?;
                }
            }
        }
        Ok(())
    }
}

impl State {
    fn stream(&mut self, call: &'static str, stream: StreamId) -> Result<&mut Stream, DeviceError> {
        let unknown = || invalid(call, "stream", &stream.0.to_string(), "a stream that was not destroyed");
        self.streams.get_mut(&stream).ok_or_else(unknown)
    }

    fn not_capturing(&mut self, call: &'static str, stream: StreamId) -> Result<&mut Stream, DeviceError> {
        let found = self.stream(call, stream)?;
        if found.capture.is_some() {
            return Err(DeviceError::Capture {
                call,
                state: format!("while stream {} is capturing", stream.0),
            });
        }
        Ok(found)
    }

    fn event(&mut self, call: &'static str, event: EventId) -> Result<&mut Option<Instant>, DeviceError> {
        let unknown = || invalid(call, "event", &event.0.to_string(), "an event that was not destroyed");
        self.events.get_mut(&event).ok_or_else(unknown)
    }

    fn report(&mut self, call: &'static str, stream: StreamId) -> Result<(), DeviceError> {
        self.not_capturing(call, stream)?.error.take().map_or(Ok(()), Err)
    }

    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

fn unknown_graph(call: &'static str, graph: GraphId) -> DeviceError {
    invalid(call, "graph", &graph.0.to_string(), "a graph that was not destroyed")
}

impl Device for HostDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            kind: DeviceKind::Simt,
            name: "host memory".to_owned(),
            capability: (9, 0),
            multiprocessors: 1,
            max_shared_bytes: 232_448,
            versions: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    fn create_stream(&self) -> Result<StreamId, DeviceError> {
        let mut state = self.lock();
        let stream = StreamId(state.fresh());
        state.streams.insert(stream, Stream::default());
        Ok(stream)
    }

    fn destroy_stream(&self, stream: StreamId) -> Result<(), DeviceError> {
        if stream == StreamId::DEFAULT {
            return Err(invalid(
                "destroy_stream",
                "stream",
                "the default stream",
                "a stream from create_stream",
            ));
        }
        let mut state = self.lock();
        let reported = state.report("destroy_stream", stream);
        if !matches!(
            reported,
            Err(DeviceError::Capture { .. } | DeviceError::InvalidArgument { argument: "stream", .. })
        ) {
            state.streams.remove(&stream);
        }
        reported
    }

    fn alloc(&self, bytes: u64, stream: StreamId) -> Result<DevicePtr, DeviceError> {
        let mut state = self.lock();
        state.not_capturing("alloc", stream)?;
        state.memory.alloc(bytes)
    }

    fn free(&self, ptr: DevicePtr, stream: StreamId) -> Result<(), DeviceError> {
        let mut state = self.lock();
        state.not_capturing("free", stream)?;
        state.memory.free(ptr)
    }

    fn copy_to_device(&self, dst: DevicePtr, src: &[u8], stream: StreamId) -> Result<(), DeviceError> {
        self.put("copy_to_device", stream, Work::CopyIn { dst, data: Arc::from(src) })
    }

    fn copy_to_host(&self, dst: &mut [u8], src: DevicePtr, stream: StreamId) -> Result<(), DeviceError> {
        let mut state = self.lock();
        state.report("copy_to_host", stream)?;
        dst.copy_from_slice(state.memory.bytes_mut(src, dst.len() as u64)?);
        Ok(())
    }

    fn copy_on_device(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), DeviceError> {
        self.put("copy_on_device", stream, Work::CopyWithin { dst, src, bytes })
    }

    fn memset(&self, dst: DevicePtr, value: u8, bytes: u64, stream: StreamId) -> Result<(), DeviceError> {
        self.put("memset", stream, Work::Fill { dst, value, bytes })
    }

    fn load_kernel(&self, spec: &KernelSpec) -> Result<KernelId, DeviceError> {
        let mut state = self.lock();
        let found = state.loaded.iter().position(|loaded| loaded == spec);
        let index = found.unwrap_or_else(|| {
            state.loaded.push(spec.clone());
            state.loaded.len() - 1
        });
        Ok(KernelId(index as u64))
    }

    fn launch(
        &self,
        kernel: KernelId,
        config: LaunchConfig,
        params: &[u8],
        stream: StreamId,
    ) -> Result<(), DeviceError> {
        if kernel.0 as usize >= self.lock().loaded.len() {
            return Err(invalid("launch", "kernel", &kernel.0.to_string(), "a kernel from load_kernel"));
        }
        self.put("launch", stream, Work::Launch { kernel, config, params: Arc::from(params) })
    }

    fn launch_counts(&self) -> Vec<(String, u64)> {
        self.lock().launches.iter().map(|(name, count)| (name.clone(), *count)).collect()
    }

    fn create_event(&self) -> Result<EventId, DeviceError> {
        let mut state = self.lock();
        let event = EventId(state.fresh());
        state.events.insert(event, None);
        Ok(event)
    }

    fn destroy_event(&self, event: EventId) -> Result<(), DeviceError> {
        let mut state = self.lock();
        state.event("destroy_event", event)?;
        state.events.remove(&event);
        Ok(())
    }

    fn record_event(&self, event: EventId, stream: StreamId) -> Result<(), DeviceError> {
        let mut state = self.lock();
        state.stream("record_event", stream)?;
        *state.event("record_event", event)? = Some(Instant::now());
        Ok(())
    }

    fn wait_event(&self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        let mut state = self.lock();
        state.stream("wait_event", stream)?;
        state.event("wait_event", event).map(|_| ())
    }

    fn elapsed_ms(&self, start: EventId, end: EventId) -> Result<f32, DeviceError> {
        let mut state = self.lock();
        let from = *state.event("elapsed_ms", start)?;
        let to = *state.event("elapsed_ms", end)?;
        match (from, to) {
            (Some(from), Some(to)) => Ok(to.saturating_duration_since(from).as_secs_f32() * 1e3),
            _ => Err(invalid("elapsed_ms", "event", "not recorded", "two recorded events")),
        }
    }

    fn begin_capture(&self, stream: StreamId) -> Result<(), DeviceError> {
        self.lock().not_capturing("begin_capture", stream)?.capture = Some(Vec::new());
        Ok(())
    }

    fn end_capture(&self, stream: StreamId) -> Result<GraphId, DeviceError> {
        let mut state = self.lock();
        let Some(work) = state.stream("end_capture", stream)?.capture.take() else {
            let state = format!("while stream {} is not capturing", stream.0);
            return Err(DeviceError::Capture { call: "end_capture", state });
        };
        let graph = GraphId(state.fresh());
        state.graphs.insert(graph, work.into());
        Ok(graph)
    }

    fn launch_graph(&self, graph: GraphId, stream: StreamId) -> Result<(), DeviceError> {
        let mut state = self.lock();
        state.not_capturing("launch_graph", stream)?;
        let work = state.graphs.get(&graph).cloned().ok_or_else(|| unknown_graph("launch_graph", graph))?;
        for item in work.iter() {
            self.perform(&mut state, stream, item);
        }
        Ok(())
    }

    fn destroy_graph(&self, graph: GraphId) -> Result<(), DeviceError> {
        self.lock().graphs.remove(&graph).map(|_| ()).ok_or_else(|| unknown_graph("destroy_graph", graph))
    }

    fn pool(&self) -> Result<PoolBytes, DeviceError> {
        let state = self.lock();
        let used = state.memory.used();
        Ok(PoolBytes { used, reserved: used, high_water: state.memory.high_water() })
    }

    fn reset_high_water(&self) -> Result<(), DeviceError> {
        self.lock().memory.reset_high_water();
        Ok(())
    }

    fn synchronize(&self, stream: StreamId) -> Result<(), DeviceError> {
        self.lock().report("synchronize", stream)
    }
}
