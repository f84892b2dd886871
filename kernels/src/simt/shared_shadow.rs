//! What is remembered about every piece of a block's shared memory: who wrote it, who read it, and when.
//!
//! Time is counted in synchronisations. Each lane carries the stamp of the last one it took part in, and an access is
//! recorded with that stamp. An earlier access is ordered before a later one if the later lane has since synchronised
//! with the earlier one ([`SyncOrder`]). A piece is 16 bytes long until a smaller access splits it, and then exactly as
//! fine as the accesses are: nothing is ever attributed to a byte that was not touched.

use std::collections::HashMap;

use super::abi::Lane;
use super::block::WARP;
use super::sync_order::SyncOrder;
use super::warp::Lanes;

/// A copy by cp.async is on its way to this piece.
const IN_FLIGHT: u8 = 1;
/// Readers that a warp's own record cannot hold exactly are in the side table.
const MORE: u8 = 2;
/// Lanes that performed atomics are in the side table.
const ATOMICS: u8 = 4;

/// Size of a piece that only 16-byte accesses have touched.
const WIDE_SHIFT: u32 = 4;
/// Pieces are split in stretches of this size.
const STRETCH_SHIFT: u32 = 8;

/// One piece of shared memory.
#[derive(Clone, Copy, Default)]
struct Piece {
    /// Last plain write; stamp 0 for none.
    write_stamp: u32,
    write_pc: u32,
    /// Stamp of the write that defined the contents.
    defined: u32,
    /// Stamp of the last read by any lane.
    read_stamp: u32,
    /// Warps that read since the block barrier, if that read was.
    read_warps: u32,
    write_lane: u16,
    flags: u8,
}

/// Lanes of one warp that read one piece.
#[derive(Clone, Copy, Default)]
struct Readers {
    /// Stamp of the lanes in `mask`.
    stamp: u32,
    mask: u32,
    pc: u32,
}

/// An entry of the side table: lanes of a warp that read, or performed atomics, with one stamp.
#[derive(Clone, Copy)]
struct SideEntry {
    readers: Readers,
    warp: u16,
    atomic: bool,
}

/// The pieces of a stretch: the number of the first, and their size.
#[derive(Clone, Copy)]
struct Stretch {
    first: u32,
    shift: u32,
}

/// The earlier access that a race is with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Party {
    pub lane: u32,
    pub pc: u32,
    pub action: &'static str,
}

/// What is wrong with an access, and at which offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conflict {
    /// Nothing has written there in this block.
    Undefined { offset: usize },
    /// A copy of this lane is still on its way there.
    InFlight { lane: u32, pc: u32 },
    /// Not ordered with an access of another lane.
    Race { other: Party },
}

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Read,
    Write,
    Atomic,
    /// A write that lands later.
    CopyIssued,
}

/// The shadow of one block's shared memory, reused for block after block of a launch.
pub(super) struct SharedShadow {
    bytes: usize,
    order: SyncOrder,
    stretches: Vec<Stretch>,
    pieces: Vec<Piece>,
    /// Per warp, the readers of each piece.
    readers: Vec<Vec<Readers>>,
    side: HashMap<u32, Vec<SideEntry>>,
}

impl SharedShadow {
    /// A shadow for `bytes` of shared memory and this many warps.
    pub fn new(bytes: usize, warps: usize) -> Self {
        let per_stretch = 1 << (STRETCH_SHIFT - WIDE_SHIFT);
        let count = bytes.div_ceil(1 << STRETCH_SHIFT);
        let stretch = |i: usize| Stretch { first: (i * per_stretch) as u32, shift: WIDE_SHIFT };
        Self {
            bytes,
            order: SyncOrder::new(warps),
            stretches: (0..count).map(stretch).collect(),
            pieces: vec![Piece::default(); count * per_stretch],
            readers: vec![vec![Readers::default(); count * per_stretch]; warps],
            side: HashMap::new(),
        }
    }

    /// Bytes of shared memory.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Forgets the last block; returns the stamp that lanes start with.
    pub fn start_block(&mut self) -> u32 {
        if self.order.near_overflow() {
            self.pieces.fill(Piece::default());
            self.readers.iter_mut().for_each(|r| r.fill(Readers::default()));
            self.order.reset();
        }
        self.side.clear();
        self.order.start_block()
    }

    /// Every lane of the block has met; returns their new stamp.
    pub fn block_synchronised(&mut self) -> u32 {
        self.side.clear();
        self.order.block_synchronised()
    }

