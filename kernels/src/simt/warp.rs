//! Warp collectives: lanes meet, the last to arrive performs the operation for all.

use super::abi::{Lane, LaneState};
use super::block::{Block, WARP, Wait};
use super::mma;
use crate::device::FindingKind;

/// How a shuffle picks its source lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShuffleKind {
    Index,
    Xor,
    Down,
    Up,
}

/// What a vote returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VoteKind {
    Ballot,
    Any,
    All,
}

/// What lanes meet for, with the arriving lane's operands.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    BlockBarrier {
        line: i32,
    },
    SyncWarp,
    Shuffle {
        kind: ShuffleKind,
        value: u64,
        operand: i32,
        width: i32,
    },
    Vote {
        kind: VoteKind,
        predicate: bool,
    },
    /// Pointers to the lane's own fragments: 4 f32 out, 4 and 2 registers in, 4 f32 in.
    Mma {
        d: *mut f32,
        a: *const u32,
        b: *const u32,
        c: *const f32,
        f16: bool,
    },
    /// `count` 8 by 8 matrices; this lane receives `count` registers and supplies the address of one row.
    Matrix {
        out: *mut u32,
        row: usize,
        count: u8,
        transposed: bool,
    },
}

impl Operation {
    /// The instruction's name, for messages; equal names take part in one collective.
    pub fn name(&self) -> &'static str {
        match self {
            Self::BlockBarrier { .. } => "__syncthreads",
            Self::SyncWarp => "__syncwarp",
            Self::Shuffle { kind: ShuffleKind::Index, .. } => "__shfl_sync",
            Self::Shuffle { kind: ShuffleKind::Xor, .. } => "__shfl_xor_sync",
            Self::Shuffle { kind: ShuffleKind::Down, .. } => "__shfl_down_sync",
            Self::Shuffle { kind: ShuffleKind::Up, .. } => "__shfl_up_sync",
            Self::Vote { kind: VoteKind::Ballot, .. } => "__ballot_sync",
            Self::Vote { kind: VoteKind::Any, .. } => "__any_sync",
            Self::Vote { kind: VoteKind::All, .. } => "__all_sync",
            Self::Mma { f16: false, .. } => "mma.m16n8k16 (bf16)",
            Self::Mma { f16: true, .. } => "mma.m16n8k16 (f16)",
            Self::Matrix { count: 4, transposed: false, .. } => "ldmatrix.x4",
            Self::Matrix { count: 4, transposed: true, .. } => "ldmatrix.x4.trans",
            Self::Matrix { transposed: false, .. } => "ldmatrix.x2",
            Self::Matrix { transposed: true, .. } => "ldmatrix.x2.trans",
        }
    }

    /// Whether every lane of the warp has to take part.
    fn needs_whole_warp(&self) -> bool {
        matches!(self, Self::Mma { .. } | Self::Matrix { .. })
    }
}

/// Lanes that have arrived at one collective.
#[derive(Clone, Copy)]
pub(super) struct Group {
    pub name: &'static str,
    pub mask: u32,
    pub arrived: u32,
}

/// A warp of the running block.
pub(super) struct Warp {
    /// Lanes that the warp started with.
    pub all: u32,
    /// Those that have not returned.
    pub live: u32,
    pub groups: Vec<Group>,
}

impl Warp {
    pub fn new() -> Self {
        Self { all: 0, live: 0, groups: Vec::with_capacity(4) }
    }

    /// Prepares for a new block in which this warp has `lanes` lanes.
    pub fn start(&mut self, lanes: usize) {
        self.all = u32::MAX >> (WARP - lanes);
        self.live = self.all;
        self.groups.clear();
    }

    /// The running lane reaches a collective; it must be suspended afterwards, and finds the outcome in
    /// `Lane::result`.
    pub fn join(block: &mut Block, lane: &mut Lane, operation: Operation, mask: u32, pc: u32) {
        if mask & lane.bit() == 0 {
            let who = block.describe_lane(lane.linear);
            block.stop(FindingKind::Divergence, pc, 0, || {
                format!("{}: the mask {mask:#010x} leaves out the calling {who}", operation.name())
            });
            return;
        }
        lane.state = LaneState::InCollective;
        lane.wait = Wait { operation, mask, pc };
        let name = operation.name();
        let warp = &mut block.warps[usize::from(lane.warp)];
        let found = warp.groups.iter().position(|g| g.mask == mask && g.name == name);
        let position = found.unwrap_or_else(|| {
            warp.groups.push(Group { name, mask, arrived: 0 });
            warp.groups.len() - 1
        });
        let group = &mut warp.groups[position];
        group.arrived |= lane.bit();
        if group.mask & warp.live & !group.arrived == 0 {
            let group = warp.groups.swap_remove(position);
            Self::complete(block, usize::from(lane.warp), group);
        }
    }

