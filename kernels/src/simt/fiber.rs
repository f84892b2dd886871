//! Fiber stacks, and the records of the lanes that run on them.
//!
//! One address range of the process holds every stack, each a power of two in size and aligned to it, so that the
//! number of a fiber (and whether an address is on a fiber's stack at all) follows from an address alone: kernel code
//! needs no thread-local storage to find its lane. The range is divided into segments of one thread block's largest
//! size; a launch borrows a segment.

use std::io;
use std::sync::{Mutex, OnceLock};

use corosensei::stack::{Stack, StackPointer};
use corosensei::{Coroutine, Yielder};

use super::abi::{LANE_SHIFT, Lane};
use super::pages::{PAGE, Reservation};

/// log2 of a stack's size. Large enough for kernels that keep a few rows of a wide head in local arrays.
pub(super) const STACK_SHIFT: u32 = 18;
const STACK_BYTES: usize = 1 << STACK_SHIFT;
/// Lanes of the largest thread block.
pub(super) const MAX_LANES: usize = 1024;
const SEGMENTS: usize = 64;
/// Shared memory that a segment can hold; larger than any device's limit.
pub(super) const SHARED_BYTES: usize = 256 << 10;

pub(super) type LaneYielder = Yielder<(), ()>;
pub(super) type LaneCoroutine = Coroutine<(), (), (), LaneStack>;

/// A stack of the arena. The segment owns the memory.
pub(super) struct LaneStack {
    top: usize,
    bottom: usize,
}

// SAFETY: the lowest page of every stack is left unmapped by `Segment::ensure_stacks`.
unsafe impl Stack for LaneStack {
    fn base(&self) -> StackPointer {
        StackPointer::new(self.top).expect("stacks are not at address zero")
    }

    fn limit(&self) -> StackPointer {
        StackPointer::new(self.bottom).expect("stacks are not at address zero")
    }
}

/// The stacks and lane records of the whole process.
pub(super) struct Arena {
    stacks: Reservation,
    lanes: Reservation,
    shared: Reservation,
    free: Mutex<Vec<(usize, usize)>>,
}

impl Arena {
    /// The process's arena, reserved on first use.
    pub fn get() -> io::Result<&'static Self> {
        static ARENA: OnceLock<Arena> = OnceLock::new();
        if let Some(arena) = ARENA.get() {
            return Ok(arena);
        }
        let fibers = SEGMENTS * MAX_LANES;
        let arena = Self {
            stacks: Reservation::new(fibers * STACK_BYTES, STACK_BYTES)?,
            lanes: Reservation::new(fibers << LANE_SHIFT, PAGE)?,
            shared: Reservation::new(SEGMENTS * (SHARED_BYTES + PAGE), PAGE)?,
            free: Mutex::new((0..SEGMENTS).rev().map(|i| (i, 0)).collect()),
        };
        Ok(ARENA.get_or_init(|| arena))
    }

    /// First address and length of the range that holds every stack.
    pub fn stack_range(&self) -> (usize, usize) {
        (self.stacks.base(), self.stacks.bytes())
    }

    /// Address of the first lane record.
    pub fn lanes_base(&self) -> usize {
        self.lanes.base()
    }

    /// Borrows a segment with at least `lanes` usable stacks.
    pub fn borrow(&'static self, lanes: usize) -> io::Result<Segment> {
        let taken = self.free.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop();
        let (index, ready) = taken.ok_or_else(|| {
            io::Error::other(format!("more than {SEGMENTS} launches at once in one process"))
        })?;
        let mut segment = Segment { arena: self, index, ready };
        segment.ensure_stacks(lanes)?;
        Ok(segment)
    }
}

/// The stacks, lane records and shared memory of one thread block.
pub(super) struct Segment {
    arena: &'static Arena,
    index: usize,
    /// Stacks already mapped.
    ready: usize,
}

impl Segment {
    fn ensure_stacks(&mut self, lanes: usize) -> io::Result<()> {
        assert!(lanes <= MAX_LANES, "a block has at most {MAX_LANES} lanes");
        if self.ready == 0 {
            let first = self.index * MAX_LANES;
            self.arena
                .lanes
                .open(self.arena.lanes.base() + (first << LANE_SHIFT), MAX_LANES << LANE_SHIFT)?;
            self.arena.shared.open(self.shared_end() - SHARED_BYTES, SHARED_BYTES)?;
        }
        while self.ready < lanes {
            let bottom = self.stack_bottom(self.ready);
            self.arena.stacks.open(bottom + PAGE, STACK_BYTES - PAGE)?;
            self.ready += 1;
        }
        Ok(())
    }

    fn stack_bottom(&self, lane: usize) -> usize {
        self.arena.stacks.base() + ((self.index * MAX_LANES + lane) << STACK_SHIFT)
    }

    /// The record of a lane.
    pub fn lane(&self, lane: usize) -> *mut Lane {
        let record = (self.index * MAX_LANES + lane) << LANE_SHIFT;
        (self.arena.lanes.base() + record) as *mut Lane
    }

    /// One past the last byte of shared memory; the page that starts there is unmapped.
    pub fn shared_end(&self) -> usize {
        self.arena.shared.base() + self.index * (SHARED_BYTES + PAGE) + SHARED_BYTES
    }

    /// The stack of a lane, whose coroutine must be gone before the next call for the same lane.
    ///
    /// Stacks are aligned far beyond a cache's associativity, so equal depths would all fall into the same cache
    /// sets; each lane therefore starts at its own distance from the top.
    pub fn stack(&self, lane: usize) -> LaneStack {
        let bottom = self.stack_bottom(lane);
        let colour = (lane % 128) * 448;
        LaneStack { top: bottom + STACK_BYTES - colour, bottom }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        self.arena
            .free
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .push((self.index, self.ready));
    }
}
