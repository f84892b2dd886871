//! Explains a block in which every remaining lane waits.

use super::abi::LaneState;
use super::block::{Block, WARP, Wait};
use super::warp::Operation;
use crate::device::FindingKind;

/// Lanes that wait in one place for the same thing.
struct Party {
    wait: Wait,
    lanes: Vec<u32>,
}

impl Party {
    fn is_barrier(&self) -> bool {
        matches!(self.wait.operation, Operation::BlockBarrier { .. })
    }

    fn describe(&self) -> String {
        let mask = if self.is_barrier() { String::new() } else { format!("({:#010x})", self.wait.mask) };
        format!("lanes {} wait at {}{mask}", ranges(&self.lanes), self.wait.operation.name())
    }
}

impl Block {
    /// Adds the finding for a block that cannot go on, and stops the launch.
    ///
    /// Parties that wait for one another at different operations, or with masks that do not match, are divergence;
    /// a cycle of well-formed partial collectives is a deadlock.
    pub(super) fn report_stuck(&mut self) {
        let parties = self.waiting_parties();
        let mut pair = (&parties[0], None);
        'search: for party in &parties {
            for other in &parties {
                if self.waits_for(party, other) && !std::ptr::eq(party, other) {
                    pair = (party, Some(other));
                    break 'search;
                }
            }
        }
        let (first, second) = pair;
        let line = |party: &Party| self.module().site(party.wait.pc);
        let divergence = second.is_some_and(|second| {
            first.is_barrier()
                || second.is_barrier()
                || first.wait.mask == second.wait.mask
                || line(first) == line(second)
        });
        let kind = if divergence { FindingKind::Divergence } else { FindingKind::Deadlock };
        let text = parties.iter().take(4).map(Party::describe).collect::<Vec<_>>().join(", ");
        let more = if parties.len() > 4 {
            format!(" and {} more groups wait", parties.len() - 4)
        } else {
            String::new()
        };
        let (pc, other) = (first.wait.pc, second.map_or(0, |p| p.wait.pc));
        let message = format!("no lane of block {:?} can go on: {text}{more}", self.geometry[0]);
        self.stop(kind, pc, other, || message);
    }

    /// Waiting lanes by place, operation and mask; per warp unless they wait at the block barrier.
    fn waiting_parties(&self) -> Vec<Party> {
        let mut parties: Vec<Party> = Vec::new();
        for linear in 0..self.count {
            // SAFETY: lane records are initialised when a block starts.
            let (state, wait) =
                unsafe { ((*self.lane(linear as usize)).state, (*self.lane(linear as usize)).wait) };
            if !matches!(state, LaneState::AtBarrier | LaneState::InCollective) {
                continue;
            }
            let same = parties.iter_mut().find(|p| {
                p.wait.pc == wait.pc
                    && p.wait.mask == wait.mask
                    && (p.is_barrier() || p.lanes[0] as usize / WARP == linear as usize / WARP)
            });
            match same {
                Some(party) => party.lanes.push(linear),
                None => parties.push(Party { wait, lanes: vec![linear] }),
            }
        }
        parties
    }

    /// Whether `party` cannot go on without a lane of `other`.
    fn waits_for(&self, party: &Party, other: &Party) -> bool {
        if party.is_barrier() {
            return true;
        }
        let warp = party.lanes[0] as usize / WARP;
        other
            .lanes
            .iter()
            .any(|&l| l as usize / WARP == warp && party.wait.mask >> (l as usize % WARP) & 1 == 1)
    }
}

/// `0-15, 17` for sorted numbers.
fn ranges(lanes: &[u32]) -> String {
    let mut text = String::new();
    let mut i = 0;
    while i < lanes.len() {
        let start = i;
        while i + 1 < lanes.len() && lanes[i + 1] == lanes[i] + 1 {
            i += 1;
        }
        if !text.is_empty() {
            text.push_str(", ");
        }
        text.push_str(&lanes[start].to_string());
        if i > start {
            text.push_str(&format!("-{}", lanes[i]));
        }
        i += 1;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::ranges;

    #[test]
    fn consecutive_lanes_are_written_as_a_range() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2, 5, 7-8");
        assert_eq!(ranges(&[31]), "31");
    }
}
