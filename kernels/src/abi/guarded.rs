//! Host memory that notices: every buffer ends at a page that nobody may touch, inputs may only be read, and the few bytes
//! between a buffer and its page's edge hold a pattern.

use std::io;
use std::ops::Range;

use super::watch::{self, Watched};

/// Alignment of a buffer's first byte.
const ALIGNMENT: usize = 16;

/// Address space that calls are placed in. Untouched pages cost nothing.
const RESERVED_BYTES: usize = 1 << 36;

/// Bytes around buffers: as 16-bit, 32-bit or 8-bit floats they are NaN.
const CANARY: [u8; 2] = [0xff, 0x7f];

/// Size of a page.
pub(super) fn page_bytes() -> usize {
    // SAFETY: reads a constant of the system.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Where the buffers of a call lie: the same seed and the same sizes give the same addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Draws the page of the first buffer and the order of the buffers.
    pub seed: u64,
}

/// One buffer to place.
#[derive(Clone, Copy, Debug)]
pub struct BufferSpec<'a> {
    /// Its name in findings.
    pub name: &'a str,
    /// Its contents.
    pub bytes: &'a [u8],
    /// Whether the kernel may write it.
    pub writable: bool,
    /// Alignment of its first byte, at least 16.
    pub alignment: usize,
}

impl<'a> BufferSpec<'a> {
    /// A buffer with the usual alignment.
    #[must_use]
    pub fn new(name: &'a str, bytes: &'a [u8], writable: bool) -> Self {
        Self { name, bytes, writable, alignment: ALIGNMENT }
    }
}

/// Bytes beside a buffer that were overwritten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The buffer.
    pub name: String,
    /// How many bytes.
    pub bytes: usize,
    /// The first of them, counted from the buffer's start: negative before it, else at or past its end.
    pub first: i64,
}

/// Address space for the calls of a process.
pub struct GuardedMemory {
    base: usize,
    bytes: usize,
}

impl GuardedMemory {
    /// Reserves address space.
    ///
    /// # Errors
    /// If the system does not give as much.
    pub fn reserve() -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let mut bytes = RESERVED_BYTES;
        loop {
            // SAFETY: a fresh mapping that nothing refers to.
            let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
            if base != libc::MAP_FAILED {
                return Ok(Self { base: base as usize, bytes });
            }
            // A limit on address space: some placements fewer.
            bytes /= 4;
            if bytes < 1 << 30 {
                return Err(io::Error::last_os_error());
            }
        }
    }

    /// An aligned address that may not be touched.
    #[must_use]
    pub fn untouchable(&self) -> u64 {
        (self.base + self.bytes / 2) as u64
    }

    /// Places the buffers of one call.
    ///
    /// # Errors
    /// If they do not fit, or the system has no memory for them.
    pub fn place(&self, buffers: &[BufferSpec<'_>], placement: Placement) -> io::Result<Placed<'_>> {
        let page = page_bytes();
        let span =
            |spec: &BufferSpec<'_>| rounded(spec.bytes.len(), spec.alignment).div_ceil(page) * page + page;
        let needed = page + buffers.iter().map(span).sum::<usize>();
        if needed > self.bytes / 2 {
            return Err(io::Error::other(format!(
                "a call needs {needed} bytes; accepted: at most {}",
                self.bytes / 2
            )));
        }
        let mut random = placement.seed;
        let pages = (self.bytes - needed) / page;
        let mut at = self.base + (draw(&mut random) as usize % pages) * page;
        let mut order: Vec<usize> = (0..buffers.len()).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, draw(&mut random) as usize % (last + 1));
        }
        let mut placed = Placed {
            memory: self,
            buffers: vec![Span::default(); buffers.len()],
            whole: at..at + needed,
            table: None,
        };
        // The guard before the first buffer.
        at += page;
        for index in order {
            let spec = &buffers[index];
            let end = at + span(spec) - page;
            let start = end - rounded(spec.bytes.len(), spec.alignment);
            placed.buffers[index] = Span {
                name: spec.name.to_owned(),
                pages: at..end,
                data: start..start + spec.bytes.len(),
                writable: spec.writable,
            };
            at = end + page;
        }
        placed.fill(buffers)?;
        placed.table = Some(watch::remember(placed.buffers.iter().map(Span::watched).collect()));
        Ok(placed)
    }
}

fn rounded(bytes: usize, alignment: usize) -> usize {
    bytes.div_ceil(alignment.max(ALIGNMENT)) * alignment.max(ALIGNMENT)
}

/// The next number of a splitmix sequence.
fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[derive(Clone, Debug, Default)]
struct Span {
    name: String,
    pages: Range<usize>,
    data: Range<usize>,
    writable: bool,
}

impl Span {
    /// For the fault handler: the buffer's pages and the guard pages at both sides.
    fn watched(&self) -> Watched {
        let page = page_bytes();
        Watched {
            name: self.name.clone(),
            start: self.data.start,
            bytes: self.data.len(),
            // Half of the guard page before belongs to the buffer before.
            from: self.pages.start - page / 2,
            to: self.pages.end + page / 2,
            writable: self.writable,
        }
    }

    /// Canary bytes before and after the data.
    fn margins(&self) -> [Range<usize>; 2] {
        [self.pages.start..self.data.start, self.data.end..self.pages.end]
    }
}

