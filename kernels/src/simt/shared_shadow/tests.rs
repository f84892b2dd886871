//! The shadow against a plain model: every access of every byte kept, with full vector clocks.

use proptest::prelude::*;

use super::super::abi::{Lane, LaneState};
use super::super::block::{WARP, Wait};
use super::{Action, SharedShadow};

const LANES: usize = 40;
const BYTES: usize = 20;

#[derive(Clone, Debug)]
enum Step {
    Access {
        lane: usize,
        offset: usize,
        bytes: usize,
        action: Action,
    },
    /// Everything `lane` has issued lands.
    Land {
        lane: usize,
    },
    BlockBarrier,
    /// The lanes of one warp in this mask meet.
    WarpSync {
        warp: usize,
        mask: u32,
    },
    NextBlock,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        8 => Just(Action::Read),
        5 => Just(Action::Write),
        2 => Just(Action::Atomic),
        1 => Just(Action::CopyIssued)
    ]
}

fn step() -> impl Strategy<Value = Step> {
    // Few lanes and bytes: conflicts are common.
    let lane = prop_oneof![0..3_usize, 32..34_usize];
    let access = (lane.clone(), 0..5_u32, 0..BYTES, action()).prop_map(|(lane, log, offset, action)| {
        let bytes = if action == Action::CopyIssued { 1 << log.clamp(2, 4) } else { 1 << log };
        Step::Access { lane, offset: (offset.min(BYTES - bytes)) & !(bytes - 1), bytes, action }
    });
    let odd = (lane.clone(), 0..BYTES - 6, 1..7_usize, prop_oneof![Just(Action::Read), Just(Action::Write)])
        .prop_map(|(lane, offset, bytes, action)| Step::Access { lane, offset, bytes, action });
    prop_oneof![
        20 => access,
        2 => odd,
        2 => lane.prop_map(|lane| Step::Land { lane }),
        1 => Just(Step::BlockBarrier),
        4 => (0..2_usize, prop_oneof![Just(u32::MAX), 1..16_u32])
            .prop_map(|(warp, mask)| Step::WarpSync { warp, mask }),
        1 => Just(Step::NextBlock),
    ]
}

/// What the model keeps of an access: the lane's own clock at that time says when.
#[derive(Clone, Copy)]
struct Past {
    lane: usize,
    time: u64,
    kind: Action,
}

#[derive(Clone, Default)]
struct Byte {
    past: Vec<Past>,
    defined: bool,
    in_flight: bool,
}

/// A copy that has not landed: where, and a number that its bytes carry.
#[derive(Clone, Copy)]
struct Issued {
    offset: usize,
    bytes: usize,
    pc: u32,
}

struct Model {
    bytes: Vec<Byte>,
    /// What each lane has seen of each other lane's clock; its own runs ahead.
    clocks: Vec<Vec<u64>>,
}

impl Model {
    fn new() -> Self {
        let clocks = (0..LANES).map(|i| (0..LANES).map(|j| u64::from(i == j)).collect()).collect();
        Self { bytes: vec![Byte::default(); BYTES], clocks }
    }

    fn join(&mut self, lanes: &[usize]) {
        let mut joined = vec![0; LANES];
        for &lane in lanes {
            for (all, own) in joined.iter_mut().zip(&self.clocks[lane]) {
                *all = u64::max(*all, *own);
            }
        }
        for &lane in lanes {
            self.clocks[lane].clone_from(&joined);
            self.clocks[lane][lane] += 1;
        }
    }

    /// Whether the access conflicts, byte by byte.
    fn access(&mut self, lane: usize, offset: usize, bytes: usize, action: Action) -> bool {
        let mut conflict = false;
        let (seen, time) = (self.clocks[lane].clone(), self.clocks[lane][lane]);
        for byte in &mut self.bytes[offset..offset + bytes] {
            let ordered = |p: &Past| p.lane == lane || seen[p.lane] >= p.time;
            let clashes = |p: &Past| match (p.kind, action) {
                (Action::Read, Action::Read) | (Action::Atomic, Action::Atomic) => false,
                _ => !ordered(p),
            };
            conflict |= byte.in_flight || byte.past.iter().any(clashes);
            if matches!(action, Action::Read | Action::Atomic) {
                conflict |= !byte.defined;
            }
            if matches!(action, Action::Write | Action::CopyIssued) {
                byte.past.clear();
                byte.in_flight = action == Action::CopyIssued;
                byte.defined = action == Action::Write;
            }
            if action == Action::Atomic {
                byte.defined = true;
            }
            byte.past.push(Past { lane, time, kind: action });
        }
        conflict
    }
}

