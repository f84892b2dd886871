//! The device interface of [`FaultyDevice`]: ask the plan, pass the call on, note it in the ledger.
//!
//! The lock is held across the call so that the ledger sees calls in the device's order. Calls that wait or compile are the
//! exception: they would keep other threads from queueing work.

use kernels::device::{
    Device, DeviceError, DeviceInfo, DevicePtr, DeviceResult, EventId, GraphId, KernelId, LaunchConfig,
    PoolBytes, StreamId,
};
use kernels::source::KernelSpec;

use super::FaultyDevice;
use crate::call::Call;

impl<D: Device + ?Sized> FaultyDevice<D> {
    /// Waits by `wait`, which may read memory first, unless a failure is to be reported instead; notes what the host then
    /// knows.
    fn wait(
        &self,
        call: Call,
        stream: StreamId,
        read: Option<DevicePtr>,
        wait: impl FnOnce() -> DeviceResult<()>,
    ) -> Result<(), DeviceError> {
        let covered = {
            let mut state = self.lock();
            state.admit(call, Some(stream))?;
            if let Some(src) = read {
                state.ledger.work(call, stream, [src.0]);
            }
            state.ledger.covered_by(stream)
        };
        let waited = wait();
        let mut state = self.lock();
        if waited.is_ok() {
            state.ledger.waited(&covered);
        }
        // An injected failure stands for one of the stream's own work, so it does not hide a real one.
        let reported = state.report_pending(call, stream);
        waited.and(reported)
    }
}

impl<D: Device + ?Sized> Device for FaultyDevice<D> {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn create_stream(&self) -> Result<StreamId, DeviceError> {
        let mut state = self.lock();
        state.admit(Call::CreateStream, None)?;
        let stream = self.inner.create_stream()?;
        state.ledger.stream_created(stream);
        Ok(stream)
    }

    fn destroy_stream(&self, stream: StreamId) -> Result<(), DeviceError> {
        let mut state = self.lock();
        if let Err(refused) = state.admit(Call::DestroyStream, Some(stream)) {
            state.ledger.stream_destroy_refused(stream);
            return Err(refused);
        }
        let destroyed = self.inner.destroy_stream(stream);
        if matches!(destroyed, Err(DeviceError::InvalidArgument { .. } | DeviceError::Capture { .. })) {
            return destroyed;
        }
        // Destroying drains, so any other error is one of the stream's work; the stream is gone all the same.
        state.ledger.stream_destroyed(stream);
        let reported = state.report_pending(Call::DestroyStream, stream);
        destroyed.and(reported)
    }

    fn alloc(&self, bytes: u64, stream: StreamId) -> Result<DevicePtr, DeviceError> {
        let mut state = self.lock();
        state.admit(Call::Alloc, Some(stream))?;
        let ptr = self.inner.alloc(bytes, stream)?;
        state.ledger.allocated(ptr, bytes, stream);
        Ok(ptr)
    }

    fn free(&self, ptr: DevicePtr, stream: StreamId) -> Result<(), DeviceError> {
        let mut state = self.lock();
        if let Err(refused) = state.admit(Call::Free, Some(stream)) {
            state.ledger.free_refused(ptr);
            return Err(refused);
        }
        let freed = self.inner.free(ptr, stream);
        match &freed {
            Ok(()) => state.ledger.freed(ptr, stream),
            Err(_) => state.ledger.free_rejected(ptr, stream),
        }
        freed
    }

    fn copy_to_device(&self, dst: DevicePtr, src: &[u8], stream: StreamId) -> Result<(), DeviceError> {
        let mut state = self.lock();
        state.admit(Call::CopyToDevice, Some(stream))?;
        state.ledger.work(Call::CopyToDevice, stream, [dst.0]);
        self.inner.copy_to_device(dst, src, stream)
    }

    fn copy_to_host(&self, dst: &mut [u8], src: DevicePtr, stream: StreamId) -> Result<(), DeviceError> {
        self.wait(Call::CopyToHost, stream, Some(src), || self.inner.copy_to_host(dst, src, stream))
    }

    fn copy_on_device(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), DeviceError> {
        let mut state = self.lock();
        state.admit(Call::CopyOnDevice, Some(stream))?;
        state.ledger.work(Call::CopyOnDevice, stream, [dst.0, src.0]);
        self.inner.copy_on_device(dst, src, bytes, stream)
    }

    fn memset(&self, dst: DevicePtr, value: u8, bytes: u64, stream: StreamId) -> Result<(), DeviceError> {
        let mut state = self.lock();
        state.admit(Call::Memset, Some(stream))?;
        state.ledger.work(Call::Memset, stream, [dst.0]);
        self.inner.memset(dst, value, bytes, stream)
    }