/// The buffers of one call. When it is dropped, their pages may not be touched any more.
pub struct Placed<'a> {
    memory: &'a GuardedMemory,
    buffers: Vec<Span>,
    whole: Range<usize>,
    table: Option<usize>,
}

impl Placed<'_> {
    /// Address of a buffer's first byte.
    #[must_use]
    pub fn address(&self, buffer: usize) -> *mut u8 {
        self.buffers[buffer].data.start as *mut u8
    }

    /// A buffer's contents.
    #[must_use]
    pub fn read(&self, buffer: usize) -> Vec<u8> {
        let data = &self.buffers[buffer].data;
        // SAFETY: the pages are readable until drop.
        unsafe { std::slice::from_raw_parts(data.start as *const u8, data.len()) }.to_vec()
    }

    /// Writes the first contents of a writable buffer again.
    ///
    /// # Panics
    /// If the length is another, or the buffer is an input.
    pub fn rewrite(&mut self, buffer: usize, bytes: &[u8]) {
        let span = &self.buffers[buffer];
        assert!(
            span.writable && bytes.len() == span.data.len(),
            "only outputs are written again, as a whole"
        );
        // SAFETY: the pages are writable until drop.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), span.data.start as *mut u8, bytes.len()) };
    }

    /// Canary bytes that are not what they were.
    #[must_use]
    pub fn damage(&self) -> Vec<Damage> {
        let found = self.buffers.iter().filter(|span| span.writable).flat_map(|span| {
            let changed = move |range: Range<usize>| {
                // SAFETY: the pages are readable until drop.
                let wrong = move |at: &usize| unsafe { *(*at as *const u8) } != CANARY[at % 2];
                let first = range.clone().find(wrong)?;
                let first_offset = first as i64 - span.data.start as i64;
                Some(Damage {
                    name: span.name.clone(),
                    bytes: range.filter(wrong).count(),
                    first: first_offset,
                })
            };
            span.margins().into_iter().filter_map(changed)
        });
        found.collect()
    }

    fn fill(&mut self, buffers: &[BufferSpec<'_>]) -> io::Result<()> {
        for (span, spec) in self.buffers.iter().zip(buffers).filter(|(span, _)| !span.pages.is_empty()) {
            protect(&span.pages, libc::PROT_READ | libc::PROT_WRITE)?;
            // SAFETY: the pages have just been made writable and are this call's own.
            unsafe {
                for at in span.margins().into_iter().flatten() {
                    *(at as *mut u8) = CANARY[at % 2];
                }
                std::ptr::copy_nonoverlapping(
                    spec.bytes.as_ptr(),
                    span.data.start as *mut u8,
                    spec.bytes.len(),
                );
            }
            if !spec.writable {
                protect(&span.pages, libc::PROT_READ)?;
            }
        }
        Ok(())
    }
}

impl Drop for Placed<'_> {
    fn drop(&mut self) {
        debug_assert!(
            self.whole.start >= self.memory.base && self.whole.end <= self.memory.base + self.memory.bytes
        );
        if let Some(table) = self.table {
            watch::retire(table);
        }
        // SAFETY: the range is this call's own part of the reservation.
        unsafe {
            libc::madvise(self.whole.start as *mut libc::c_void, self.whole.len(), libc::MADV_DONTNEED)
        };
        // What cannot be protected stays readable: nothing is lost but the name of a later fault.
        let _ = protect(&self.whole, libc::PROT_NONE);
    }
}

fn protect(range: &Range<usize>, protection: i32) -> io::Result<()> {
    // SAFETY: only ranges of the reservation are passed.
    match unsafe { libc::mprotect(range.start as *mut libc::c_void, range.len(), protection) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_addresses_and_another_gives_others() {
        let memory = GuardedMemory::reserve().expect("address space");
        let bytes = [1_u8; 40];
        let specs = [BufferSpec::new("a", &bytes, true), BufferSpec::new("b", &bytes[..7], false)];
        let addresses = |seed| {
            let placed = memory.place(&specs, Placement { seed }).expect("memory");
            assert_eq!((placed.read(0), placed.read(1)), (bytes.to_vec(), bytes[..7].to_vec()));
            [placed.address(0) as usize, placed.address(1) as usize]
        };
        assert_eq!(addresses(1), addresses(1));
        assert_ne!(addresses(1), addresses(2));
        let orders: std::collections::BTreeSet<bool> = (0..16).map(addresses).map(|[a, b]| a < b).collect();
        assert_eq!(orders.len(), 2, "both orders occur");
        assert!(addresses(3).iter().all(|address| address.is_multiple_of(16)));
    }

    #[test]
    fn bytes_beside_a_buffer_are_watched() {
        let memory = GuardedMemory::reserve().expect("address space");
        let bytes = [0_u8; 40];
        let mut placed =
            memory.place(&[BufferSpec::new("out", &bytes, true)], Placement { seed: 5 }).expect("memory");
        assert_eq!(placed.damage(), []);
        placed.rewrite(0, &[7; 40]);
        assert_eq!((placed.damage(), placed.read(0)), (Vec::new(), vec![7; 40]));
        // SAFETY: within the pages of the buffer.
        unsafe {
            *placed.address(0).add(40) = 0;
            *placed.address(0).sub(3) = 0;
        }
        let damage = |first| Damage { name: "out".to_owned(), bytes: 1, first };
        assert_eq!(placed.damage(), [damage(-3), damage(40)]);
    }
}