fn lane(linear: usize) -> Lane {
    Lane {
        thread: [linear as u32, 0, 0],
        linear: linear as u32,
        block: std::ptr::null_mut(),
        yielder: std::ptr::null(),
        epoch: 0,
        warp: (linear / WARP) as u16,
        index: (linear % WARP) as u8,
        state: LaneState::Ready,
        wait: Wait::NONE,
        result: 0,
    }
}

/// Runs the steps on both; an error names the first step on which they differ.
fn agree(steps: &[Step]) -> Result<(), TestCaseError> {
    let mut shadow = SharedShadow::new(BYTES, 2);
    let mut model = Model::new();
    let mut lanes: Vec<Lane> = (0..LANES).map(lane).collect();
    let mut issued: Vec<Vec<Issued>> = vec![vec![]; LANES];
    let start = shadow.start_block();
    lanes.iter_mut().for_each(|l| l.epoch = start);
    for (number, step) in steps.iter().enumerate() {
        match *step {
            Step::Access { lane, offset, bytes, action } => {
                // Every step has its own place in the code, so that a landing copy knows its bytes.
                let pc = number as u32 + 1;
                let got = shadow.access(&lanes[lane], offset, bytes, action, pc);
                let want = model.access(lane, offset, bytes, action);
                prop_assert_eq!(got.is_err(), want, "step {} {:?}: {:?}", number, step, got);
                if action == Action::CopyIssued {
                    issued[lane].push(Issued { offset, bytes, pc });
                }
                // A copy that another write overtook has been reported; the model forgets it.
                for copies in &mut issued {
                    copies.retain(|c| c.pc == pc || !overlaps(c, offset, bytes) || is_reading(action));
                }
            }
            Step::Land { lane } => {
                for copy in issued[lane].drain(..) {
                    shadow.copy_landed(&lanes[lane], copy.offset, copy.bytes, copy.pc);
                    let time = model.clocks[lane][lane];
                    for byte in &mut model.bytes[copy.offset..copy.offset + copy.bytes] {
                        byte.in_flight = false;
                        byte.defined = true;
                        // The write happens now.
                        if let Some(first) = byte.past.first_mut() {
                            first.time = time;
                        }
                    }
                }
            }
            Step::BlockBarrier => {
                model.join(&(0..LANES).collect::<Vec<_>>());
                let stamp = shadow.block_synchronised();
                lanes.iter_mut().for_each(|l| l.epoch = stamp);
            }
            Step::WarpSync { warp, mask } => {
                let all = if warp == 0 { u32::MAX } else { (1 << (LANES - WARP)) - 1 };
                let arrived = mask & all;
                let members: Vec<usize> =
                    (0..WARP).filter(|i| arrived >> i & 1 == 1).map(|i| warp * WARP + i).collect();
                model.join(&members);
                let stamp = shadow.order.warp_synchronised(warp, arrived, all);
                members.iter().for_each(|&m| lanes[m].epoch = stamp);
            }
            Step::NextBlock => {
                model = Model::new();
                issued.iter_mut().for_each(Vec::clear);
                let stamp = shadow.start_block();
                lanes.iter_mut().for_each(|l| l.epoch = stamp);
            }
        }
    }
    Ok(())
}

fn overlaps(copy: &Issued, offset: usize, bytes: usize) -> bool {
    copy.offset < offset + bytes && offset < copy.offset + copy.bytes
}

fn is_reading(action: Action) -> bool {
    matches!(action, Action::Read | Action::Atomic)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6000, ..ProptestConfig::default() })]

    #[test]
    fn the_shadow_accuses_exactly_when_the_model_does(steps in prop::collection::vec(step(), 1..80)) {
        agree(&steps)?;
    }
}
