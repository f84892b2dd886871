//! What fresh memory holds, and the canaries around allocations.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};

use super::pages::Reservation;

/// Contents of fresh device memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Fill {
    /// Every byte 0xFF: NaN in every format.
    #[default]
    Nan,
    /// Every byte 0x71: about 2^100 in bf16 and f32, 11152 in f16, and large in both fp8 formats. A maximum hides
    /// NaN, but not this.
    Large,
}

impl Fill {
    /// The byte.
    #[must_use]
    pub fn byte(self) -> u8 {
        match self {
            Self::Nan => 0xff,
            Self::Large => 0x71,
        }
    }
}

/// Allocations larger than this are not filled by writing them.
const WRITE_LIMIT: usize = 16 << 20;

/// Maps memory that holds the fill.
pub(super) struct Pattern {
    fill: Fill,
    /// `WRITE_LIMIT` bytes of the fill, mapped copy-on-write again and again under large allocations, so that these
    /// cost memory only where they are written.
    file: Option<File>,
}

impl Pattern {
    pub fn new(fill: Fill) -> Self {
        Self { fill, file: None }
    }

    /// Opens whole pages that read as the fill.
    pub fn map(&mut self, range: &Reservation, address: usize, bytes: usize) -> io::Result<()> {
        if bytes <= WRITE_LIMIT {
            range.open(address, bytes)?;
            // SAFETY: the pages were just mapped and belong to the new allocation.
            unsafe { std::ptr::write_bytes(address as *mut u8, self.fill.byte(), bytes) };
            return Ok(());
        }
        let file = self.file()?;
        let mut at = address;
        while at < address + bytes {
            let piece = WRITE_LIMIT.min(address + bytes - at);
            range.open_copy(at, piece, file)?;
            at += piece;
        }
        Ok(())
    }

    fn file(&mut self) -> io::Result<i32> {
        if self.file.is_none() {
            // SAFETY: the name is a valid C string; a new descriptor is owned by the `File`.
            let file = unsafe {
                let descriptor = libc::memfd_create(c"simt-fill".as_ptr(), libc::MFD_CLOEXEC);
                if descriptor < 0 {
                    return Err(io::Error::last_os_error());
                }
                File::from_raw_fd(descriptor)
            };
            let block = vec![self.fill.byte(); 1 << 20];
            for _ in 0..WRITE_LIMIT >> 20 {
                io::Write::write_all(&mut &file, &block)?;
            }
            self.file = Some(file);
        }
        Ok(self.file.as_ref().map_or(-1, AsRawFd::as_raw_fd))
    }
}

/// Alternating 0xFF and 0x7F: NaN in every format at either alignment, yet unlike either fill.
fn canary_byte(address: usize) -> u8 {
    if address & 1 == 0 { 0xff } else { 0x7f }
}

/// Writes canaries into `from..to`.
///
/// # Safety
/// The bytes are mapped and not part of an allocation.
pub(super) unsafe fn write_canary(from: usize, to: usize) {
    for address in from..to {
        // SAFETY: the caller's promise.
        unsafe { (address as *mut u8).write(canary_byte(address)) };
    }
}

/// Address of the first byte in `from..to` that no longer holds its canary.
///
/// # Safety
/// The bytes are mapped.
pub(super) unsafe fn broken_canary(from: usize, to: usize) -> Option<usize> {
    // SAFETY: the caller's promise.
    (from..to).find(|&address| unsafe { (address as *const u8).read() } != canary_byte(address))
}
