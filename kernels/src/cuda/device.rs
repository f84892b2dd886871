//! [`CudaDevice`]: the device interface over the driver API.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{result as driver, sys};

use super::driver::{Pool, Priority, check, new_stream};
use super::nvrtc;
use crate::device::{
    Device, DeviceError, DeviceInfo, DeviceKind, DevicePtr, DeviceResult, EventId, GraphId, KernelId,
    LaunchConfig, PoolBytes, StreamId,
};
use crate::source::{KernelSpec, SourceSet};

/// How a [`CudaDevice`] is opened.
#[derive(Clone, Debug)]
pub struct CudaOptions {
    /// Which card, counted as the driver counts.
    pub ordinal: i32,
    /// Kernel sources.
    pub sources: SourceSet,
    /// Where cubins are kept; `None` compiles every time.
    pub cache_dir: Option<PathBuf>,
    /// Ceiling of the memory pool in bytes.
    pub memory_limit: Option<u64>,
}

/// An NVIDIA GPU with a memory pool of its own.
///
/// The pool is not the context's default one, so its byte counts are those of this device object alone.
pub struct CudaDevice {
    context: sys::CUcontext,
    device: sys::CUdevice,
    pool: Option<Pool>,
    info: DeviceInfo,
    options: CudaOptions,
    state: Mutex<State>,
}

// SAFETY: driver handles may be used from any thread once the context is current there, which every call sees to;
// the tables are behind a mutex.
unsafe impl Send for CudaDevice {}
// SAFETY: as above.
unsafe impl Sync for CudaDevice {}

#[derive(Default)]
struct State {
    streams: BTreeMap<u64, Stream>,
    events: BTreeMap<u64, sys::CUevent>,
    graphs: BTreeMap<u64, Graph>,
    kernels: BTreeMap<u64, Kernel>,
    by_spec: BTreeMap<KernelSpec, KernelId>,
    live: BTreeMap<u64, u64>,
    launches: BTreeMap<String, u64>,
    next: u64,
}

struct Stream {
    raw: sys::CUstream,
    capture: Option<Capture>,
}

/// What a capture must keep: host bytes that the graph will read at every replay, and what it launches.
#[derive(Default)]
struct Capture {
    host: Vec<Box<[u8]>>,
    launches: Vec<String>,
}

struct Graph {
    raw: sys::CUgraph,
    exec: sys::CUgraphExec,
    kept: Capture,
}

struct Kernel {
    _module: Module,
    function: sys::CUfunction,
    entry: String,
    params_bytes: usize,
    max_threads: u32,
    static_shared: u32,
    shared_allowed: u32,
}

impl State {
    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn stream(&self, call: &'static str, id: StreamId) -> DeviceResult<&Stream> {
        self.streams.get(&id.0).ok_or_else(|| unknown(call, "stream", id.0))
    }

    fn event(&self, call: &'static str, id: EventId) -> DeviceResult<sys::CUevent> {
        self.events.get(&id.0).copied().ok_or_else(|| unknown(call, "event", id.0))
    }

    fn not_capturing(&self, call: &'static str, id: StreamId) -> DeviceResult<sys::CUstream> {
        let stream = self.stream(call, id)?;
        if stream.capture.is_some() {
            return Err(DeviceError::Capture { call, state: format!("while stream {} is capturing", id.0) });
        }
        Ok(stream.raw)
    }
}

fn unknown(call: &'static str, argument: &'static str, value: u64) -> DeviceError {
    DeviceError::InvalidArgument {
        call,
        argument,
        value: value.to_string(),
        accepted: "a live handle of this device".into(),
    }
}

