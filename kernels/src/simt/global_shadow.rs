//! What is remembered about every byte of global memory: whether it was written at all, and which thread blocks of
//! the running launch read and wrote it.
//!
//! Blocks of a launch are never ordered with one another, so a byte that one block writes and another touches is a
//! race, atomics among themselves excepted. Nothing has to be cleared between launches: blocks carry serial numbers
//! that grow for the life of the device.

use std::collections::HashMap;
use std::io;

use super::pages::{PAGE, Reservation, round_up};

/// Bytes per cell.
const WORD: usize = 4;

/// Four bytes of global memory, as long as one writing block and one record of readers describe them.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Cell {
    /// Serial number of the block that wrote the bytes of `write`'s mask.
    writer: u32,
    write: Info,
    /// Serial number of a block that read the bytes of `read`'s mask; others may have too.
    reader: u32,
    read: Info,
}

/// Code offset (27 bits), byte mask (4 bits), flag (1 bit: many readers, or details in the side table).
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
struct Info(u32);

/// Code offsets that fit; larger libraries lose only the line of the other party.
const PC_BITS: u32 = 27;

impl Info {
    #[inline]
    fn new(pc: u32, mask: u32, flag: bool) -> Self {
        let pc = if pc >> PC_BITS == 0 { pc } else { 0 };
        Self(pc | mask << PC_BITS | u32::from(flag) << 31)
    }

    #[inline]
    fn pc(self) -> u32 {
        self.0 & ((1 << PC_BITS) - 1)
    }

    #[inline]
    fn mask(self) -> u32 {
        self.0 >> PC_BITS & 15
    }

    #[inline]
    fn flag(self) -> bool {
        self.0 >> 31 == 1
    }

    #[inline]
    fn add(&mut self, mask: u32) {
        self.0 |= mask << PC_BITS;
    }
}

/// Serial number of no block: stands for one that was not kept.
const UNRECORDED: u32 = 0;

/// A block and where in the code it acted.
type Act = (u32, u32);

/// One byte in full: the last writer, and the first two distinct blocks of readers and of atomics.
#[derive(Clone, Copy, Default)]
struct ByteRecord {
    writer: Option<Act>,
    readers: [Option<Act>; 2],
    atomics: [Option<Act>; 2],
}

impl ByteRecord {
    fn other(acts: &[Option<Act>], block: u32) -> Option<Act> {
        acts.iter().flatten().copied().find(|&(b, _)| b != block)
    }

    fn note(acts: &mut [Option<Act>; 2], block: u32, pc: u32) {
        match acts {
            [None, _] => acts[0] = Some((block, pc)),
            [Some((first, _)), second @ None] if *first != block => *second = Some((block, pc)),
            _ => {}
        }
    }
}

/// An access of another block that is not ordered with the present one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OtherBlock {
    /// Serial number of the block.
    pub serial: u32,
    pub pc: u32,
    pub action: &'static str,
    /// First address concerned.
    pub address: usize,
}

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Read,
    Write,
    Atomic,
}

/// The shadow of a device's whole address range. Memory is used only for what is touched.
pub(super) struct GlobalShadow {
    base: usize,
    bytes: usize,
    cells: Reservation,
    defined: Reservation,
    details: HashMap<usize, [ByteRecord; WORD]>,
    next_serial: u32,
    launch_first: u32,
}

impl GlobalShadow {
    /// A shadow for the addresses `base..base + bytes`.
    pub fn new((base, bytes): (usize, usize)) -> io::Result<Self> {
        let cells = Reservation::new(bytes / WORD * size_of::<Cell>(), PAGE)?;
        let defined = Reservation::new(bytes / 8 + PAGE, PAGE)?;
        for area in [&cells, &defined] {
            area.open(area.base(), area.bytes())?;
            area.use_small_pages(area.base(), area.bytes());
        }
        Ok(Self { base, bytes, cells, defined, details: HashMap::new(), next_serial: 1, launch_first: 1 })
    }

    /// Prepares for a launch of this many blocks.
    pub fn start_launch(&mut self, blocks: u64) -> io::Result<()> {
        if u64::from(self.next_serial) + blocks > u64::from(u32::MAX) {
            self.cells.open(self.cells.base(), self.cells.bytes())?;
            self.next_serial = 1;
        }
        self.launch_first = self.next_serial;
        self.details.clear();
        Ok(())
    }

    /// Serial number for the next block of the launch; the n-th gets `launch_first + n`.
    pub fn start_block(&mut self) -> u32 {
        self.next_serial = self.next_serial.wrapping_add(1);
        self.next_serial - 1
    }