    /// A lane of the warp returned: collectives that waited only for it can complete.
    pub fn lane_left(block: &mut Block, warp: usize) {
        while let Some(position) = {
            let w = &block.warps[warp];
            w.groups.iter().position(|g| g.mask & w.live & !g.arrived == 0)
        } {
            let group = block.warps[warp].groups.swap_remove(position);
            Self::complete(block, warp, group);
        }
    }

    fn complete(block: &mut Block, warp: usize, group: Group) {
        let lanes = Lanes { block: &raw mut *block, warp, arrived: group.arrived };
        let first = lanes.get(group.arrived.trailing_zeros() as usize);
        let (operation, pc) = (first.wait.operation, first.wait.pc);
        if operation.needs_whole_warp() {
            Self::compare_sites(block, &lanes, pc, first.linear);
        }
        if operation.needs_whole_warp() && group.arrived != u32::MAX {
            let who = block.describe_lane(first.linear);
            block.stop(FindingKind::Divergence, pc, 0, || {
                format!(
                    "{} needs all 32 lanes of the warp; only {:#010x} arrived, among them {who}",
                    operation.name(),
                    group.arrived
                )
            });
            return;
        }
        match operation {
            Operation::BlockBarrier { .. } => unreachable!("the block barrier is not a warp collective"),
            Operation::SyncWarp => {
                if let Some(checker) = &mut block.checker {
                    checker.warp_synchronised(&lanes, block.warps[warp].all);
                }
            }
            Operation::Shuffle { .. } => shuffle(block, &lanes),
            Operation::Vote { kind, .. } => vote(&lanes, kind),
            Operation::Mma { f16, .. } => mma::multiply(&lanes, f16),
            Operation::Matrix { count, transposed, .. } => {
                load_matrices(block, &lanes, usize::from(count), transposed)
            }
        }
        if !block.stopped {
            block.release(warp, group.arrived);
        }
    }

    /// An instruction that the whole warp has to execute together, reached from different source lines. Shuffles,
    /// votes and `__syncwarp` may be: only mask and kind have to agree.
    fn compare_sites(block: &mut Block, lanes: &Lanes, pc: u32, linear: u32) {
        for lane in lanes.iter() {
            let (other, name) = (lane.wait.pc, lane.wait.operation.name());
            if other == pc || block.module().site(other) == block.module().site(pc) {
                continue;
            }
            let (index, at) = (lane.linear, block.geometry[0]);
            block.findings.add(FindingKind::Divergence, other, pc, || {
                format!("lanes {index} and {linear} of block {at:?} meet in {name} at different places")
            });
        }
    }
}

/// The lanes that take part in a completing collective.
pub(super) struct Lanes {
    block: *mut Block,
    warp: usize,
    /// Mask of those that arrived.
    pub arrived: u32,
}

impl Lanes {
    /// The record of lane `index` of the warp.
    #[allow(clippy::mut_from_ref)]
    pub fn get(&self, index: usize) -> &mut Lane {
        // SAFETY: records are initialised for every lane of the block, only `arrived` ones are asked for, and the
        // callers hold one at a time.
        unsafe { &mut *(*self.block).lane(self.warp * WARP + index) }
    }

    /// Number of the warp in its block.
    pub fn warp(&self) -> usize {
        self.warp
    }

    /// Records of the lanes that arrived, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = &mut Lane> {
        (0..WARP).filter(|i| self.arrived >> i & 1 == 1).map(|i| self.get(i))
    }
}

/// Source lane of a shuffle as PTX defines it; the lane itself if the source lies outside its segment.
fn shuffle_source(kind: ShuffleKind, lane: i32, operand: i32, width: i32) -> i32 {
    let segment = !(width - 1) & 31;
    let operand = operand & 31;
    let (first, last) = (lane & segment, (lane & segment) | (31 & !segment));
    let source = match kind {
        ShuffleKind::Index => first | (operand & !segment),
        ShuffleKind::Xor => lane ^ operand,
        ShuffleKind::Down => lane + operand,
        ShuffleKind::Up => lane - operand,
    };
    let inside = if kind == ShuffleKind::Up { source >= first } else { source <= last };
    if inside { source } else { lane }
}

