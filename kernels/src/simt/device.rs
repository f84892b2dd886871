//! The device interface: checks the arguments of each call and puts work on streams.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::compile::{self, Compiler};
use super::executor::State;
use super::fiber::SHARED_BYTES;
use super::global_shadow::GlobalShadow;
use super::launch;
use super::memory::Memory;
use super::module::Module;
use super::options::{Mode, SimtOptions};
use super::stream::{Event, Graph, Stream, Work};
use crate::device::{
    Device, DeviceError, DeviceInfo, DeviceKind, DevicePtr, DeviceResult, EventId, GraphId, KernelId,
    LaunchConfig, PoolBytes, StreamId,
};
use crate::source::KernelSpec;

/// CUDA source compiled for the host, one fiber per lane. See the [module documentation](super).
pub struct SimtDevice {
    options: SimtOptions,
    compiler: Arc<Compiler>,
    cache: PathBuf,
    state: Mutex<State>,
}

impl SimtDevice {
    /// A device with its own memory and streams.
    ///
    /// # Errors
    /// [`DeviceError::Environment`] when there is no working C++ compiler or address space cannot be reserved;
    /// [`DeviceError::InvalidArgument`] for options out of range.
    pub fn new(options: SimtOptions) -> DeviceResult<Arc<Self>> {
        if options.max_shared_bytes as usize > SHARED_BYTES {
            return Err(invalid(
                "new",
                "max_shared_bytes",
                options.max_shared_bytes,
                format!("at most {SHARED_BYTES}"),
            ));
        }
        let compiler = Compiler::find(options.compiler.as_deref())?;
        let cache = compile::cache_dir(options.cache_dir.as_deref());
        let reserve =
            |e| DeviceError::Environment(format!("cannot reserve address space for device memory: {e}"));
        let memory = Memory::new(options.fill).map_err(reserve)?;
        let shadow = match options.mode {
            Mode::Checked => Some(GlobalShadow::new(memory.range()).map_err(reserve)?),
            Mode::Fast => None,
        };
        Ok(Arc::new(Self { options, compiler, cache, state: Mutex::new(State::new(memory, shadow)) }))
    }

    /// The options the device was made with.
    #[must_use]
    pub fn options(&self) -> &SimtOptions {
        &self.options
    }

    /// Compiles kernels into the cache, `jobs` at a time, without loading them. Results are in the order of `specs`.
    pub fn prepare(&self, specs: &[KernelSpec], jobs: usize) -> Vec<DeviceResult<()>> {
        let next = std::sync::atomic::AtomicUsize::new(0);
        let results: Vec<Mutex<DeviceResult<()>>> = specs.iter().map(|_| Mutex::new(Ok(()))).collect();
        std::thread::scope(|scope| {
            for _ in 0..jobs.clamp(1, specs.len().max(1)) {
                scope.spawn(|| {
                    loop {
                        let i = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        let Some(spec) = specs.get(i) else { break };
                        let result = self.compile(spec).map(|_| ());
                        *results[i].lock().unwrap_or_else(PoisonError::into_inner) = result;
                    }
                });
            }
        });
        results.into_iter().map(|r| r.into_inner().unwrap_or_else(PoisonError::into_inner)).collect()
    }

    /// Whether every byte of a range has been written, all work on `stream` being done. Always true in fast mode,
    /// which does not keep count.
    ///
    /// # Errors
    /// Those of the stream's work; [`DeviceError::InvalidArgument`] for bytes outside an allocation.
    pub fn defined(&self, ptr: DevicePtr, bytes: u64, stream: StreamId) -> DeviceResult<bool> {
        self.check_range("defined", "ptr", ptr, bytes)?;
        self.synchronize(stream)?;
        let state = self.lock();
        Ok(state.shadow.as_ref().is_none_or(|s| s.all_defined(ptr.0 as usize, bytes as usize)))
    }

    /// The compiled library of a kernel, which is put into the cache if it is not there yet.
    ///
    /// # Errors
    /// [`DeviceError::Compile`] when the kernel does not compile; [`DeviceError::Environment`] when the compiler or the
    /// cache fails.
    pub fn library(&self, spec: &KernelSpec) -> DeviceResult<PathBuf> {
        self.compile(spec)
    }

