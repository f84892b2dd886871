//! What is remembered about every piece of a block's shared memory: who wrote it, who read it, and when.
//!
//! Time is counted in synchronisations. Each lane carries the stamp of the last one it took part in, and an access is
//! recorded with that stamp. An earlier access is ordered before a later one if the later lane has since synchronised
//! with the earlier one: through the block barrier, through a `__syncwarp` of the whole warp, or, exactly, through
//! one with a partial mask. Shuffles and votes move values but order no memory.

use std::collections::HashMap;

use super::abi::Lane;
use super::block::WARP;
use super::warp::Lanes;

/// A copy by cp.async is on its way to this piece.
const IN_FLIGHT: u8 = 1;
/// Further readers are in the side table.
const MORE: u8 = 2;
/// The recorded group of lanes performed atomics rather than reads.
const ATOMIC: u8 = 4;

/// Largest piece: four bytes. Pieces become smaller with the first access that needs it.
const WORD_SHIFT: u32 = 2;

/// One piece of shared memory.
#[derive(Clone, Copy, Default)]
struct Cell {
    /// Last plain write; stamp 0 for none.
    write_stamp: u32,
    write_pc: u32,
    /// Stamp of the write that defined the contents.
    defined: u32,
    /// Lanes of `read_warp` that read (or performed atomics) with this stamp, and those that did so earlier since
    /// the block barrier.
    read_stamp: u32,
    read_mask: u32,
    read_before: u32,
    read_pc: u32,
    write_lane: u16,
    read_warp: u8,
    flags: u8,
}

const _: () = assert!(size_of::<Cell>() == 32);

/// Lanes of one warp that accessed a piece with one stamp; overflow of a cell's own record.
#[derive(Clone, Copy)]
struct Readers {
    stamp: u32,
    mask: u32,
    pc: u32,
    warp: u8,
    atomic: bool,
}

/// The earlier access that a race is with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Party {
    pub lane: u32,
    pub pc: u32,
    pub action: &'static str,
}

/// What is wrong with an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conflict {
    /// Nothing has written the piece at this offset in this block.
    Undefined { offset: usize },
    /// A copy of this lane is still on its way there.
    InFlight { offset: usize, lane: u32, pc: u32 },
    /// Not ordered with an access of another lane.
    Race { offset: usize, other: Party },
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

/// For each lane of a warp (first index) the stamps it has seen of each other lane.
type SeenByLane = Box<[[u32; WARP]; WARP]>;

/// The shadow of one block's shared memory, reused for block after block.
pub(super) struct SharedShadow {
    cells: Vec<Cell>,
    shift: u32,
    bytes: usize,
    clock: u32,
    /// Stamp of the last block barrier; every earlier access is ordered before everything now.
    barrier: u32,
    block_start: u32,
    warps: Vec<WarpOrder>,
    more: HashMap<usize, Vec<Readers>>,
}

/// What the lanes of a warp have seen of one another.
struct WarpOrder {
    /// Stamp of the last synchronisation of the whole warp.
    synchronised: u32,
    /// Present after a synchronisation of part of it.
    partial: Option<SeenByLane>,
}

impl SharedShadow {
    /// A shadow for `bytes` of shared memory and this many warps.
    pub fn new(bytes: usize, warps: usize) -> Self {
        Self {
            cells: vec![Cell::default(); bytes.div_ceil(1 << WORD_SHIFT)],
            shift: WORD_SHIFT,
            bytes,
            clock: 0,
            barrier: 0,
            block_start: 0,
            warps: (0..warps).map(|_| WarpOrder { synchronised: 0, partial: None }).collect(),
            more: HashMap::new(),
        }
    }

    /// Bytes of shared memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Forgets the last block; returns the stamp that lanes start with.
    pub fn start_block(&mut self) -> u32 {
        if self.clock > u32::MAX / 2 {
            self.cells.fill(Cell::default());
            self.clock = 0;
        }
        let start = self.block_synchronised();
        self.block_start = start;
        start
    }