    /// Position in the launch's order of a block with this serial number; `None` for the number that stands for a
    /// block which was not recorded.
    pub fn position(&self, serial: u32) -> Option<u64> {
        serial.checked_sub(self.launch_first).map(u64::from)
    }

    #[inline]
    fn bits(&self, address: usize) -> *mut u32 {
        (self.defined.base() + ((address - self.base) >> 3)) as *mut u32
    }

    /// The first of up to 16 bytes that nothing has written.
    #[inline]
    pub fn first_undefined(&self, address: usize, bytes: usize) -> Option<usize> {
        let shift = address & 7;
        let mask = (((1_u64 << bytes) - 1) << shift) as u32;
        // SAFETY: the caller asks for addresses of the range only; the shadow has spare bytes at its end.
        let missing = unsafe { !self.bits(address).read_unaligned() } & mask;
        if missing == 0 { None } else { Some(address + missing.trailing_zeros() as usize - shift) }
    }

    /// Marks up to 16 bytes as written.
    #[inline]
    pub fn define(&mut self, address: usize, bytes: usize) {
        let mask = (((1_u64 << bytes) - 1) << (address & 7)) as u32;
        // SAFETY: as above.
        unsafe {
            let bits = self.bits(address);
            bits.write_unaligned(bits.read_unaligned() | mask);
        }
    }

    /// Whether every byte of a range was written.
    pub fn all_defined(&self, address: usize, bytes: usize) -> bool {
        pieces(address, bytes).all(|(at, n)| self.first_undefined(at, n).is_none())
    }

    /// Marks any number of bytes as written.
    pub fn define_range(&mut self, address: usize, bytes: usize) {
        let (whole, end) = (round_up(address, 8).min(address + bytes), address + bytes);
        self.define(address, whole - address);
        let count = (end - whole) / 8;
        // SAFETY: the bits of whole groups of eight bytes inside the range.
        unsafe { std::ptr::write_bytes(self.bits(whole).cast::<u8>(), 0xff, count) };
        self.define(whole + 8 * count, end - whole - 8 * count);
    }

    /// Marks a fresh allocation as unwritten. It shares no group of eight bytes with another.
    pub fn forget(&mut self, address: usize, bytes: usize) -> io::Result<()> {
        let from = self.bits(address) as usize;
        let to = from + bytes.div_ceil(8);
        let (first, last) = (round_up(from, PAGE), to & !(PAGE - 1));
        if first < last {
            self.defined.open(first, last - first)?;
        }
        let zero = |from: usize, to: usize| {
            // SAFETY: inside the bits of the allocation.
            unsafe { std::ptr::write_bytes(from as *mut u8, 0, to - from) };
        };
        zero(from, first.min(to));
        if last >= first {
            zero(last, to);
        }
        Ok(())
    }

    /// Copies what is known of one range to another of the same length.
    pub fn copy(&mut self, to: usize, from: usize, bytes: usize) {
        let known: Vec<bool> = (0..bytes).map(|i| self.first_undefined(from + i, 1).is_none()).collect();
        for (i, known) in known.into_iter().enumerate() {
            let at = to + i;
            // SAFETY: a byte of the shadow.
            unsafe {
                let byte = self.bits(at).cast::<u8>();
                let bit = 1 << (at & 7);
                *byte = if known { *byte | bit } else { *byte & !bit };
            }
        }
    }

    /// Records an access of `bytes` by block `serial` and says which access of another block it races with.
    #[inline]
    pub fn access(
        &mut self,
        serial: u32,
        address: usize,
        bytes: usize,
        action: Action,
        pc: u32,
    ) -> Option<OtherBlock> {
        let mut at = address;
        let end = address + bytes;
        let mut found = None;
        while at < end {
            let word = at & !(WORD - 1);
            let stop = end.min(word + WORD);
            let mask = (15 << (at - word)) & (15 >> (word + WORD - stop));
            let other = match action {
                Action::Read => self.read(serial, word, mask, pc),
                Action::Write => self.write(serial, word, mask, pc),
                Action::Atomic => self.detailed(serial, word, mask, action, pc),
            };
            found = found.or(other);
            at = stop;
        }
        found
    }

    #[inline]
    fn cell(&self, word: usize) -> *mut Cell {
        debug_assert!(word - self.base < self.bytes);
        (self.cells.base() + (word - self.base) / WORD * size_of::<Cell>()) as *mut Cell
    }