    fn compile(&self, spec: &KernelSpec) -> DeviceResult<PathBuf> {
        compile::library(&self.compiler, spec, &self.options.sources, self.options.mode, &self.cache)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts work on a stream, or into the graph it is capturing.
    fn put(&self, call: &'static str, stream: StreamId, work: Work) -> DeviceResult<()> {
        let mut state = self.lock();
        let stream = stream_of(&mut state, call, stream)?;
        match &mut stream.capture {
            Some(captured) => captured.push(work),
            None => stream.queue.push_back(work),
        }
        Ok(())
    }

    /// The bytes lie in one live allocation.
    fn check_range(
        &self,
        call: &'static str,
        argument: &'static str,
        ptr: DevicePtr,
        bytes: u64,
    ) -> DeviceResult<()> {
        let state = self.lock();
        match state.memory.find(ptr.0 as usize) {
            Some(a) if a.live && ptr.0 as usize >= a.start && ptr.0 + bytes <= a.end() as u64 => Ok(()),
            Some(a) if a.live => Err(invalid(
                call,
                argument,
                format!("{bytes} bytes at {:#x}", ptr.0),
                format!("bytes inside the {}-byte allocation at {:#x}", a.bytes, a.start),
            )),
            _ => Err(invalid(
                call,
                argument,
                format!("{:#x}", ptr.0),
                "an address in a live allocation".to_owned(),
            )),
        }
    }
}

pub(super) fn invalid(
    call: &'static str,
    argument: &'static str,
    value: impl ToString,
    accepted: String,
) -> DeviceError {
    DeviceError::InvalidArgument { call, argument, value: value.to_string(), accepted }
}

fn stream_of<'a>(state: &'a mut State, call: &'static str, stream: StreamId) -> DeviceResult<&'a mut Stream> {
    state.streams.get_mut(&stream).ok_or_else(|| {
        invalid(call, "stream", stream.0, "a stream of this device that was not destroyed".to_owned())
    })
}

fn event_of<'a>(state: &'a mut State, call: &'static str, event: EventId) -> DeviceResult<&'a mut Event> {
    state.events.get_mut(&event).filter(|e| !e.destroyed).ok_or_else(|| {
        invalid(call, "event", event.0, "an event of this device that was not destroyed".to_owned())
    })
}

/// The call must wait for the stream, or change memory at once: neither can be captured.
fn refuse_capture(state: &mut State, call: &'static str, stream: StreamId) -> DeviceResult<()> {
    match stream_of(state, call, stream)?.capture {
        Some(_) => {
            Err(DeviceError::Capture { call, state: format!("while stream {} is capturing", stream.0) })
        }
        None => Ok(()),
    }
}

impl Device for SimtDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            kind: DeviceKind::Simt,
            name: self.compiler.version.clone(),
            capability: self.options.capability,
            multiprocessors: self.options.multiprocessors,
            max_shared_bytes: self.options.max_shared_bytes,
            versions: format!("{}, {:?} mode", self.compiler.version, self.options.mode).to_lowercase(),
        }
    }

    fn create_stream(&self) -> DeviceResult<StreamId> {
        let mut state = self.lock();
        let stream = StreamId(state.next_handle());
        state.streams.insert(stream, Stream::default());
        Ok(stream)
    }

    fn destroy_stream(&self, stream: StreamId) -> DeviceResult<()> {
        let mut state = self.lock();
        if stream == StreamId::DEFAULT {
            return Err(invalid(
                "destroy_stream",
                "stream",
                "the default stream",
                "a stream from create_stream".to_owned(),
            ));
        }
        refuse_capture(&mut state, "destroy_stream", stream)?;
        state.drain(&self.options, stream);
        let reported = state.report(stream);
        state.streams.remove(&stream);
        reported
    }

    fn alloc(&self, bytes: u64, stream: StreamId) -> DeviceResult<DevicePtr> {
        let mut state = self.lock();
        refuse_capture(&mut state, "alloc", stream)?;
        if bytes == 0 {
            return Err(invalid("alloc", "bytes", 0, "at least 1".to_owned()));
        }
        let pending = stream_of(&mut state, "alloc", stream)?.pending_free;
        let limit = self.options.memory_limit;
        // Work queued on this stream frees its memory before work that will use the new allocation.
        let used = state.used - pending;
        let refused = DeviceError::OutOfMemory { requested: bytes, used, limit };
        if limit.is_some_and(|limit| used.checked_add(bytes).is_none_or(|sum| sum > limit)) {
            return Err(refused);
        }
        let Ok(size) = usize::try_from(bytes) else { return Err(refused) };
        match state.allocate(size) {
            Ok(Some(start)) => {
                state.used += bytes;
                state.high_water = state.high_water.max(used + bytes);
                Ok(DevicePtr(start as u64))
            }
            Ok(None) | Err(_) => Err(refused),
        }
    }

    fn free(&self, ptr: DevicePtr, stream: StreamId) -> DeviceResult<()> {
        let mut state = self.lock();
        refuse_capture(&mut state, "free", stream)?;
        let accepted = || "an address that alloc returned and that was not freed".to_owned();
        let allocation = state.memory.find_mut(ptr.0 as usize).filter(|a| a.live && !a.free_queued);
        let allocation = allocation.filter(|a| a.start == ptr.0 as usize);
        let Some(allocation) = allocation else {
            return Err(invalid("free", "ptr", format!("{:#x}", ptr.0), accepted()));
        };
        allocation.free_queued = true;
        let bytes = allocation.bytes as u64;
        let stream = stream_of(&mut state, "free", stream)?;
        stream.pending_free += bytes;
        stream.queue.push_back(Work::Free { ptr });
        Ok(())
    }

    fn copy_to_device(&self, dst: DevicePtr, src: &[u8], stream: StreamId) -> DeviceResult<()> {
        self.check_range("copy_to_device", "dst", dst, src.len() as u64)?;
        self.put("copy_to_device", stream, Work::CopyIn { dst, data: Arc::from(src) })
    }

    fn copy_to_host(&self, dst: &mut [u8], src: DevicePtr, stream: StreamId) -> DeviceResult<()> {
        self.check_range("copy_to_host", "src", src, dst.len() as u64)?;
        let mut state = self.lock();
        refuse_capture(&mut state, "copy_to_host", stream)?;
        state.drain(&self.options, stream);
        state.report(stream)?;
        state.copy_out(dst, src)
    }

    fn copy_on_device(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
        stream: StreamId,
    ) -> DeviceResult<()> {
        self.check_range("copy_on_device", "dst", dst, bytes)?;
        self.check_range("copy_on_device", "src", src, bytes)?;
        self.put("copy_on_device", stream, Work::CopyWithin { dst, src, bytes })
    }

    fn memset(&self, dst: DevicePtr, value: u8, bytes: u64, stream: StreamId) -> DeviceResult<()> {
        self.check_range("memset", "dst", dst, bytes)?;
        self.put("memset", stream, Work::Fill { dst, value, bytes })
    }

    fn load_kernel(&self, spec: &KernelSpec) -> DeviceResult<KernelId> {
        if let Some(&loaded) = self.lock().loaded.get(spec) {
            return Ok(loaded);
        }
        // Compiling takes seconds: not under the lock.
        let library = self.compile(spec)?;
        let module = Module::load(&library, spec)?;
        let mut state = self.lock();
        if let Some(&loaded) = state.loaded.get(spec) {
            return Ok(loaded);
        }
        let id = KernelId(state.modules.len() as u64);
        state.modules.push(module);
        state.loaded.insert(spec.clone(), id);
        Ok(id)
    }

    fn launch(
        &self,
        kernel: KernelId,
        config: LaunchConfig,
        params: &[u8],
        stream: StreamId,
    ) -> DeviceResult<()> {
        let mut state = self.lock();
        let module = usize::try_from(kernel.0).ok().and_then(|i| state.modules.get(i));
        let Some(module) = module else {
            return Err(invalid("launch", "kernel", kernel.0, "a kernel from load_kernel".to_owned()));
        };
        launch::validate(&self.options, module, config, params)?;
        let name = module.entry_name;
        let work = Work::Launch { kernel, config, params: Arc::from(params) };
        let stream = stream_of(&mut state, "launch", stream)?;
        match &mut stream.capture {
            Some(captured) => captured.push(work),
            None => {
                stream.queue.push_back(work);
                *state.launches.entry(name).or_default() += 1;
            }
        }
        Ok(())
    }

    fn launch_counts(&self) -> Vec<(String, u64)> {
        self.lock().launches.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    fn create_event(&self) -> DeviceResult<EventId> {
        let mut state = self.lock();
        let event = EventId(state.next_handle());
        state.events.insert(event, Event::default());
        Ok(event)
    }

    fn destroy_event(&self, event: EventId) -> DeviceResult<()> {
        event_of(&mut self.lock(), "destroy_event", event)?.destroyed = true;
        Ok(())
    }

    fn record_event(&self, event: EventId, stream: StreamId) -> DeviceResult<()> {
        let mut state = self.lock();
        let capturing = stream_of(&mut state, "record_event", stream)?.capture.is_some();
        let record = event_of(&mut state, "record_event", event)?;
        if capturing {
            record.captured_on = Some(stream);
            return Ok(());
        }
        record.captured_on = None;
        record.recorded += 1;
        let generation = record.recorded;
        record.waiting.insert(generation, stream);
        stream_of(&mut state, "record_event", stream)?.queue.push_back(Work::Record { event, generation });
        Ok(())
    }

    fn wait_event(&self, stream: StreamId, event: EventId) -> DeviceResult<()> {
        let mut state = self.lock();
        let capturing = stream_of(&mut state, "wait_event", stream)?.capture.is_some();
        let record = event_of(&mut state, "wait_event", event)?;
        let (generation, captured_on) = (record.recorded, record.captured_on);
        match (captured_on, capturing) {
            // Inside one captured stream the order is already that of the recording.
            (Some(from), true) if from == stream => Ok(()),
            (Some(from), _) => Err(DeviceError::Capture {
                call: "wait_event",
                state: format!("on an event recorded while stream {} is capturing", from.0),
            }),
            (None, true) => Err(DeviceError::Capture {
                call: "wait_event",
                state: format!("while stream {} is capturing, on an event recorded outside", stream.0),
            }),
            (None, false) if generation == 0 => Ok(()),
            (None, false) => {
                stream_of(&mut state, "wait_event", stream)?
                    .queue
                    .push_back(Work::Wait { event, generation });
                Ok(())
            }
        }
    }

    fn elapsed_ms(&self, start: EventId, end: EventId) -> DeviceResult<f32> {
        let mut state = self.lock();
        let mut moment = |event: EventId, argument: &'static str| {
            let record = event_of(&mut state, "elapsed_ms", event)?;
            match record.happened {
                Some((generation, at)) if generation == record.recorded => Ok(at),
                _ if record.recorded == 0 => {
                    Err(invalid("elapsed_ms", argument, event.0, "an event that was recorded".to_owned()))
                }
                _ => Err(DeviceError::Driver {
                    call: "elapsed_ms",
                    code: "CUDA_ERROR_NOT_READY".to_owned(),
                    message: format!("event {} has not happened yet; synchronize its stream first", event.0),
                    sticky: false,
                }),
            }
        };
        let (from, to) = (moment(start, "start")?, moment(end, "end")?);
        let forward = to.saturating_duration_since(from).as_secs_f64();
        let backward = from.saturating_duration_since(to).as_secs_f64();
        Ok(((forward - backward) * 1e3) as f32)
    }

    fn begin_capture(&self, stream: StreamId) -> DeviceResult<()> {
        let mut state = self.lock();
        refuse_capture(&mut state, "begin_capture", stream)?;
        stream_of(&mut state, "begin_capture", stream)?.capture = Some(Vec::new());
        Ok(())
    }

    fn end_capture(&self, stream: StreamId) -> DeviceResult<GraphId> {
        let mut state = self.lock();
        let Some(work) = stream_of(&mut state, "end_capture", stream)?.capture.take() else {
            let state = format!("while stream {} is not capturing", stream.0);
            return Err(DeviceError::Capture { call: "end_capture", state });
        };
        for event in state.events.values_mut().filter(|e| e.captured_on == Some(stream)) {
            event.captured_on = None;
        }
        let graph = GraphId(state.next_handle());
        state.graphs.insert(graph, Graph { work: work.into() });
        Ok(graph)
    }

    fn launch_graph(&self, graph: GraphId, stream: StreamId) -> DeviceResult<()> {
        let mut state = self.lock();
        refuse_capture(&mut state, "launch_graph", stream)?;
        let Some(work) = state.graphs.get(&graph).map(|g| Arc::clone(&g.work)) else {
            return Err(unknown_graph("launch_graph", graph));
        };
        for item in work.iter() {
            if let Work::Launch { kernel, .. } = item {
                let name = state.modules[kernel.0 as usize].entry_name;
                *state.launches.entry(name).or_default() += 1;
            }
        }
        stream_of(&mut state, "launch_graph", stream)?.queue.extend(work.iter().cloned());
        Ok(())
    }

    fn destroy_graph(&self, graph: GraphId) -> DeviceResult<()> {
        let removed = self.lock().graphs.remove(&graph);
        removed.map(|_| ()).ok_or_else(|| unknown_graph("destroy_graph", graph))
    }

    fn pool(&self) -> DeviceResult<PoolBytes> {
        let state = self.lock();
        let reserved = state.memory.mapped_bytes();
        Ok(PoolBytes { used: state.used, reserved, high_water: state.high_water })
    }

    fn reset_high_water(&self) -> DeviceResult<()> {
        let mut state = self.lock();
        state.high_water = state.used;
        Ok(())
    }

    fn synchronize(&self, stream: StreamId) -> DeviceResult<()> {
        let mut state = self.lock();
        refuse_capture(&mut state, "synchronize", stream)?;
        state.drain(&self.options, stream);
        state.report(stream)
    }
}

fn unknown_graph(call: &'static str, graph: GraphId) -> DeviceError {
    invalid(call, "graph", graph.0, "a graph of this device that was not destroyed".to_owned())
}