    fn load_kernel(&self, spec: &KernelSpec) -> Result<KernelId, DeviceError> {
        self.lock().admit(Call::LoadKernel, None)?;
        let kernel = self.inner.load_kernel(spec)?;
        self.lock().ledger.module_loaded(kernel, spec.label());
        Ok(kernel)
    }

    fn launch(
        &self,
        kernel: KernelId,
        config: LaunchConfig,
        params: &[u8],
        stream: StreamId,
    ) -> Result<(), DeviceError> {
        let mut state = self.lock();
        state.admit(Call::Launch, Some(stream))?;
        let pointers = state.ledger.pointers_in(params);
        state.ledger.work(Call::Launch, stream, pointers);
        self.inner.launch(kernel, config, params, stream)
    }

    fn launch_counts(&self) -> Vec<(String, u64)> {
        self.inner.launch_counts()
    }

    fn create_event(&self) -> Result<EventId, DeviceError> {
        let mut state = self.lock();
        state.admit(Call::CreateEvent, None)?;
        let event = self.inner.create_event()?;
        state.ledger.event_created(event);
        Ok(event)
    }

    fn destroy_event(&self, event: EventId) -> Result<(), DeviceError> {
        let mut state = self.lock();
        if let Err(refused) = state.admit(Call::DestroyEvent, None) {
            state.ledger.event_destroy_refused(event);
            return Err(refused);
        }
        self.inner.destroy_event(event)?;
        state.ledger.event_destroyed(event);
        Ok(())
    }

    fn record_event(&self, event: EventId, stream: StreamId) -> Result<(), DeviceError> {
        let mut state = self.lock();
        state.admit(Call::RecordEvent, Some(stream))?;
        self.inner.record_event(event, stream)?;
        state.ledger.event_recorded(event, stream);
        Ok(())
    }

    fn wait_event(&self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        let mut state = self.lock();
        state.admit(Call::WaitEvent, Some(stream))?;
        self.inner.wait_event(stream, event)?;
        state.ledger.event_awaited(stream, event);
        Ok(())
    }

    fn elapsed_ms(&self, start: EventId, end: EventId) -> Result<f32, DeviceError> {
        self.lock().admit(Call::ElapsedMs, None)?;
        let elapsed = self.inner.elapsed_ms(start, end)?;
        let mut state = self.lock();
        state.ledger.event_happened(start);
        state.ledger.event_happened(end);
        Ok(elapsed)
    }

    fn begin_capture(&self, stream: StreamId) -> Result<(), DeviceError> {
        let mut state = self.lock();
        state.admit(Call::BeginCapture, Some(stream))?;
        self.inner.begin_capture(stream)?;
        state.ledger.capture_begun(stream);
        Ok(())
    }

    fn end_capture(&self, stream: StreamId) -> Result<GraphId, DeviceError> {
        let mut state = self.lock();
        let admitted = state.admit(Call::EndCapture, Some(stream));
        let graph = self.inner.end_capture(stream);
        let late = state.recording.remove(&stream);
        if let Err(injected) = admitted {
            state.ledger.capture_ended(stream, None);
            if let Ok(graph) = graph {
                let _ = self.inner.destroy_graph(graph);
            }
            return Err(injected);
        }
        state.ledger.capture_ended(stream, graph.as_ref().ok().copied());
        if let (Some(fault), Ok(graph)) = (late, &graph) {
            state.recorded.insert(*graph, fault);
        }
        graph
    }

    fn launch_graph(&self, graph: GraphId, stream: StreamId) -> Result<(), DeviceError> {
        let mut state = self.lock();
        state.admit(Call::LaunchGraph, Some(stream))?;
        self.inner.launch_graph(graph, stream)?;
        state.ledger.graph_launched(graph, stream);
        if let Some(fault) = state.recorded.remove(&graph) {
            state.pending.entry(stream).or_insert(fault);
        }
        Ok(())
    }

    fn destroy_graph(&self, graph: GraphId) -> Result<(), DeviceError> {
        let mut state = self.lock();
        if let Err(refused) = state.admit(Call::DestroyGraph, None) {
            state.ledger.graph_destroy_refused(graph);
            return Err(refused);
        }
        self.inner.destroy_graph(graph)?;
        state.ledger.graph_destroyed(graph);
        Ok(())
    }

    fn pool(&self) -> Result<PoolBytes, DeviceError> {
        self.inner.pool()
    }

    fn reset_high_water(&self) -> Result<(), DeviceError> {
        self.inner.reset_high_water()
    }

    fn synchronize(&self, stream: StreamId) -> Result<(), DeviceError> {
        self.wait(Call::Synchronize, stream, None, || self.inner.synchronize(stream))
    }
}
