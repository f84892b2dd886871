//! What a foreign kernel is watched with on a card: a stream held back on purpose, and the memory that others take.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::sys;

use super::device::CudaDevice;
use super::driver::check;
use crate::device::{DeviceResult, StreamId};

/// A stream that does not go on until this is released, or its time is up.
pub struct Hold {
    shared: Arc<Shared>,
}

struct Shared {
    released: AtomicBool,
    expired: AtomicBool,
    limit: Duration,
}

impl Hold {
    /// Lets the stream go on. Says whether it was held until now: if not, its time had been up.
    #[must_use]
    pub fn release(self) -> bool {
        self.shared.released.store(true, Ordering::Release);
        !self.shared.expired.load(Ordering::Acquire)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.shared.released.store(true, Ordering::Release);
    }
}

/// Runs on a thread of the driver: the stream waits until it returns.
unsafe extern "C" fn wait(shared: *mut std::ffi::c_void) {
    // SAFETY: the pointer is the one reference that `hold` has given away for this call.
    let shared = unsafe { Arc::from_raw(shared.cast::<Shared>().cast_const()) };
    let start = Instant::now();
    while !shared.released.load(Ordering::Acquire) {
        if start.elapsed() > shared.limit {
            shared.expired.store(true, Ordering::Release);
            return;
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}

impl CudaDevice {
    /// Holds a stream back: work that is put on it from now on waits for [`Hold::release`], at most for `limit`.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn hold(&self, stream: StreamId, limit: Duration) -> DeviceResult<Hold> {
        let raw = self.raw_stream(stream)?;
        let shared =
            Arc::new(Shared { released: AtomicBool::new(false), expired: AtomicBool::new(false), limit });
        let given = Arc::into_raw(shared.clone()).cast_mut().cast();
        // SAFETY: the stream is live; the function takes the reference back when it runs.
        let status = unsafe { sys::cuLaunchHostFunc(raw.cast(), Some(wait), given) };
        if status != sys::CUresult::CUDA_SUCCESS {
            // SAFETY: the function will not run, so the reference is still here.
            drop(unsafe { Arc::from_raw(given.cast::<Shared>().cast_const()) });
        }
        check("cuLaunchHostFunc", status)?;
        Ok(Hold { shared })
    }

    /// Bytes of the card that are taken: by anybody, and of the context's default pool.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn taken_bytes(&self) -> DeviceResult<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        let mut pool = std::ptr::null_mut();
        let mut used = 0_u64;
        self.make_current()?;
        // SAFETY: the context is current, and every pointer is valid; the attribute is a 64-bit integer.
        unsafe {
            check("cuMemGetInfo", sys::cuMemGetInfo_v2(&raw mut free, &raw mut total))?;
            check(
                "cuDeviceGetDefaultMemPool",
                sys::cuDeviceGetDefaultMemPool(&raw mut pool, self.raw_device()),
            )?;
            let which = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
            check("cuMemPoolGetAttribute", sys::cuMemPoolGetAttribute(pool, which, (&raw mut used).cast()))?;
        }
        Ok(((total - free) as u64, used))
    }
}
