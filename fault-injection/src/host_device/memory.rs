//! The memory of a host device: allocations by address, with every access checked.

use std::collections::BTreeMap;

use kernels::device::{DeviceError, DevicePtr};

/// Addresses are multiples of this.
const ALIGN: u64 = 256;

/// Where addresses begin: no two 32-bit parameters of a kernel, one after the other, look like one of them.
const FIRST: u64 = 0x7a11_0000_0000;

/// Device memory as kernels written in Rust see it.
pub struct HostMemory {
    live: BTreeMap<u64, Vec<u8>>,
    next: u64,
    limit: Option<u64>,
    used: u64,
    high_water: u64,
}

impl HostMemory {
    pub(super) fn new(limit: Option<u64>) -> Self {
        Self { live: BTreeMap::new(), next: FIRST, limit, used: 0, high_water: 0 }
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }

    pub(super) fn high_water(&self) -> u64 {
        self.high_water
    }

    pub(super) fn reset_high_water(&mut self) {
        self.high_water = self.used;
    }

    pub(super) fn alloc(&mut self, bytes: u64) -> Result<DevicePtr, DeviceError> {
        if bytes == 0 {
            return Err(invalid("alloc", "bytes", "0", "at least 1"));
        }
        let refused = DeviceError::OutOfMemory { requested: bytes, used: self.used, limit: self.limit };
        if self.limit.is_some_and(|limit| bytes > limit.saturating_sub(self.used)) {
            return Err(refused);
        }
        let Ok(size) = usize::try_from(bytes) else { return Err(refused) };
        // More than the machine can give is out of memory, too, where filling a vector would abort.
        if Vec::<u8>::new().try_reserve_exact(size).is_err() {
            return Err(refused);
        }
        let ptr = self.next;
        // The end of one is not the start of the next.
        self.next = (self.next + bytes + 1).next_multiple_of(ALIGN);
        self.live.insert(ptr, vec![0xff; size]);
        self.used += bytes;
        self.high_water = self.high_water.max(self.used);
        Ok(DevicePtr(ptr))
    }

    pub(super) fn free(&mut self, ptr: DevicePtr) -> Result<(), DeviceError> {
        let Some(bytes) = self.live.remove(&ptr.0) else {
            let value = format!("{:#x}", ptr.0);
            return Err(invalid(
                "free",
                "ptr",
                &value,
                "an address that alloc returned and that was not freed",
            ));
        };
        self.used -= bytes.len() as u64;
        Ok(())
    }

    /// The `bytes` bytes from an address on.
    ///
    /// # Errors
    /// [`DeviceError::InvalidArgument`] if they do not lie in one live allocation.
    pub fn bytes_mut(&mut self, from: DevicePtr, bytes: u64) -> Result<&mut [u8], DeviceError> {
        let inside = self.live.range_mut(..=from.0).next_back().and_then(|(start, allocation)| {
            let from = usize::try_from(from.0 - start).ok()?;
            allocation.get_mut(from..from.checked_add(usize::try_from(bytes).ok()?)?)
        });
        inside.ok_or_else(|| {
            invalid(
                "access",
                "address",
                &format!("{bytes} bytes at {:#x}", from.0),
                "bytes of one live allocation",
            )
        })
    }
}

pub(super) fn invalid(
    call: &'static str,
    argument: &'static str,
    value: &str,
    accepted: &str,
) -> DeviceError {
    DeviceError::InvalidArgument { call, argument, value: value.to_owned(), accepted: accepted.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_are_aligned_and_do_not_touch() {
        let mut memory = HostMemory::new(None);
        let sizes = [1, ALIGN - 1, ALIGN, ALIGN + 1, ALIGN];
        let starts = sizes.map(|bytes| memory.alloc(bytes).expect("memory").0);
        assert!(starts.iter().all(|start| start % ALIGN == 0), "{starts:x?}");
        for ((start, bytes), next) in starts.iter().zip(sizes).zip(&starts[1..]) {
            assert!(start + bytes < *next, "{bytes} bytes at {start:#x}, the next at {next:#x}");
        }
    }
}