    /// Every lane of the block has met; returns their new stamp.
    pub fn block_synchronised(&mut self) -> u32 {
        self.clock += 1;
        self.barrier = self.clock;
        for warp in &mut self.warps {
            warp.synchronised = self.clock;
            warp.partial = None;
        }
        self.more.clear();
        self.clock
    }

    /// Lanes of a warp have met; `live` are those of the warp that have not returned.
    pub fn warp_synchronised(&mut self, lanes: &Lanes, live: u32) {
        self.clock += 1;
        let clock = self.clock;
        let warp = &mut self.warps[lanes.warp()];
        lanes.iter().for_each(|lane| lane.epoch = clock);
        if live & !lanes.arrived == 0 {
            warp.synchronised = clock;
            warp.partial = None;
            return;
        }
        let members = || (0..WARP).filter(|i| lanes.arrived >> i & 1 == 1);
        let since = warp.synchronised;
        let seen = warp.partial.get_or_insert_with(|| Box::new([[since; WARP]; WARP]));
        let mut joined = [0; WARP];
        for member in members() {
            for (all, own) in joined.iter_mut().zip(&seen[member]) {
                *all = u32::max(*all, *own);
            }
        }
        members().for_each(|member| joined[member] = clock);
        members().for_each(|member| seen[member] = joined);
    }

    /// Records an access of `bytes` at `offset` and says what is wrong with it. In bounds.
    #[inline]
    pub fn access(
        &mut self,
        lane: &Lane,
        offset: usize,
        bytes: usize,
        action: Action,
        pc: u32,
    ) -> Result<(), Conflict> {
        if (offset | bytes) & ((1 << self.shift) - 1) != 0 {
            self.split((offset | bytes).trailing_zeros());
        }
        let (first, last) = (offset >> self.shift, (offset + bytes - 1) >> self.shift);
        let mut outcome = Ok(());
        for index in first..=last {
            let one = match action {
                Action::Read => self.read(lane, index, pc),
                Action::Write => self.write(lane, index, pc, false),
                Action::Atomic => self.atomic(lane, index, pc),
                Action::CopyIssued => self.write(lane, index, pc, true),
            };
            outcome = outcome.and(one);
        }
        outcome
    }

    /// A copy has arrived, as a write of `lane` with its present stamp.
    pub fn copy_landed(&mut self, lane: &Lane, offset: usize, bytes: usize, pc: u32) {
        for index in offset >> self.shift..=(offset + bytes - 1) >> self.shift {
            let cell = &mut self.cells[index];
            if cell.flags & IN_FLIGHT != 0 && u32::from(cell.write_lane) == lane.linear && cell.write_pc == pc
            {
                cell.flags &= !IN_FLIGHT;
                cell.defined = lane.epoch;
                cell.write_stamp = lane.epoch;
            }
        }
    }

    #[inline]
    fn read(&mut self, lane: &Lane, index: usize, pc: u32) -> Result<(), Conflict> {
        let cell = &mut self.cells[index];
        let settled = cell.write_stamp < self.barrier || u32::from(cell.write_lane) == lane.linear;
        if settled && cell.flags == 0 && cell.defined >= self.block_start {
            if cell.read_stamp == lane.epoch && u16::from(cell.read_warp) == lane.warp {
                cell.read_mask |= lane.bit();
                return Ok(());
            }
            if cell.read_stamp < self.barrier {
                cell.note_first(lane, pc);
                return Ok(());
            }
        }
        self.read_slow(lane, index, pc)
    }

    #[cold]
    #[inline(never)]
    fn read_slow(&mut self, lane: &Lane, index: usize, pc: u32) -> Result<(), Conflict> {
        let cell = self.cells[index];
        let judged = self.undefined(&cell, index).and_then(|()| {
            self.against_writer(lane, index, &cell)?;
            self.against_readers(lane, index, &cell, true)
        });
        self.note(lane, index, pc, false);
        judged
    }

