//! Which lanes have synchronised with which: the order that races are judged by.
//!
//! The block barrier orders everything before it before everything after. A `__syncwarp` of the whole warp does the
//! same for that warp, one with a partial mask for the lanes it names, exactly and transitively. Shuffles and votes
//! move values but order no memory.

use super::abi::Lane;
use super::block::WARP;

/// For each lane of a warp (first index) the stamps it has seen of each other lane.
type SeenByLane = Box<[[u32; WARP]; WARP]>;

/// The synchronisations of one block so far.
pub(super) struct SyncOrder {
    clock: u32,
    /// Stamp of the last block barrier; every earlier access is ordered before everything now.
    barrier: u32,
    block_start: u32,
    warps: Vec<WarpOrder>,
}

/// What the lanes of a warp have seen of one another.
struct WarpOrder {
    /// Stamp of the last synchronisation of the whole warp.
    synchronised: u32,
    /// Present after a synchronisation of part of it.
    partial: Option<SeenByLane>,
}

impl SyncOrder {
    /// An order for blocks of this many warps.
    pub fn new(warps: usize) -> Self {
        let warps = (0..warps).map(|_| WarpOrder { synchronised: 0, partial: None }).collect();
        Self { clock: 0, barrier: 0, block_start: 0, warps }
    }

    /// Whether stamps could run out within one block.
    pub fn near_overflow(&self) -> bool {
        self.clock > u32::MAX / 2
    }

    /// Starts counting again; the caller forgets every stamp.
    pub fn reset(&mut self) {
        self.clock = 0;
    }

    /// Stamp of the last block barrier.
    #[inline(always)]
    pub fn barrier(&self) -> u32 {
        self.barrier
    }

    /// Stamp with which the running block started.
    #[inline(always)]
    pub fn block_start(&self) -> u32 {
        self.block_start
    }

    /// Another block starts; returns the stamp of its lanes.
    pub fn start_block(&mut self) -> u32 {
        self.block_start = self.block_synchronised();
        self.block_start
    }

    /// Every lane of the block has met; returns their new stamp.
    pub fn block_synchronised(&mut self) -> u32 {
        self.clock += 1;
        self.barrier = self.clock;
        for warp in &mut self.warps {
            warp.synchronised = self.clock;
            warp.partial = None;
        }
        self.clock
    }

    /// Lanes `arrived` of a warp have met, of `all` that it started with; returns their new stamp. A lane that has
    /// returned is not waited for, but what it did is not ordered either.
    pub fn warp_synchronised(&mut self, warp: usize, arrived: u32, all: u32) -> u32 {
        self.clock += 1;
        let clock = self.clock;
        let warp = &mut self.warps[warp];
        if all & !arrived == 0 {
            warp.synchronised = clock;
            warp.partial = None;
            return clock;
        }
        let members = || (0..WARP).filter(|i| arrived >> i & 1 == 1);
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
        clock
    }

    /// Whether part of a warp has synchronised since the whole warp last did.
    pub fn is_partial(&self, warp: usize) -> bool {
        self.warps[warp].partial.is_some()
    }

    /// Whether an access of lane `other` with this stamp, since the block barrier, is ordered before `lane` now.
    pub fn has_seen(&self, lane: &Lane, other: u32, stamp: u32) -> bool {
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
}