    /// Lanes of a warp have met, of `all` that it started with.
    pub fn warp_synchronised(&mut self, lanes: &Lanes, all: u32) {
        let stamp = self.order.warp_synchronised(lanes.warp(), lanes.arrived, all);
        lanes.iter().for_each(|lane| lane.epoch = stamp);
    }

    /// Records an access of `bytes` at `offset`, in bounds, and says what is wrong with it.
    #[inline(always)]
    pub fn access(
        &mut self,
        lane: &Lane,
        offset: usize,
        bytes: usize,
        action: Action,
        pc: u32,
    ) -> Result<(), Conflict> {
        let stretch = self.stretches[offset >> STRETCH_SHIFT];
        let piece = 1 << stretch.shift;
        if bytes == piece && offset & (piece - 1) == 0 {
            let index = stretch.first + ((offset & ((1 << STRETCH_SHIFT) - 1)) >> stretch.shift) as u32;
            return self.one(lane, index, offset, action, pc);
        }
        self.several(lane, offset, bytes, action, pc)
    }

    /// An access that is not exactly one piece.
    #[inline(never)]
    fn several(
        &mut self,
        lane: &Lane,
        offset: usize,
        bytes: usize,
        action: Action,
        pc: u32,
    ) -> Result<(), Conflict> {
        let (mut at, end) = (offset, offset + bytes);
        let mut outcome = Ok(());
        while at < end {
            let stop = end.min((at | ((1 << STRETCH_SHIFT) - 1)) + 1);
            self.split_to_fit(at >> STRETCH_SHIFT, at | (stop - at));
            let piece = 1 << self.stretches[at >> STRETCH_SHIFT].shift;
            while at < stop {
                let index = self.index(at);
                let one = self.one(lane, index, at, action, pc);
                outcome = outcome.and(one);
                at += piece;
            }
        }
        outcome
    }

    /// A copy has arrived, as a write of `lane` with its present stamp.
    pub fn copy_landed(&mut self, lane: &Lane, offset: usize, bytes: usize, pc: u32) {
        let mut at = offset;
        while at < offset + bytes {
            let index = self.index(at);
            let piece = &mut self.pieces[index as usize];
            if piece.flags & IN_FLIGHT != 0
                && u32::from(piece.write_lane) == lane.linear
                && piece.write_pc == pc
            {
                piece.flags &= !IN_FLIGHT;
                piece.defined = lane.epoch;
                piece.write_stamp = lane.epoch;
            }
            at += 1 << self.stretches[at >> STRETCH_SHIFT].shift;
        }
    }

    fn index(&self, offset: usize) -> u32 {
        let stretch = self.stretches[offset >> STRETCH_SHIFT];
        stretch.first + ((offset & ((1 << STRETCH_SHIFT) - 1)) >> stretch.shift) as u32
    }

    #[inline(always)]
    fn one(
        &mut self,
        lane: &Lane,
        index: u32,
        offset: usize,
        action: Action,
        pc: u32,
    ) -> Result<(), Conflict> {
        match action {
            Action::Read => self.read(lane, index, offset, pc),
            Action::Write => self.write(lane, index, pc, false),
            Action::CopyIssued => self.write(lane, index, pc, true),
            Action::Atomic => self.atomic(lane, index, offset, pc),
        }
    }

    #[inline(always)]
    fn read(&mut self, lane: &Lane, index: u32, offset: usize, pc: u32) -> Result<(), Conflict> {
        let barrier = self.order.barrier();
        let piece = &mut self.pieces[index as usize];
        let settled = piece.write_stamp < barrier || u32::from(piece.write_lane) == lane.linear;
        if settled && piece.flags == 0 && piece.defined >= self.order.block_start() {
            let readers = &mut self.readers[usize::from(lane.warp)][index as usize];
            if readers.stamp == lane.epoch {
                readers.mask |= lane.bit();
                return Ok(());
            }
            if readers.stamp < barrier {
                *readers = Readers { stamp: lane.epoch, mask: lane.bit(), pc };
                piece.note_warp(lane, barrier);
                return Ok(());
            }
        }
        self.read_slow(lane, index, offset, pc)
    }

