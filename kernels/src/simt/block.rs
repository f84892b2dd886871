//! One thread block: its lanes as fibers, the queue of those that can run, and the block barrier.

use std::collections::VecDeque;
use std::ffi::c_void;

use corosensei::{Coroutine, CoroutineResult};

use super::abi::{Lane, LaneState};
use super::asynccopy::AsyncCopies;
use super::check::Checker;
use super::fiber::{LaneCoroutine, Segment};
use super::findings::Findings;
use super::module::Module;
use super::schedule::Order;
use super::warp::{Operation, Warp};
use crate::device::FindingKind;

/// Lanes of a warp.
pub(super) const WARP: usize = 32;

/// What a waiting lane waits for, and where.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub operation: Operation,
    /// Lanes of the warp that take part; every lane for the block barrier.
    pub mask: u32,
    /// Code offset of the return address.
    pub pc: u32,
}

impl Wait {
    /// A lane that waits for nothing.
    pub const NONE: Self = Self { operation: Operation::BlockBarrier { line: 0 }, mask: 0, pc: 0 };
}

/// A thread block while it runs. The first three fields are read by kernel code through the shim.
#[repr(C)]
pub(super) struct Block {
    /// Block index, block size, grid size.
    pub geometry: [[u32; 3]; 3],
    pub count: u32,
    pub shared: *mut u8,
    pub segment: Segment,
    pub warps: Vec<Warp>,
    /// Lanes that have not returned.
    pub live: u32,
    at_barrier: u32,
    ready: VecDeque<u16>,
    batch: Vec<u16>,
    pub order: Order,
    /// Accesses left until the running lane is preempted.
    pub until_preemption: u32,
    pub copies: Vec<AsyncCopies>,
    pub findings: Findings,
    /// Set by a finding after which the launch cannot go on.
    pub stopped: bool,
    pub module: *const Module,
    pub checker: Option<Box<Checker>>,
}

/// How a block ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockEnd {
    Finished,
    Stopped,
}

impl Block {
    /// A block of `size` threads on `segment`, to be run once per block of the grid.
    pub fn new(
        size: [u32; 3],
        grid: [u32; 3],
        shared_bytes: usize,
        segment: Segment,
        module: &Module,
        order: Order,
    ) -> Self {
        let count = size.iter().product::<u32>();
        let lanes = count as usize;
        let shared = segment.shared_end() - shared_bytes.next_multiple_of(16);
        Self {
            geometry: [[0; 3], size, grid],
            count,
            shared: shared as *mut u8,
            segment,
            warps: (0..lanes.div_ceil(WARP)).map(|_| Warp::new()).collect(),
            live: 0,
            at_barrier: 0,
            ready: VecDeque::with_capacity(2 * lanes),
            batch: Vec::with_capacity(lanes),
            order,
            until_preemption: u32::MAX,
            copies: (0..lanes).map(|_| AsyncCopies::default()).collect(),
            findings: Findings::default(),
            stopped: false,
            module: module as *const Module,
            checker: None,
        }
    }

    /// Fills shared memory, which holds nothing defined when a block starts.
    pub fn fill_shared(&mut self, byte: u8) {
        let end = self.segment.shared_end();
        // SAFETY: shared memory is mapped up to the segment's end.
        unsafe { std::ptr::write_bytes(self.shared, byte, end - self.shared as usize) };
    }

    /// The kernel library of this launch.
    pub fn module(&self) -> &Module {
        // SAFETY: the launch holds the module for as long as the block exists.
        unsafe { &*self.module }
    }

    /// The record of a lane.
    pub fn lane(&self, index: usize) -> *mut Lane {
        self.segment.lane(index)
    }

    /// Runs the block with this linear index to its end.
    ///
    /// # Safety
    /// `block` is valid and not otherwise used during the call; `params` points at the kernel's parameter struct.
    pub unsafe fn run(block: *mut Self, index: u64, params: *const c_void) -> BlockEnd {
        // SAFETY: the caller vouches for `block`. References are short-lived: kernel code reaches the block
        // through the same pointer while a lane runs.
        unsafe {
            (*block).start(index);
            let entry = (*block).module().entry;
            let mut fibers: Vec<LaneCoroutine> = (0..(*block).count as usize)
                .map(|i| {
                    let lane = (*block).lane(i) as usize;
                    let params = params as usize;
                    Coroutine::with_stack((*block).segment.stack(i), move |yielder, ()| {
                        (*(lane as *mut Lane)).yielder = yielder;
                        entry(params as *const c_void);
                    })
                })
                .collect();
            while let Some(next) = (*block).ready.pop_front() {
                match fibers[usize::from(next)].resume(()) {
                    CoroutineResult::Return(()) => (*block).lane_returned(usize::from(next)),
                    CoroutineResult::Yield(()) => {}
                }
                if (*block).stopped {
                    break;
                }
            }
            if !(*block).stopped && (*block).live > 0 {
                (*block).report_stuck();
            }
            for fiber in &mut fibers {
                if !fiber.done() {
                    // SAFETY: a suspended lane's stack holds plain data of kernel code and hook frames that own
                    // nothing, so nothing needs to be unwound.
                    fiber.force_reset();
                }
            }
            if (*block).stopped { BlockEnd::Stopped } else { BlockEnd::Finished }
        }
    }

