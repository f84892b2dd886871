//! Scratch memory that always returns to its pool.

use crate::device::{DeviceError, DevicePtr, DeviceRef, StreamId};

/// Owns one allocation from the moment it succeeds, and frees it on its own stream when dropped.
///
/// Dropping never panics and reports nothing: on the way out of a failure, the first error is the one that counts.
/// [`Scratch::release`] is the path of success, where a failed free is an error like any other.
pub struct Scratch {
    device: DeviceRef,
    stream: StreamId,
    ptr: DevicePtr,
    bytes: u64,
}

impl Scratch {
    /// `bytes` bytes, ordered on `stream`.
    ///
    /// # Errors
    /// What [`crate::device::Device::alloc`] reports.
    pub fn new(device: &DeviceRef, bytes: u64, stream: StreamId) -> Result<Self, DeviceError> {
        let ptr = device.alloc(bytes, stream)?;
        Ok(Self { device: DeviceRef::clone(device), stream, ptr, bytes })
    }

    /// The first byte.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Frees the memory in stream order and reports what the device says.
    ///
    /// # Errors
    /// What [`crate::device::Device::free`] reports, the first time it was asked.
    pub fn release(mut self) -> Result<(), DeviceError> {
        self.free()
    }

    // A refused free leaves the memory allocated, so it is asked for once more before the address is given up. A stream that
    // is gone was drained when it was destroyed, so the default stream may take its frees. After a sticky error the context
    // is lost and its memory with it.
    fn free(&mut self) -> Result<(), DeviceError> {
        let ptr = std::mem::take(&mut self.ptr);
        let Err(first) = self.device.free(ptr, self.stream) else { return Ok(()) };
        let again = match first {
            DeviceError::Driver { sticky: true, .. } => return Err(first),
            DeviceError::InvalidArgument { argument: "stream", .. } => StreamId::DEFAULT,
            _ => self.stream,
        };
        let _ = self.device.free(ptr, again);
        Err(first)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.ptr.is_null() {
            let _ = self.free();
        }
    }
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scratch")
            .field("ptr", &self.ptr)
            .field("bytes", &self.bytes)
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}
