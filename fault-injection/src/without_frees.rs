//! A device whose frees do nothing: what a sweep must notice.

use std::sync::Arc;

use kernels::device::{Device, DeviceError, DevicePtr, DeviceRef, StreamId};

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
    fn free(&self, _ptr: DevicePtr, _stream: StreamId) -> Result<(), DeviceError> {
        Ok(())
    }

    kernels::forward_device! { 0:
        info create_stream destroy_stream alloc copy_to_device copy_to_host copy_on_device memset
        load_kernel launch launch_counts create_event destroy_event record_event wait_event elapsed_ms
        begin_capture end_capture launch_graph destroy_graph pool reset_high_water synchronize
    }
}