    #[inline]
    fn write(&mut self, lane: &Lane, index: usize, pc: u32, in_flight: bool) -> Result<(), Conflict> {
        let cell = self.cells[index];
        let barrier = self.barrier;
        let own_write = cell.write_stamp < barrier || u32::from(cell.write_lane) == lane.linear;
        let alone = own_write && cell.read_stamp < barrier && cell.flags & (IN_FLIGHT | MORE) == 0;
        let judged = if alone { Ok(()) } else { self.judge_write(lane, index, &cell) };
        let fresh = &mut self.cells[index];
        *fresh = Cell {
            write_stamp: lane.epoch,
            write_pc: pc,
            write_lane: lane.linear as u16,
            defined: if in_flight { 0 } else { lane.epoch },
            flags: if in_flight { IN_FLIGHT } else { 0 },
            ..Cell::default()
        };
        judged
    }

    #[cold]
    #[inline(never)]
    fn judge_write(&mut self, lane: &Lane, index: usize, cell: &Cell) -> Result<(), Conflict> {
        let judged = self
            .against_copy(cell, index)
            .and_then(|()| self.against_writer(lane, index, cell))
            .and_then(|()| self.against_readers(lane, index, cell, false));
        if cell.flags & MORE != 0 {
            self.more.remove(&index);
        }
        judged
    }

    #[cold]
    #[inline(never)]
    fn atomic(&mut self, lane: &Lane, index: usize, pc: u32) -> Result<(), Conflict> {
        let cell = self.cells[index];
        let judged = self.undefined(&cell, index).and_then(|()| {
            self.against_writer(lane, index, &cell)?;
            self.against_plain_readers(lane, index, &cell)
        });
        self.note(lane, index, pc, true);
        self.cells[index].defined = lane.epoch;
        judged
    }

    fn undefined(&self, cell: &Cell, index: usize) -> Result<(), Conflict> {
        self.against_copy(cell, index)?;
        if cell.defined < self.block_start {
            Err(Conflict::Undefined { offset: index << self.shift })
        } else {
            Ok(())
        }
    }

    fn against_copy(&self, cell: &Cell, index: usize) -> Result<(), Conflict> {
        if cell.flags & IN_FLIGHT == 0 || cell.write_stamp < self.block_start {
            return Ok(());
        }
        let (lane, pc) = (u32::from(cell.write_lane), cell.write_pc);
        Err(Conflict::InFlight { offset: index << self.shift, lane, pc })
    }

    fn against_writer(&self, lane: &Lane, index: usize, cell: &Cell) -> Result<(), Conflict> {
        let writer = u32::from(cell.write_lane);
        if cell.write_stamp < self.barrier || self.has_seen(lane, writer, cell.write_stamp) {
            return Ok(());
        }
        let other = Party { lane: writer, pc: cell.write_pc, action: "written" };
        Err(Conflict::Race { offset: index << self.shift, other })
    }

    /// Races with recorded lanes: all of them, or those that performed atomics.
    fn against_readers(
        &self,
        lane: &Lane,
        index: usize,
        cell: &Cell,
        only_atomics: bool,
    ) -> Result<(), Conflict> {
        self.search_readers(lane, index, cell, |atomic| atomic || !only_atomics)
    }

    fn against_plain_readers(&self, lane: &Lane, index: usize, cell: &Cell) -> Result<(), Conflict> {
        self.search_readers(lane, index, cell, |atomic| !atomic)
    }

    fn search_readers(
        &self,
        lane: &Lane,
        index: usize,
        cell: &Cell,
        counts: impl Fn(bool) -> bool,
    ) -> Result<(), Conflict> {
        let race = |found: u32, warp: u8, pc: u32, atomic: bool| {
            let other = Party {
                lane: u32::from(warp) * WARP as u32 + found,
                pc,
                action: if atomic { "updated by an atomic" } else { "read" },
            };
            Conflict::Race { offset: index << self.shift, other }
        };
        let atomic = cell.flags & ATOMIC != 0;
        if cell.read_stamp >= self.barrier && counts(atomic) {
            let found = self.unseen(lane, cell.read_warp, cell.read_stamp, cell.read_mask);
            // Earlier reads of the same warp are ordered before this access by that warp's synchronisation.
            let earlier = if u16::from(cell.read_warp) == lane.warp { 0 } else { cell.read_before };
            if let Some(found) = found.or((earlier != 0).then(|| earlier.trailing_zeros())) {
                return Err(race(found, cell.read_warp, cell.read_pc, atomic));
            }
        }
        if cell.flags & MORE != 0 {
            for readers in self.more.get(&index).into_iter().flatten().filter(|r| counts(r.atomic)) {
                if let Some(found) = self.unseen(lane, readers.warp, readers.stamp, readers.mask) {
                    return Err(race(found, readers.warp, readers.pc, readers.atomic));
                }
            }
        }
        Ok(())
    }

