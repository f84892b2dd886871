//! Address ranges reserved from the system and opened page by page.

use std::io;

/// Size of a page.
pub(super) const PAGE: usize = 4096;

/// `value` rounded up to a multiple of `unit`, a power of two.
pub(super) const fn round_up(value: usize, unit: usize) -> usize {
    (value + unit - 1) & !(unit - 1)
}

/// A range of addresses, inaccessible until opened. Unmapped when dropped.
pub(super) struct Reservation {
    mapped: usize,
    mapped_bytes: usize,
    base: usize,
    bytes: usize,
}

const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

impl Reservation {
    /// Reserves `bytes`, starting at a multiple of `align` (a power of two, at least a page).
    pub fn new(bytes: usize, align: usize) -> io::Result<Self> {
        let mapped_bytes = round_up(bytes, PAGE) + align;
        // SAFETY: a fresh anonymous mapping touches nothing that exists.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), mapped_bytes, libc::PROT_NONE, ANONYMOUS, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapped = address as usize;
        Ok(Self { mapped, mapped_bytes, base: round_up(mapped, align), bytes })
    }

    /// First address.
    pub fn base(&self) -> usize {
        self.base
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes whole pages readable and writable; they read as zero.
    pub fn open(&self, address: usize, bytes: usize) -> io::Result<()> {
        self.remap(address, bytes, libc::PROT_READ | libc::PROT_WRITE, ANONYMOUS, -1)
    }

    /// Makes whole pages inaccessible and gives their memory back.
    pub fn close(&self, address: usize, bytes: usize) -> io::Result<()> {
        self.remap(address, bytes, libc::PROT_NONE, ANONYMOUS, -1)
    }

    /// Maps a file's first `bytes` copy-on-write.
    pub fn open_copy(&self, address: usize, bytes: usize, file: i32) -> io::Result<()> {
        let flags = libc::MAP_PRIVATE | libc::MAP_NORESERVE;
        self.remap(address, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, file)
    }

    /// Asks for ordinary pages: a table touched here and there would otherwise fill up with huge ones. A kernel
    /// without huge pages refuses, which is as good.
    pub fn use_small_pages(&self, address: usize, bytes: usize) {
        // SAFETY: advice about this reservation's pages changes no contents.
        unsafe { libc::madvise(address as *mut libc::c_void, bytes, libc::MADV_NOHUGEPAGE) };
    }

    fn remap(&self, address: usize, bytes: usize, protection: i32, flags: i32, file: i32) -> io::Result<()> {
        assert!(address.is_multiple_of(PAGE) && bytes.is_multiple_of(PAGE), "whole pages only");
        assert!(address >= self.base && address + bytes <= self.base + self.bytes, "inside the reservation");
        // SAFETY: the range lies inside this reservation, which nothing else uses.
        let got = unsafe {
            libc::mmap(address as *mut libc::c_void, bytes, protection, flags | libc::MAP_FIXED, file, 0)
        };
        if got == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: this object owns the mapping.
        unsafe { libc::munmap(self.mapped as *mut libc::c_void, self.mapped_bytes) };
    }
}