impl CudaDevice {
    /// Opens a card.
    ///
    /// # Errors
    /// [`DeviceError::Environment`] when there is no driver or no such card.
    pub fn new(options: CudaOptions) -> DeviceResult<Arc<Self>> {
        // SAFETY: only opens the library.
        if !unsafe { sys::is_culib_present() } {
            return Err(DeviceError::Environment("no CUDA driver: libcuda.so was not found".into()));
        }
        driver::init().map_err(|e| environment("cuInit", &e))?;
        let count = driver::device::get_count().map_err(|e| environment("cuDeviceGetCount", &e))?;
        if options.ordinal < 0 || options.ordinal >= count {
            return Err(DeviceError::Environment(format!(
                "no CUDA device {}: the driver sees {count}",
                options.ordinal
            )));
        }
        let device = driver::device::get(options.ordinal).map_err(|e| environment("cuDeviceGet", &e))?;
        // SAFETY: the device exists; the retain is balanced in drop.
        let context = unsafe { driver::primary_ctx::retain(device) }
            .map_err(|e| environment("cuDevicePrimaryCtxRetain", &e))?;
        // SAFETY: the context was just retained.
        unsafe { driver::ctx::set_current(context) }.map_err(|e| environment("cuCtxSetCurrent", &e))?;
        let info = describe(device)?;
        let pool = Pool::new(options.ordinal, options.memory_limit)?;
        let this = Self { context, device, pool: Some(pool), info, options, state: Mutex::default() };
        let raw = new_stream(Priority::Highest)?;
        this.lock().streams.insert(StreamId::DEFAULT.0, Stream { raw, capture: None });
        Ok(Arc::new(this))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tables, with this device's context current on the calling thread.
    fn bind(&self) -> DeviceResult<MutexGuard<'_, State>> {
        // SAFETY: the context is retained for the life of `self`.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.context) })?;
        Ok(self.lock())
    }

    /// Makes this device's context current on the calling thread, for foreign code.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn make_current(&self) -> DeviceResult<()> {
        self.bind().map(drop)
    }

    pub(super) fn raw_device(&self) -> sys::CUdevice {
        self.device
    }

    fn pool_ref(&self) -> &Pool {
        self.pool.as_ref().expect("the pool lives until drop")
    }

    /// The architecture that kernels are compiled for, such as `sm_90`.
    #[must_use]
    pub fn arch(&self) -> String {
        format!("sm_{}{}", self.info.capability.0, self.info.capability.1)
    }

    /// The raw stream behind a handle, for foreign kernels that launch on it.
    ///
    /// # Errors
    /// [`DeviceError::InvalidArgument`] for an unknown stream.
    pub fn raw_stream(&self, stream: StreamId) -> DeviceResult<*mut std::ffi::c_void> {
        Ok(self.lock().stream("raw_stream", stream)?.raw.cast())
    }

    fn add_stream(&self, priority: Priority) -> DeviceResult<StreamId> {
        let mut state = self.bind()?;
        let raw = new_stream(priority)?;
        let id = state.fresh();
        state.streams.insert(id, Stream { raw, capture: None });
        Ok(StreamId(id))
    }

    fn load(&self, spec: &KernelSpec) -> DeviceResult<Kernel> {
        let compiled = nvrtc::compile_to_cubin(
            &self.options.sources,
            spec,
            &self.arch(),
            self.options.cache_dir.as_deref(),
        )?;
        let module = Module::load(&compiled.cubin)?;
        let function = module.function(spec)?;
        let attribute = |which| {
            let mut value = 0;
            // SAFETY: the function was just loaded.
            check("cuFuncGetAttribute", unsafe { sys::cuFuncGetAttribute(&raw mut value, which, function) })?;
            Ok(u32::try_from(value).unwrap_or(0))
        };
        use sys::CUfunction_attribute as A;
        Ok(Kernel {
            _module: module,
            function,
            entry: spec.entry.to_owned(),
            params_bytes: params_bytes(function)?,
            max_threads: attribute(A::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            static_shared: attribute(A::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            shared_allowed: attribute(A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)?,
        })
    }
}

/// A loaded cubin, unloaded when dropped, so that nothing of a kernel stays when a step after the loading fails.
struct Module(sys::CUmodule);

// SAFETY: a module belongs to a context, not to a thread; the device's lock orders the calls.
unsafe impl Send for Module {}

impl Module {
    fn load(cubin: &[u8]) -> DeviceResult<Self> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the context is current; the image is a complete cubin and outlives the call.
        check("cuModuleLoadData", unsafe { sys::cuModuleLoadData(&raw mut raw, cubin.as_ptr().cast()) })?;
        Ok(Self(raw))
    }

    fn function(&self, spec: &KernelSpec) -> DeviceResult<sys::CUfunction> {
        let mut function = std::ptr::null_mut();
        let entry = std::ffi::CString::new(spec.entry).expect("entry names are identifiers");
        // SAFETY: the module is loaded; the name is NUL-terminated.
        let found = unsafe { sys::cuModuleGetFunction(&raw mut function, self.0, entry.as_ptr()) };
        if found == sys::CUresult::CUDA_ERROR_NOT_FOUND {
            return Err(DeviceError::InvalidArgument {
                call: "load_kernel",
                argument: "entry",
                value: spec.entry.to_owned(),
                accepted: format!("an entry of {}", spec.file),
            });
        }
        check("cuModuleGetFunction", found)?;
        Ok(function)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: the module is loaded and its context still alive: kernels are dropped before the context is released.
        let _ = unsafe { sys::cuModuleUnload(self.0) };
    }
}