    /// The first lane of `mask` whose access with this stamp is not ordered before the present one.
    fn unseen(&self, lane: &Lane, warp: u8, stamp: u32, mask: u32) -> Option<u32> {
        let base = u32::from(warp) * WARP as u32;
        (0..WARP as u32).filter(|i| mask >> i & 1 == 1).find(|i| !self.has_seen(lane, base + i, stamp))
    }

    /// Whether an access of lane `other` with this stamp, since the block barrier, is ordered before `lane` now.
    fn has_seen(&self, lane: &Lane, other: u32, stamp: u32) -> bool {
        if other == lane.linear {
            return true;
        }
        if other as usize / WARP != usize::from(lane.warp) {
            return false;
        }
        let order = &self.warps[usize::from(lane.warp)];
        let seen = match &order.partial {
            Some(seen) => seen[usize::from(lane.index)][other as usize % WARP],
            None => order.synchronised,
        };
        stamp < seen
    }

    /// Adds the lane to the recorded readers, or to those that performed atomics.
    fn note(&mut self, lane: &Lane, index: usize, pc: u32, atomic: bool) {
        let partial = self.warps[usize::from(lane.warp)].partial.is_some();
        let cell = &mut self.cells[index];
        let stale = cell.read_stamp < self.barrier;
        if stale {
            cell.note_first(lane, pc);
            cell.flags = cell.flags & !(ATOMIC | MORE) | if atomic { ATOMIC } else { 0 };
            return;
        }
        let same = u16::from(cell.read_warp) == lane.warp && (cell.flags & ATOMIC != 0) == atomic;
        if same && cell.read_stamp == lane.epoch {
            cell.read_mask |= lane.bit();
            return;
        }
        if same && !partial && cell.read_stamp < lane.epoch {
            cell.read_before |= cell.read_mask;
            cell.read_mask = lane.bit();
            cell.read_stamp = lane.epoch;
            cell.read_pc = pc;
            return;
        }
        cell.flags |= MORE;
        let more = self.more.entry(index).or_default();
        let (warp, stamp, bit) = (lane.warp as u8, lane.epoch, lane.bit());
        // A lane's later access stands for its earlier ones.
        more.retain_mut(|r| {
            if r.warp == warp && r.atomic == atomic && r.stamp < stamp {
                r.mask &= !bit;
            }
            r.mask != 0
        });
        match more.iter_mut().find(|r| r.warp == warp && r.stamp == stamp && r.atomic == atomic) {
            Some(readers) => readers.mask |= bit,
            None => more.push(Readers { stamp, mask: bit, pc, warp, atomic }),
        }
    }

    /// Makes pieces `1 << shift` bytes long, each part inheriting what was known of the whole.
    #[cold]
    #[inline(never)]
    fn split(&mut self, shift: u32) {
        let parts = 1_usize << (self.shift - shift);
        self.cells = self.cells.iter().flat_map(|cell| std::iter::repeat_n(*cell, parts)).collect();
        let more = std::mem::take(&mut self.more);
        for (index, readers) in more {
            for part in 0..parts {
                self.more.insert(index * parts + part, readers.clone());
            }
        }
        self.shift = shift;
    }
}

impl Cell {
    /// The lane is the first to access the piece since the block barrier.
    #[inline]
    fn note_first(&mut self, lane: &Lane, pc: u32) {
        self.read_stamp = lane.epoch;
        self.read_mask = lane.bit();
        self.read_before = 0;
        self.read_pc = pc;
        self.read_warp = lane.warp as u8;
    }
}