    #[cold]
    #[inline(never)]
    fn read_slow(&mut self, lane: &Lane, index: u32, offset: usize, pc: u32) -> Result<(), Conflict> {
        let piece = self.pieces[index as usize];
        let judged = self.undefined(&piece, offset).and_then(|()| {
            self.against_writer(lane, &piece)?;
            self.against_side(lane, index, &piece, |entry| entry.atomic)
        });
        self.note_reader(lane, index, pc);
        judged
    }

    #[inline(always)]
    fn write(&mut self, lane: &Lane, index: u32, pc: u32, in_flight: bool) -> Result<(), Conflict> {
        let barrier = self.order.barrier();
        let piece = self.pieces[index as usize];
        let settled = piece.write_stamp < barrier || u32::from(piece.write_lane) == lane.linear;
        let alone = settled && piece.read_stamp < barrier && piece.flags == 0;
        let judged = if alone { Ok(()) } else { self.judge_write(lane, index, &piece) };
        self.pieces[index as usize] = Piece {
            write_stamp: lane.epoch,
            write_pc: pc,
            defined: if in_flight { 0 } else { lane.epoch },
            read_stamp: 0,
            read_warps: 0,
            write_lane: lane.linear as u16,
            flags: if in_flight { IN_FLIGHT } else { 0 },
        };
        judged
    }

    #[cold]
    #[inline(never)]
    fn judge_write(&mut self, lane: &Lane, index: u32, piece: &Piece) -> Result<(), Conflict> {
        let judged = self
            .against_copy(piece)
            .and_then(|()| self.against_writer(lane, piece))
            .and_then(|()| self.against_readers(lane, index, piece))
            .and_then(|()| self.against_side(lane, index, piece, |_| true));
        self.forget_readers(index, piece);
        judged
    }

    /// Whoever comes after the present write comes after these too, or races with the write.
    fn forget_readers(&mut self, index: u32, piece: &Piece) {
        if piece.read_stamp >= self.order.barrier() {
            for warp in bits(piece.read_warps) {
                self.readers[warp][index as usize] = Readers::default();
            }
        }
        if piece.flags & (MORE | ATOMICS) != 0 {
            self.side.remove(&index);
        }
    }

    #[cold]
    #[inline(never)]
    fn atomic(&mut self, lane: &Lane, index: u32, offset: usize, pc: u32) -> Result<(), Conflict> {
        let piece = self.pieces[index as usize];
        let judged = self.undefined(&piece, offset).and_then(|()| {
            self.against_writer(lane, &piece)?;
            self.against_readers(lane, index, &piece)?;
            self.against_side(lane, index, &piece, |entry| !entry.atomic)
        });
        self.note_aside(lane, index, pc, true);
        self.pieces[index as usize].defined = lane.epoch;
        judged
    }

    fn undefined(&self, piece: &Piece, offset: usize) -> Result<(), Conflict> {
        self.against_copy(piece)?;
        if piece.defined < self.order.block_start() { Err(Conflict::Undefined { offset }) } else { Ok(()) }
    }

    fn against_copy(&self, piece: &Piece) -> Result<(), Conflict> {
        if piece.flags & IN_FLIGHT == 0 || piece.write_stamp < self.order.block_start() {
            return Ok(());
        }
        Err(Conflict::InFlight { lane: u32::from(piece.write_lane), pc: piece.write_pc })
    }

    fn against_writer(&self, lane: &Lane, piece: &Piece) -> Result<(), Conflict> {
        let writer = u32::from(piece.write_lane);
        if piece.write_stamp < self.order.barrier() || self.order.has_seen(lane, writer, piece.write_stamp) {
            return Ok(());
        }
        Err(Conflict::Race { other: Party { lane: writer, pc: piece.write_pc, action: "written" } })
    }

    fn against_readers(&self, lane: &Lane, index: u32, piece: &Piece) -> Result<(), Conflict> {
        if piece.read_stamp < self.order.barrier() {
            return Ok(());
        }
        for warp in bits(piece.read_warps) {
            let readers = self.readers[warp][index as usize];
            self.against_lanes(lane, &readers, warp, "read")?;
        }
        Ok(())
    }

    fn against_side(
        &self,
        lane: &Lane,
        index: u32,
        piece: &Piece,
        counts: impl Fn(&SideEntry) -> bool,
    ) -> Result<(), Conflict> {
        if piece.flags & (MORE | ATOMICS) == 0 {
            return Ok(());
        }
        for entry in self.side.get(&index).into_iter().flatten().filter(|e| counts(e)) {
            let action = if entry.atomic { "updated by an atomic" } else { "read" };
            self.against_lanes(lane, &entry.readers, usize::from(entry.warp), action)?;
        }
        Ok(())
    }