fn environment(call: &str, error: &driver::DriverError) -> DeviceError {
    DeviceError::Environment(format!("no usable CUDA device: {call}: {error:?}"))
}

fn describe(device: sys::CUdevice) -> DeviceResult<DeviceInfo> {
    use sys::CUdevice_attribute as A;
    let attribute = |which| {
        let mut value = 0;
        // SAFETY: the device exists; the pointer is valid.
        check("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&raw mut value, which, device) })?;
        Ok(u32::try_from(value).unwrap_or(0))
    };
    let name = driver::device::get_name(device).map_err(|e| environment("cuDeviceGetName", &e))?;
    let mut version = 0;
    // SAFETY: the pointer is valid.
    check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&raw mut version) })?;
    let compiler = nvrtc::compiler_version()?;
    Ok(DeviceInfo {
        kind: DeviceKind::Cuda,
        name,
        capability: (
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        max_shared_bytes: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        versions: format!("driver API {}.{}, NVRTC {compiler}", version / 1000, version % 1000 / 10),
    })
}

/// Size of a kernel's one parameter struct.
fn params_bytes(function: sys::CUfunction) -> DeviceResult<usize> {
    let (mut offset, mut size) = (0, 0);
    // SAFETY: the function is loaded; both pointers are valid for writes.
    check("cuFuncGetParamInfo", unsafe {
        sys::cuFuncGetParamInfo(function, 0, &raw mut offset, &raw mut size)
    })?;
    Ok(size)
}

/// Checks a launch against the kernel's and the card's limits, before anything is queued.
fn validate_launch(
    info: &DeviceInfo,
    kernel: &Kernel,
    config: &LaunchConfig,
    params: &[u8],
) -> DeviceResult<()> {
    let invalid = |argument, value: String, accepted: String| {
        Err(DeviceError::InvalidArgument { call: "launch", argument, value, accepted })
    };
    let threads = config.block.iter().map(|&n| u64::from(n)).product::<u64>();
    if threads == 0 || threads > u64::from(kernel.max_threads) {
        let value = format!("{:?}", config.block);
        return invalid("block", value, format!("1 to {} threads for {}", kernel.max_threads, kernel.entry));
    }
    if config.grid.contains(&0)
        || config.grid[0] > i32::MAX as u32
        || config.grid[1..].iter().any(|&n| n > 65535)
    {
        let accepted = "x from 1 to 2147483647, y and z from 1 to 65535".to_owned();
        return invalid("grid", format!("{:?}", config.grid), accepted);
    }
    if params.len() != kernel.params_bytes {
        let accepted = format!("the {} bytes of the parameters of {}", kernel.params_bytes, kernel.entry);
        return invalid("params", format!("{} bytes", params.len()), accepted);
    }
    let allowed = info.max_shared_bytes.saturating_sub(kernel.static_shared);
    if config.shared_bytes > allowed {
        let accepted = format!("at most {allowed} bytes on {}", info.name);
        return invalid("shared_bytes", config.shared_bytes.to_string(), accepted);
    }
    Ok(())
}

impl Device for CudaDevice {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn create_stream(&self) -> DeviceResult<StreamId> {
        self.add_stream(Priority::Highest)
    }

    fn create_background_stream(&self) -> DeviceResult<StreamId> {
        self.add_stream(Priority::Lowest)
    }

    fn destroy_stream(&self, stream: StreamId) -> DeviceResult<()> {
        let mut state = self.bind()?;
        if stream == StreamId::DEFAULT {
            return Err(unknown("destroy_stream", "stream", 0));
        }
        let raw = state.not_capturing("destroy_stream", stream)?;
        state.streams.remove(&stream.0);
        // SAFETY: the stream is live and is not in the table any more.
        unsafe {
            let drained = check("cuStreamSynchronize", sys::cuStreamSynchronize(raw));
            let destroyed = check("cuStreamDestroy", sys::cuStreamDestroy_v2(raw));
            drained.and(destroyed)
        }
    }