fn shuffle(block: &mut Block, lanes: &Lanes) {
    let mut values = [0_u64; WARP];
    for lane in lanes.iter() {
        if let Operation::Shuffle { value, .. } = lane.wait.operation {
            values[usize::from(lane.index)] = value;
        }
    }
    for lane in lanes.iter() {
        let Operation::Shuffle { kind, operand, width, .. } = lane.wait.operation else { continue };
        let source = shuffle_source(kind, i32::from(lane.index), operand, width) as usize;
        if lanes.arrived >> source & 1 == 0 {
            let (who, name) = (block.describe_lane(lane.linear), lane.wait.operation.name());
            block.findings.add(FindingKind::Divergence, lane.wait.pc, 0, || {
                format!("{name}: {who} reads from lane {source} of its warp, which does not take part")
            });
        }
        lane.result = values[source];
    }
}

fn vote(lanes: &Lanes, kind: VoteKind) {
    let mut ballot = 0;
    for lane in lanes.iter() {
        if matches!(lane.wait.operation, Operation::Vote { predicate: true, .. }) {
            ballot |= lane.bit();
        }
    }
    let result = match kind {
        VoteKind::Ballot => ballot,
        VoteKind::Any => u32::from(ballot != 0),
        VoteKind::All => u32::from(ballot == lanes.arrived),
    };
    lanes.iter().for_each(|lane| lane.result = u64::from(result));
}

/// ldmatrix: lane 8m+r supplies row r (16 bytes) of matrix m; every lane receives row lane/4, columns 2·(lane%4)
/// and the next of each matrix, or with rows and columns exchanged.
fn load_matrices(block: &mut Block, lanes: &Lanes, count: usize, transposed: bool) {
    let mut rows = [[[0_u16; 8]; 8]; 4];
    for supplier in 0..8 * count {
        let lane = lanes.get(supplier);
        let Operation::Matrix { row, .. } = lane.wait.operation else { continue };
        if let Some(checker) = block.checker.as_deref_mut()
            && !checker.matrix_row(&mut block.findings, lanes, supplier, row, transposed)
        {
            block.stopped = true;
            return;
        }
        // SAFETY: in checked mode the row was just checked; in fast mode a wrong address faults, as on a device.
        rows[supplier / 8][supplier % 8] = unsafe { (row as *const [u16; 8]).read_unaligned() };
    }
    for lane in lanes.iter() {
        let Operation::Matrix { out, .. } = lane.wait.operation else { continue };
        let (row, column) = (usize::from(lane.index) / 4, 2 * (usize::from(lane.index) % 4));
        for (m, matrix) in rows.iter().enumerate().take(count) {
            let pair = if transposed {
                [matrix[column][row], matrix[column + 1][row]]
            } else {
                [matrix[row][column], matrix[row][column + 1]]
            };
            // SAFETY: the kernel passes an array of `count` registers on the lane's stack.
            unsafe { out.add(m).write(u32::from(pair[0]) | u32::from(pair[1]) << 16) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffles_pick_the_lane_that_the_instruction_set_defines() {
        assert_eq!(shuffle_source(ShuffleKind::Index, 5, 17, 32), 17);
        assert_eq!(shuffle_source(ShuffleKind::Index, 21, 3, 8), 19);
        assert_eq!(shuffle_source(ShuffleKind::Index, 21, 11, 8), 19);
        assert_eq!(shuffle_source(ShuffleKind::Xor, 5, 16, 32), 21);
        assert_eq!(shuffle_source(ShuffleKind::Xor, 5, 16, 8), 5);
        assert_eq!(shuffle_source(ShuffleKind::Xor, 21, 16, 8), 5);
        assert_eq!(shuffle_source(ShuffleKind::Down, 30, 1, 32), 31);
        assert_eq!(shuffle_source(ShuffleKind::Down, 31, 1, 32), 31);
        assert_eq!(shuffle_source(ShuffleKind::Down, 7, 1, 8), 7);
        assert_eq!(shuffle_source(ShuffleKind::Up, 0, 1, 32), 0);
        assert_eq!(shuffle_source(ShuffleKind::Up, 8, 1, 8), 8);
        assert_eq!(shuffle_source(ShuffleKind::Up, 9, 1, 8), 8);
    }
}
