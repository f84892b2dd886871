//! A device that does nothing but note which kernels are loaded: how a run learns what to compile beforehand.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use kernels::device::{
    Device, DeviceInfo, DevicePtr, DeviceResult, EventId, GraphId, KernelId, LaunchConfig, PoolBytes,
    StreamId,
};
use kernels::source::KernelSpec;

/// Notes kernels; every other call succeeds without effect.
pub(crate) struct Recorder {
    info: DeviceInfo,
    next: AtomicU64,
    kernels: Mutex<Vec<KernelSpec>>,
}

impl Recorder {
    pub fn new(info: DeviceInfo) -> Self {
        Self { info, next: AtomicU64::new(1), kernels: Mutex::new(Vec::new()) }
    }

    /// The kernels loaded since the last call.
    pub fn take(&self) -> Vec<KernelSpec> {
        std::mem::take(&mut *self.kernels.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    fn fresh(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

/// Distance between the addresses that are handed out: more than any allocation takes.
const ADDRESS_STEP: u64 = 1 << 36;

impl Device for Recorder {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }
    fn create_stream(&self) -> DeviceResult<StreamId> {
        Ok(StreamId(self.fresh()))
    }
    fn destroy_stream(&self, _stream: StreamId) -> DeviceResult<()> {
        Ok(())
    }
    fn alloc(&self, _bytes: u64, _stream: StreamId) -> DeviceResult<DevicePtr> {
        Ok(DevicePtr(self.fresh() * ADDRESS_STEP))
    }
    fn free(&self, _ptr: DevicePtr, _stream: StreamId) -> DeviceResult<()> {
        Ok(())
    }
    fn copy_to_device(&self, _dst: DevicePtr, _src: &[u8], _stream: StreamId) -> DeviceResult<()> {
        Ok(())
    }
    fn copy_to_host(&self, _dst: &mut [u8], _src: DevicePtr, _stream: StreamId) -> DeviceResult<()> {
        Ok(())
    }
    fn copy_on_device(
        &self,
        _dst: DevicePtr,
        _src: DevicePtr,
        _bytes: u64,
        _stream: StreamId,
    ) -> DeviceResult<()> {
        Ok(())
    }
    fn memset(&self, _dst: DevicePtr, _value: u8, _bytes: u64, _stream: StreamId) -> DeviceResult<()> {
        Ok(())
    }
    fn load_kernel(&self, spec: &KernelSpec) -> DeviceResult<KernelId> {
        self.kernels.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(spec.clone());
        Ok(KernelId(self.fresh()))
    }
    fn launch(
        &self,
        _k: KernelId,
        _config: LaunchConfig,
        _params: &[u8],
        _stream: StreamId,
    ) -> DeviceResult<()> {
        Ok(())
    }
    fn launch_counts(&self) -> Vec<(String, u64)> {
        Vec::new()
    }
    fn create_event(&self) -> DeviceResult<EventId> {
        Ok(EventId(self.fresh()))
    }
    fn destroy_event(&self, _event: EventId) -> DeviceResult<()> {
        Ok(())
    }
    fn record_event(&self, _event: EventId, _stream: StreamId) -> DeviceResult<()> {
        Ok(())
    }
    fn wait_event(&self, _stream: StreamId, _event: EventId) -> DeviceResult<()> {
        Ok(())
    }
    fn elapsed_ms(&self, _start: EventId, _end: EventId) -> DeviceResult<f32> {
        Ok(0.0)
    }
    fn begin_capture(&self, _stream: StreamId) -> DeviceResult<()> {
        Ok(())
    }
    fn end_capture(&self, _stream: StreamId) -> DeviceResult<GraphId> {
        Ok(GraphId(self.fresh()))
    }
    fn launch_graph(&self, _graph: GraphId, _stream: StreamId) -> DeviceResult<()> {
        Ok(())
    }
    fn destroy_graph(&self, _graph: GraphId) -> DeviceResult<()> {
        Ok(())
    }
    fn pool(&self) -> DeviceResult<PoolBytes> {
        Ok(PoolBytes::default())
    }
    fn reset_high_water(&self) -> DeviceResult<()> {
        Ok(())
    }
    fn synchronize(&self, _stream: StreamId) -> DeviceResult<()> {
        Ok(())
    }
}