    /// The first of these lanes whose access is not ordered before the present one.
    fn against_lanes(
        &self,
        lane: &Lane,
        readers: &Readers,
        warp: usize,
        action: &'static str,
    ) -> Result<(), Conflict> {
        let base = (warp * WARP) as u32;
        let unseen = bits(readers.mask).find(|&i| !self.order.has_seen(lane, base + i as u32, readers.stamp));
        match unseen {
            Some(found) => {
                Err(Conflict::Race { other: Party { lane: base + found as u32, pc: readers.pc, action } })
            }
            None => Ok(()),
        }
    }

    fn note_reader(&mut self, lane: &Lane, index: u32, pc: u32) {
        let barrier = self.order.barrier();
        let warp = usize::from(lane.warp);
        let readers = &mut self.readers[warp][index as usize];
        if readers.stamp < barrier {
            *readers = Readers { stamp: lane.epoch, mask: lane.bit(), pc };
        } else if readers.stamp == lane.epoch {
            readers.mask |= lane.bit();
        } else if readers.stamp < lane.epoch && !self.order.is_partial(warp) {
            // For this warp the earlier readers are in order; for others this reader stands for them.
            *readers = Readers { stamp: lane.epoch, mask: lane.bit(), pc };
        } else {
            self.note_aside(lane, index, pc, false);
            return;
        }
        let piece = &mut self.pieces[index as usize];
        piece.note_warp(lane, barrier);
    }

    fn note_aside(&mut self, lane: &Lane, index: u32, pc: u32, atomic: bool) {
        self.pieces[index as usize].flags |= if atomic { ATOMICS } else { MORE };
        let entries = self.side.entry(index).or_default();
        let (warp, stamp, bit) = (lane.warp, lane.epoch, lane.bit());
        // A lane's later access stands for its earlier ones.
        entries.retain_mut(|e| {
            if e.warp == warp && e.atomic == atomic && e.readers.stamp < stamp {
                e.readers.mask &= !bit;
            }
            e.readers.mask != 0
        });
        let same =
            entries.iter_mut().find(|e| e.warp == warp && e.readers.stamp == stamp && e.atomic == atomic);
        match same {
            Some(entry) => entry.readers.mask |= bit,
            None => {
                let readers = Readers { stamp, mask: bit, pc };
                entries.push(SideEntry { readers, warp, atomic });
            }
        }
    }

    /// Makes the pieces of a stretch small enough for places whose offsets and lengths are in `places`, or-ed. Each
    /// part inherits what was known of the whole.
    fn split_to_fit(&mut self, stretch: usize, places: usize) {
        let Stretch { first, shift } = self.stretches[stretch];
        let fitting = places.trailing_zeros();
        if fitting >= shift {
            return;
        }
        let parts = 1_usize << (shift - fitting);
        let old = first as usize..first as usize + (1 << (STRETCH_SHIFT - shift));
        let moved = self.pieces.len();
        let spread =
            |items: &[Piece]| items.iter().flat_map(|p| std::iter::repeat_n(*p, parts)).collect::<Vec<_>>();
        let pieces = spread(&self.pieces[old.clone()]);
        self.pieces.extend(pieces);
        for readers in &mut self.readers {
            let spread: Vec<_> =
                readers[old.clone()].iter().flat_map(|r| std::iter::repeat_n(*r, parts)).collect();
            readers.extend(spread);
        }
        for (i, index) in old.enumerate() {
            if let Some(entries) = self.side.remove(&(index as u32)) {
                for part in 0..parts {
                    self.side.insert((moved + i * parts + part) as u32, entries.clone());
                }
            }
        }
        self.stretches[stretch] = Stretch { first: moved as u32, shift: fitting };
    }
}

impl Piece {
    /// A warp reads for the first time since the block barrier, or again.
    #[inline(always)]
    fn note_warp(&mut self, lane: &Lane, barrier: u32) {
        let known = if self.read_stamp < barrier { 0 } else { self.read_warps };
        self.read_warps = known | 1 << lane.warp;
        self.read_stamp = lane.epoch;
    }
}

/// Positions of the bits that are set.
fn bits(mask: u32) -> impl Iterator<Item = usize> {
    (0..32).filter(move |i| mask >> i & 1 == 1)
}

#[cfg(test)]
mod tests;