    fn alloc(&self, bytes: u64, stream: StreamId) -> DeviceResult<DevicePtr> {
        let mut state = self.bind()?;
        let raw = state.not_capturing("alloc", stream)?;
        let invalid = || DeviceError::InvalidArgument {
            call: "alloc",
            argument: "bytes",
            value: bytes.to_string(),
            accepted: "at least 1".into(),
        };
        let size = usize::try_from(bytes).ok().filter(|&b| b > 0).ok_or_else(invalid)?;
        let mut ptr = 0;
        // SAFETY: pool and stream are live; the pointer is valid.
        let status = unsafe { sys::cuMemAllocFromPoolAsync(&raw mut ptr, size, self.pool_ref().raw, raw) };
        if status == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            let used =
                self.pool_ref().attribute(sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?;
            return Err(DeviceError::OutOfMemory {
                requested: bytes,
                used,
                limit: self.options.memory_limit,
            });
        }
        check("cuMemAllocFromPoolAsync", status)?;
        state.live.insert(ptr, bytes);
        Ok(DevicePtr(ptr))
    }

    fn free(&self, ptr: DevicePtr, stream: StreamId) -> DeviceResult<()> {
        let mut state = self.bind()?;
        let raw = state.not_capturing("free", stream)?;
        if !state.live.contains_key(&ptr.0) {
            return Err(unknown("free", "ptr", ptr.0));
        }
        // SAFETY: the address came from the pool, and is forgotten below once the driver has taken it back.
        check("cuMemFreeAsync", unsafe { sys::cuMemFreeAsync(ptr.0, raw) })?;
        // Only now: memory whose free was refused is still allocated, and may be asked for again.
        state.live.remove(&ptr.0);
        Ok(())
    }

    fn copy_to_device(&self, dst: DevicePtr, src: &[u8], stream: StreamId) -> DeviceResult<()> {
        let mut state = self.bind()?;
        let raw = state.stream("copy_to_device", stream)?.raw;
        let mut from = src.as_ptr();
        if let Some(capture) = state.streams.get_mut(&stream.0).and_then(|s| s.capture.as_mut()) {
            // A graph reads the host bytes at every replay, so it owns a copy of them.
            capture.host.push(src.into());
            from = capture.host.last().map_or(from, |b| b.as_ptr());
        }
        // SAFETY: `from` covers `src.len()` bytes; pageable memory is staged before the call returns.
        check("cuMemcpyHtoDAsync", unsafe { sys::cuMemcpyHtoDAsync_v2(dst.0, from.cast(), src.len(), raw) })
    }

    fn copy_to_host(&self, dst: &mut [u8], src: DevicePtr, stream: StreamId) -> DeviceResult<()> {
        let raw = self.bind()?.not_capturing("copy_to_host", stream)?;
        // SAFETY: `dst` is valid for its length until the synchronise below returns.
        unsafe {
            check(
                "cuMemcpyDtoHAsync",
                sys::cuMemcpyDtoHAsync_v2(dst.as_mut_ptr().cast(), src.0, dst.len(), raw),
            )?;
            check("cuStreamSynchronize", sys::cuStreamSynchronize(raw))
        }
    }

    fn copy_on_device(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
        stream: StreamId,
    ) -> DeviceResult<()> {
        let raw = self.bind()?.stream("copy_on_device", stream)?.raw;
        let bytes = usize::try_from(bytes).expect("64-bit host");
        // SAFETY: the driver checks both ranges against its allocations.
        check("cuMemcpyDtoDAsync", unsafe { sys::cuMemcpyDtoDAsync_v2(dst.0, src.0, bytes, raw) })
    }