    #[inline]
    fn read(&mut self, serial: u32, word: usize, mask: u32, pc: u32) -> Option<OtherBlock> {
        // SAFETY: every word of the range has a cell.
        let cell = unsafe { &mut *self.cell(word) };
        let mut found = None;
        if cell.writer >= self.launch_first && (cell.writer != serial || cell.write.flag()) {
            if cell.write.flag() {
                return self.detailed(serial, word, mask, Action::Read, pc);
            }
            if cell.write.mask() & mask != 0 {
                found = Some(OtherBlock {
                    serial: cell.writer,
                    pc: cell.write.pc(),
                    action: "written",
                    address: word,
                });
            }
        }
        let (known, many) = (cell.read.mask(), cell.read.flag());
        if cell.reader < self.launch_first {
            cell.reader = serial;
            cell.read = Info::new(pc, mask, false);
        } else if mask & !known == 0 && (many || cell.reader == serial) {
            // Nothing new.
        } else if cell.reader == serial && !many {
            cell.read.add(mask);
        } else if mask == known {
            cell.read = Info::new(cell.read.pc(), known, true);
        } else {
            return self.detailed(serial, word, mask, Action::Read, pc);
        }
        found
    }

    #[inline]
    fn write(&mut self, serial: u32, word: usize, mask: u32, pc: u32) -> Option<OtherBlock> {
        // SAFETY: as above.
        let cell = unsafe { &mut *self.cell(word) };
        let written = cell.writer >= self.launch_first;
        if written && cell.write.flag() {
            return self.detailed(serial, word, mask, Action::Write, pc);
        }
        let mut found = None;
        if written && cell.writer != serial {
            if cell.write.mask() & !mask != 0 {
                return self.detailed(serial, word, mask, Action::Write, pc);
            }
            found = Some(OtherBlock {
                serial: cell.writer,
                pc: cell.write.pc(),
                action: "written",
                address: word,
            });
        }
        if cell.reader >= self.launch_first
            && (cell.reader != serial || cell.read.flag())
            && cell.read.mask() & mask != 0
        {
            let reader = if cell.reader == serial { UNRECORDED } else { cell.reader };
            let other = OtherBlock { serial: reader, pc: cell.read.pc(), action: "read", address: word };
            found = found.or(Some(other));
        }
        let before = if written && cell.writer == serial { cell.write.mask() } else { 0 };
        cell.writer = serial;
        cell.write = Info::new(pc, mask | before, false);
        found
    }

    /// The exact path: every byte on its own. Taken when blocks share a word without sharing bytes, and for atomics.
    #[cold]
    #[inline(never)]
    fn detailed(
        &mut self,
        serial: u32,
        word: usize,
        mask: u32,
        action: Action,
        pc: u32,
    ) -> Option<OtherBlock> {
        // SAFETY: as above.
        let cell = unsafe { &mut *self.cell(word) };
        let first = self.launch_first;
        let records = self.details.entry(word).or_insert_with(|| spell_out(cell, first));
        cell.writer = serial;
        cell.write = Info::new(0, 0, true);
        let mut found = None;
        for (i, record) in records.iter_mut().enumerate().filter(|(i, _)| mask >> i & 1 == 1) {
            let mut against = |acts: &[Option<Act>], action: &'static str| {
                if let Some((serial, pc)) = ByteRecord::other(acts, serial) {
                    found.get_or_insert(OtherBlock { serial, pc, action, address: word + i });
                }
            };
            against(&[record.writer], "written");
            if action != Action::Read {
                against(&record.readers, "read");
            }
            if action != Action::Atomic {
                against(&record.atomics, "updated by an atomic");
            }
            match action {
                Action::Read => ByteRecord::note(&mut record.readers, serial, pc),
                Action::Write => record.writer = Some((serial, pc)),
                Action::Atomic => ByteRecord::note(&mut record.atomics, serial, pc),
            }
        }
        found
    }
}

/// What a cell says about each of its bytes in this launch.
fn spell_out(cell: &Cell, first: u32) -> [ByteRecord; WORD] {
    let mut records = [ByteRecord::default(); WORD];
    for (i, record) in records.iter_mut().enumerate() {
        if cell.writer >= first && !cell.write.flag() && cell.write.mask() >> i & 1 == 1 {
            record.writer = Some((cell.writer, cell.write.pc()));
        }
        if cell.reader >= first && cell.read.mask() >> i & 1 == 1 {
            record.readers[0] = Some((cell.reader, cell.read.pc()));
            if cell.read.flag() {
                record.readers[1] = Some((UNRECORDED, cell.read.pc()));
            }
        }
    }
    records
}

/// A range in pieces of at most 16 bytes.
pub(super) fn pieces(address: usize, bytes: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..bytes).step_by(16).map(move |i| (address + i, 16.min(bytes - i)))
}

#[cfg(test)]
mod tests;
