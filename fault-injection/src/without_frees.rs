//! A device whose frees do nothing: what a sweep must notice.

use std::sync::Arc;

use kernels::device::DeviceRef;
use kernels::device::{
    Device, DeviceInfo, DevicePtr, DeviceResult, EventId, GraphId, KernelId, LaunchConfig, PoolBytes,
    StreamId,
};
use kernels::source::KernelSpec;

/// Passes every call on but `free`, which succeeds without an effect. Put between the code under test and a
/// [`crate::FaultyDevice`], it makes every allocation a leak.
pub struct WithoutFrees(DeviceRef);

impl WithoutFrees {
    /// Wraps a device.
    #[must_use]
    pub fn wrap(device: &DeviceRef) -> DeviceRef {
        Arc::new(Self(DeviceRef::clone(device)))
    }
}

impl Device for WithoutFrees {
    fn free(&self, _ptr: DevicePtr, _stream: StreamId) -> DeviceResult<()> {
        Ok(())
    }

    fn info(&self) -> DeviceInfo {
        self.0.info()
    }

    fn create_stream(&self) -> DeviceResult<StreamId> {
        self.0.create_stream()
    }

    fn destroy_stream(&self, stream: StreamId) -> DeviceResult<()> {
        self.0.destroy_stream(stream)
    }

    fn alloc(&self, bytes: u64, stream: StreamId) -> DeviceResult<DevicePtr> {
        self.0.alloc(bytes, stream)
    }

    fn copy_to_device(&self, dst: DevicePtr, src: &[u8], stream: StreamId) -> DeviceResult<()> {
        self.0.copy_to_device(dst, src, stream)
    }

    fn copy_to_host(&self, dst: &mut [u8], src: DevicePtr, stream: StreamId) -> DeviceResult<()> {
        self.0.copy_to_host(dst, src, stream)
    }

    fn copy_on_device(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
        stream: StreamId,
    ) -> DeviceResult<()> {
        self.0.copy_on_device(dst, src, bytes, stream)
    }

    fn memset(&self, dst: DevicePtr, value: u8, bytes: u64, stream: StreamId) -> DeviceResult<()> {
        self.0.memset(dst, value, bytes, stream)
    }

    fn load_kernel(&self, spec: &KernelSpec) -> DeviceResult<KernelId> {
        self.0.load_kernel(spec)
    }

    fn launch(
        &self,
        kernel: KernelId,
        config: LaunchConfig,
        params: &[u8],
        stream: StreamId,
    ) -> DeviceResult<()> {
        self.0.launch(kernel, config, params, stream)
    }

    fn launch_counts(&self) -> Vec<(String, u64)> {
        self.0.launch_counts()
    }

    fn create_event(&self) -> DeviceResult<EventId> {
        self.0.create_event()
    }

    fn destroy_event(&self, event: EventId) -> DeviceResult<()> {
        self.0.destroy_event(event)
    }

    fn record_event(&self, event: EventId, stream: StreamId) -> DeviceResult<()> {
        self.0.record_event(event, stream)
    }

    fn wait_event(&self, stream: StreamId, event: EventId) -> DeviceResult<()> {
        self.0.wait_event(stream, event)
    }

    fn elapsed_ms(&self, start: EventId, end: EventId) -> DeviceResult<f32> {
        self.0.elapsed_ms(start, end)
    }

    fn begin_capture(&self, stream: StreamId) -> DeviceResult<()> {
        self.0.begin_capture(stream)
    }

    fn end_capture(&self, stream: StreamId) -> DeviceResult<GraphId> {
        self.0.end_capture(stream)
    }

    fn launch_graph(&self, graph: GraphId, stream: StreamId) -> DeviceResult<()> {
        self.0.launch_graph(graph, stream)
    }

    fn destroy_graph(&self, graph: GraphId) -> DeviceResult<()> {
        self.0.destroy_graph(graph)
    }

    fn pool(&self) -> DeviceResult<PoolBytes> {
        self.0.pool()
    }

    fn reset_high_water(&self) -> DeviceResult<()> {
        self.0.reset_high_water()
    }

    fn synchronize(&self, stream: StreamId) -> DeviceResult<()> {
        self.0.synchronize(stream)
    }
}