    fn memset(&self, dst: DevicePtr, value: u8, bytes: u64, stream: StreamId) -> DeviceResult<()> {
        let raw = self.bind()?.stream("memset", stream)?.raw;
        let bytes = usize::try_from(bytes).expect("64-bit host");
        // SAFETY: the driver checks the range against its allocations.
        check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(dst.0, value, bytes, raw) })
    }

    fn load_kernel(&self, spec: &KernelSpec) -> DeviceResult<KernelId> {
        let mut state = self.bind()?;
        if let Some(&id) = state.by_spec.get(spec) {
            return Ok(id);
        }
        let kernel = self.load(spec)?;
        let id = KernelId(state.fresh());
        state.kernels.insert(id.0, kernel);
        state.by_spec.insert(spec.clone(), id);
        Ok(id)
    }

    fn launch(
        &self,
        kernel: KernelId,
        config: LaunchConfig,
        params: &[u8],
        stream: StreamId,
    ) -> DeviceResult<()> {
        let mut state = self.bind()?;
        let raw = state.stream("launch", stream)?.raw;
        let entry = state.kernels.get_mut(&kernel.0).ok_or_else(|| unknown("launch", "kernel", kernel.0))?;
        validate_launch(&self.info, entry, &config, params)?;
        if config.shared_bytes > entry.shared_allowed {
            let which = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let bytes = config.shared_bytes as i32;
            // SAFETY: the function is loaded; the value was checked against the card's limit.
            check("cuFuncSetAttribute", unsafe { sys::cuFuncSetAttribute(entry.function, which, bytes) })?;
            entry.shared_allowed = config.shared_bytes;
        }
        // The driver copies the parameters during the call; a u64 buffer gives them their alignment.
        let mut aligned = vec![0u64; params.len().div_ceil(8).max(1)];
        // SAFETY: the buffer has at least `params.len()` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(params.as_ptr(), aligned.as_mut_ptr().cast::<u8>(), params.len())
        };
        let mut pointers = [aligned.as_mut_ptr().cast::<std::ffi::c_void>()];
        let ([gx, gy, gz], [bx, by, bz]) = (config.grid, config.block);
        // SAFETY: geometry was validated, and the kernel takes one struct of `params.len()` bytes.
        check("cuLaunchKernel", unsafe {
            sys::cuLaunchKernel(
                entry.function,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                config.shared_bytes,
                raw,
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        })?;
        let name = entry.entry.clone();
        match state.streams.get_mut(&stream.0).and_then(|s| s.capture.as_mut()) {
            Some(capture) => capture.launches.push(name),
            None => *state.launches.entry(name).or_default() += 1,
        }
        Ok(())
    }

    fn launch_counts(&self) -> Vec<(String, u64)> {
        self.lock().launches.iter().map(|(name, count)| (name.clone(), *count)).collect()
    }

    fn create_event(&self) -> DeviceResult<EventId> {
        let mut state = self.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is valid.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&raw mut raw, 0) })?;
        let id = state.fresh();
        state.events.insert(id, raw);
        Ok(EventId(id))
    }

    fn destroy_event(&self, event: EventId) -> DeviceResult<()> {
        let mut state = self.bind()?;
        let raw = state.event("destroy_event", event)?;
        state.events.remove(&event.0);
        // SAFETY: the event is live and is not in the table any more.
        check("cuEventDestroy", unsafe { sys::cuEventDestroy_v2(raw) })
    }

    fn record_event(&self, event: EventId, stream: StreamId) -> DeviceResult<()> {
        let state = self.bind()?;
        let (event, stream) =
            (state.event("record_event", event)?, state.stream("record_event", stream)?.raw);
        // SAFETY: both are live.
        check("cuEventRecord", unsafe { sys::cuEventRecord(event, stream) })
    }

    fn wait_event(&self, stream: StreamId, event: EventId) -> DeviceResult<()> {
        let state = self.bind()?;
        let (event, stream) = (state.event("wait_event", event)?, state.stream("wait_event", stream)?.raw);
        // SAFETY: both are live.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(stream, event, 0) })
    }

    fn elapsed_ms(&self, start: EventId, end: EventId) -> DeviceResult<f32> {
        let state = self.bind()?;
        let (start, end) = (state.event("elapsed_ms", start)?, state.event("elapsed_ms", end)?);
        let mut ms = 0.0;
        // SAFETY: both are live; the pointer is valid.
        unsafe {
            check("cuEventSynchronize", sys::cuEventSynchronize(end))?;
            check("cuEventElapsedTime", sys::cuEventElapsedTime_v2(&raw mut ms, start, end))?;
        }
        Ok(ms)
    }

    fn begin_capture(&self, stream: StreamId) -> DeviceResult<()> {
        let mut state = self.bind()?;
        let raw = state.not_capturing("begin_capture", stream)?;
        // Relaxed: a capture concerns its own stream only. Calls that it forbids on that stream are refused by us.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is live.
        check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(raw, mode) })?;
        if let Some(stream) = state.streams.get_mut(&stream.0) {
            stream.capture = Some(Capture::default());
        }
        Ok(())
    }

    fn end_capture(&self, stream: StreamId) -> DeviceResult<GraphId> {
        let mut state = self.bind()?;
        let raw_stream = state.stream("end_capture", stream)?.raw;
        let kept = state.streams.get_mut(&stream.0).and_then(|s| s.capture.take());
        let Some(kept) = kept else {
            return Err(DeviceError::Capture {
                call: "end_capture",
                state: format!("on stream {}, which is not capturing", stream.0),
            });
        };
        let (mut raw, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the stream is capturing; a graph that cannot be instantiated is destroyed.
        unsafe {
            check("cuStreamEndCapture", sys::cuStreamEndCapture(raw_stream, &raw mut raw))?;
            let made = check("cuGraphInstantiate", sys::cuGraphInstantiateWithFlags(&raw mut exec, raw, 0));
            if let Err(error) = made {
                let _ = sys::cuGraphDestroy(raw);
                return Err(error);
            }
        }
        let id = state.fresh();
        state.graphs.insert(id, Graph { raw, exec, kept });
        Ok(GraphId(id))
    }

    fn launch_graph(&self, graph: GraphId, stream: StreamId) -> DeviceResult<()> {
        let mut state = self.bind()?;
        let raw = state.not_capturing("launch_graph", stream)?;
        let graph = state.graphs.get(&graph.0).ok_or_else(|| unknown("launch_graph", "graph", graph.0))?;
        // SAFETY: graph and stream are live.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(graph.exec, raw) })?;
        for name in graph.kept.launches.clone() {
            *state.launches.entry(name).or_default() += 1;
        }
        Ok(())
    }

    fn destroy_graph(&self, graph: GraphId) -> DeviceResult<()> {
        let mut state = self.bind()?;
        let graph =
            state.graphs.remove(&graph.0).ok_or_else(|| unknown("destroy_graph", "graph", graph.0))?;
        // SAFETY: both handles are live and are not in the table any more.
        unsafe {
            let first = check("cuGraphExecDestroy", sys::cuGraphExecDestroy(graph.exec));
            let second = check("cuGraphDestroy", sys::cuGraphDestroy(graph.raw));
            first.and(second)
        }
    }

    fn pool(&self) -> DeviceResult<PoolBytes> {
        let _bound = self.bind()?;
        use sys::CUmemPool_attribute as A;
        let pool = self.pool_ref();
        Ok(PoolBytes {
            used: pool.attribute(A::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
            reserved: pool.attribute(A::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
            high_water: pool.attribute(A::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?,
        })
    }

    fn reset_high_water(&self) -> DeviceResult<()> {
        let _bound = self.bind()?;
        self.pool_ref().reset_high_water()
    }

    fn synchronize(&self, stream: StreamId) -> DeviceResult<()> {
        let raw = self.bind()?.not_capturing("synchronize", stream)?;
        // SAFETY: the stream is live.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(raw) })
    }
}

impl Drop for CudaDevice {
    /// Releases everything in reverse order of dependency. Errors have nowhere to go: after a sticky error every
    /// call here fails, and the driver cleans up with the context.
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: every handle in the tables is live and destroyed once; the context is released last.
        unsafe {
            let _ = sys::cuCtxSetCurrent(self.context);
            for graph in state.graphs.values() {
                let _ = sys::cuGraphExecDestroy(graph.exec);
                let _ = sys::cuGraphDestroy(graph.raw);
            }
            for event in state.events.values() {
                let _ = sys::cuEventDestroy_v2(*event);
            }
            for stream in state.streams.values() {
                let _ = sys::cuStreamSynchronize(stream.raw);
                let _ = sys::cuStreamDestroy_v2(stream.raw);
            }
            state.kernels.clear();
            self.pool = None;
            let _ = driver::primary_ctx::release(self.device);
        }
    }
}