    fn start(&mut self, index: u64) {
        let [gx, gy, _] = self.geometry[2].map(u64::from);
        self.geometry[0] = [(index % gx) as u32, (index / gx % gy) as u32, (index / (gx * gy)) as u32];
        self.live = self.count;
        self.at_barrier = 0;
        self.ready.clear();
        self.until_preemption = self.order.until_preemption();
        let block = &raw mut *self;
        for (number, warp) in self.warps.iter_mut().enumerate() {
            warp.start((self.count as usize - number * WARP).min(WARP));
        }
        let [bx, by, _] = self.geometry[1];
        let epoch = self.checker.as_mut().map_or(0, |c| c.start_block(self.geometry[0]));
        for linear in 0..self.count {
            let lane = Lane {
                thread: [linear % bx, linear / bx % by, linear / (bx * by)],
                linear,
                block,
                yielder: std::ptr::null(),
                epoch,
                warp: (linear as usize / WARP) as u16,
                index: (linear as usize % WARP) as u8,
                state: LaneState::Ready,
                wait: Wait::NONE,
                result: 0,
            };
            // SAFETY: the segment has a record for each of its lanes; records hold nothing that needs dropping.
            unsafe { self.segment.lane(linear as usize).write(lane) };
            self.copies[linear as usize].clear();
        }
        self.batch.clear();
        self.batch.extend(0..self.count as u16);
        self.release_batch();
    }

    /// Marks the lanes of `batch` ready and queues them in the schedule's order.
    fn release_batch(&mut self) {
        let mut batch = std::mem::take(&mut self.batch);
        self.order.arrange(&mut batch);
        for &lane in &batch {
            // SAFETY: lane records are initialised in `start`.
            unsafe { (*self.segment.lane(usize::from(lane))).state = LaneState::Ready };
        }
        if self.order.released_first() {
            for &lane in batch.iter().rev() {
                self.ready.push_front(lane);
            }
        } else {
            self.ready.extend(&batch);
        }
        batch.clear();
        self.batch = batch;
    }

    /// Queues the lanes of a warp mask.
    pub fn release(&mut self, warp: usize, mask: u32) {
        let mut left = mask;
        while left != 0 {
            self.batch.push((warp * WARP) as u16 + left.trailing_zeros() as u16);
            left &= left - 1;
        }
        self.release_batch();
    }

    /// Puts the running lane behind every other ready lane.
    pub fn requeue(&mut self, lane: usize) {
        self.ready.push_back(lane as u16);
        self.until_preemption = self.order.until_preemption();
    }

    /// The running lane reaches `__syncthreads`; it must be suspended afterwards.
    pub fn arrive_at_barrier(&mut self, lane: &mut Lane, line: i32, pc: u32) {
        lane.state = LaneState::AtBarrier;
        lane.wait = Wait { operation: Operation::BlockBarrier { line }, mask: u32::MAX, pc };
        self.at_barrier += 1;
        self.try_complete_barrier();
    }

    fn lane_returned(&mut self, index: usize) {
        let lane = self.lane(index);
        // SAFETY: lane records are initialised in `start`.
        let (warp, bit) = unsafe {
            (*lane).state = LaneState::Exited;
            (usize::from((*lane).warp), (*lane).bit())
        };
        AsyncCopies::land_all(self, index);
        self.live -= 1;
        self.warps[warp].live &= !bit;
        Warp::lane_left(self, warp);
        self.try_complete_barrier();
    }

    fn try_complete_barrier(&mut self) {
        if self.live == 0 || self.at_barrier < self.live {
            return;
        }
        self.at_barrier = 0;
        let mut first: Option<(u32, Wait)> = None;
        for linear in 0..self.count {
            let lane = self.lane(linear as usize);
            // SAFETY: lane records are initialised in `start`.
            let (state, wait) = unsafe { ((*lane).state, (*lane).wait) };
            if state != LaneState::AtBarrier {
                continue;
            }
            self.batch.push(linear as u16);
            match first {
                None => first = Some((linear, wait)),
                Some(other) if other.1.pc != wait.pc => self.compare_barriers((linear, wait), other),
                Some(_) => {}
            }
        }
        if let Some(checker) = &mut self.checker {
            let epoch = checker.block_synchronised();
            for &linear in &self.batch {
                // SAFETY: as above.
                unsafe { (*self.segment.lane(usize::from(linear))).epoch = epoch };
            }
        }
        self.release_batch();
    }

    /// Two lanes at one barrier whose code addresses differ: compilers duplicate code, so lines decide.
    fn compare_barriers(&mut self, (lane, wait): (u32, Wait), (other, other_wait): (u32, Wait)) {
        let (Operation::BlockBarrier { line }, Operation::BlockBarrier { line: other_line }) =
            (wait.operation, other_wait.operation)
        else {
            return;
        };
        if line == other_line {
            return;
        }
        let block = self.geometry[0];
        self.findings.add(FindingKind::Divergence, wait.pc, other_wait.pc, || {
            format!(
                "lanes {lane} and {other} of block {block:?} meet at different __syncthreads (lines {line} and \
                 {other_line})"
            )
        });
    }

    /// Records a finding after which the launch cannot go on. The running lane must be suspended afterwards.
    pub fn stop(&mut self, kind: FindingKind, pc: u32, other: u32, message: impl FnOnce() -> String) {
        self.findings.add(kind, pc, other, message);
        self.stopped = true;
    }

    /// `lane 3 (thread [3, 0, 0]) of block [0, 0, 0]`.
    pub fn describe_lane(&self, linear: u32) -> String {
        // SAFETY: lane records are initialised in `start`.
        let thread = unsafe { (*self.lane(linear as usize)).thread };
        format!("lane {linear} (thread {thread:?}) of block {:?}", self.geometry[0])
    }
}
