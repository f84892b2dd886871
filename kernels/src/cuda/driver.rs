//! Driver calls that return our typed error, and the memory pool's attributes.

use cudarc::driver::sys;

use crate::device::{DeviceError, DeviceResult};

/// Turns a driver status into a [`DeviceError::Driver`] that names the call.
pub(super) fn check(call: &'static str, status: sys::CUresult) -> DeviceResult<()> {
    if status == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let error = cudarc::driver::DriverError(status);
    let text = |r: Result<&std::ffi::CStr, _>| {
        r.map_or_else(|_: cudarc::driver::DriverError| String::new(), |s| s.to_string_lossy().into_owned())
    };
    Err(DeviceError::Driver {
        call,
        code: text(error.error_name()),
        message: text(error.error_string()),
        sticky: is_sticky(status),
    })
}

/// Whether the error leaves the context unusable: every later call reports it again.
fn is_sticky(status: sys::CUresult) -> bool {
    use sys::CUresult as R;
    matches!(
        status,
        R::CUDA_ERROR_ILLEGAL_ADDRESS
            | R::CUDA_ERROR_LAUNCH_TIMEOUT
            | R::CUDA_ERROR_ASSERT
            | R::CUDA_ERROR_HARDWARE_STACK_ERROR
            | R::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | R::CUDA_ERROR_MISALIGNED_ADDRESS
            | R::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | R::CUDA_ERROR_INVALID_PC
            | R::CUDA_ERROR_LAUNCH_FAILED
            | R::CUDA_ERROR_ECC_UNCORRECTABLE
            | R::CUDA_ERROR_CONTEXT_IS_DESTROYED
    )
}

/// A stream-ordered memory pool of one device, destroyed on drop.
pub(super) struct Pool {
    pub(super) raw: sys::CUmemoryPool,
}

impl Pool {
    /// A new pool on device `ordinal` that keeps its memory between allocations; `limit` caps it in bytes.
    pub(super) fn new(ordinal: i32, limit: Option<u64>) -> DeviceResult<Self> {
        // SAFETY: the properties are plain data; zero is a valid value of every field that is not set below.
        let mut properties: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
        properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.handleTypes = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
        properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        properties.location.id = ordinal;
        properties.maxSize = limit.map_or(0, |l| usize::try_from(l).unwrap_or(usize::MAX));
        let mut raw = std::ptr::null_mut();
        // SAFETY: both pointers are valid for the call.
        check("cuMemPoolCreate", unsafe { sys::cuMemPoolCreate(&raw mut raw, &raw const properties) })?;
        let pool = Self { raw };
        let mut threshold = u64::MAX;
        // SAFETY: this attribute is a 64-bit integer.
        check("cuMemPoolSetAttribute", unsafe {
            sys::cuMemPoolSetAttribute(
                raw,
                sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                (&raw mut threshold).cast(),
            )
        })?;
        Ok(pool)
    }

    /// Reads a 64-bit attribute.
    pub(super) fn attribute(&self, which: sys::CUmemPool_attribute) -> DeviceResult<u64> {
        let mut value = 0u64;
        // SAFETY: the attributes asked for here are 64-bit integers.
        check("cuMemPoolGetAttribute", unsafe {
            sys::cuMemPoolGetAttribute(self.raw, which, (&raw mut value).cast())
        })?;
        Ok(value)
    }

    /// Sets the high-water mark of used bytes back to the present use.
    pub(super) fn reset_high_water(&self) -> DeviceResult<()> {
        let mut zero = 0u64;
        // SAFETY: this attribute is a 64-bit integer, and zero is the one value it may be set to.
        check("cuMemPoolSetAttribute", unsafe {
            sys::cuMemPoolSetAttribute(
                self.raw,
                sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH,
                (&raw mut zero).cast(),
            )
        })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: created by cuMemPoolCreate, destroyed once; the driver keeps it alive for outstanding allocations.
        let _ = unsafe { sys::cuMemPoolDestroy(self.raw) };
    }
}

/// Whose blocks go first where several streams have some to place.
pub(super) enum Priority {
    Highest,
    Lowest,
}

/// A stream that does not wait for the legacy default stream.
pub(super) fn new_stream(priority: Priority) -> DeviceResult<sys::CUstream> {
    let (mut least, mut greatest) = (0, 0);
    // SAFETY: the context is current; the pointers are valid.
    check("cuCtxGetStreamPriorityRange", unsafe {
        sys::cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest)
    })?;
    let priority = match priority {
        Priority::Highest => greatest,
        Priority::Lowest => least,
    };
    let mut raw = std::ptr::null_mut();
    let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
    // SAFETY: as above; the priority is the driver's own.
    check("cuStreamCreateWithPriority", unsafe {
        sys::cuStreamCreateWithPriority(&raw mut raw, flags, priority)
    })?;
    Ok(raw)
}
