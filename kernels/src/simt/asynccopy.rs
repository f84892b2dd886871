//! cp.async: copies that a lane starts now and that land at the wait which covers them.

use super::abi::Lane;
use super::block::Block;
use crate::device::FindingKind;

/// Largest copy of one instruction, in bytes.
const MAX_BYTES: usize = 16;

/// A copy on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copy {
    pub dst: usize,
    pub src: usize,
    pub bytes: usize,
    /// Bytes taken from `src`; the rest of `bytes` becomes zero.
    pub src_bytes: usize,
    pub pc: u32,
    group: u32,
}

/// The copies of one lane, oldest first.
#[derive(Default)]
pub(super) struct AsyncCopies {
    pending: Vec<Copy>,
    committed: u32,
}

impl AsyncCopies {
    /// Forgets everything, for a new block.
    pub fn clear(&mut self) {
        self.pending.clear();
        self.committed = 0;
    }

    /// Starts a copy of the running lane; false if the launch has to stop.
    pub fn issue(
        block: &mut Block,
        lane: &mut Lane,
        dst: usize,
        src: usize,
        bytes: i32,
        src_bytes: i32,
        pc: u32,
    ) -> bool {
        let sizes = matches!(bytes, 4 | 8 | 16) && (0..=bytes).contains(&src_bytes);
        if !sizes {
            let who = block.describe_lane(lane.linear);
            block.stop(FindingKind::Misaligned, pc, 0, || {
                format!(
                    "cp.async of {bytes} bytes ({src_bytes} from the source) by {who}; it copies 4, 8 or 16"
                )
            });
            return false;
        }
        let group = block.copies[lane.linear as usize].committed;
        let copy = Copy { dst, src, bytes: bytes as usize, src_bytes: src_bytes as usize, pc, group };
        if let Some(checker) = &mut block.checker
            && !checker.copy_issued(&mut block.findings, lane, &copy)
        {
            block.stopped = true;
            return false;
        }
        block.copies[lane.linear as usize].pending.push(copy);
        true
    }

    /// Closes the lane's current group.
    pub fn commit(&mut self) {
        self.committed += 1;
    }

    /// Lands every copy of a lane except those of its latest `pending` groups. Copies not yet committed stay.
    pub fn wait(block: &mut Block, lane: usize, pending: i32) {
        let covered = block.copies[lane].committed.saturating_sub(pending.max(0) as u32);
        Self::land(block, lane, covered);
    }

    /// Lands everything a returning lane started.
    pub fn land_all(block: &mut Block, lane: usize) {
        Self::land(block, lane, u32::MAX);
    }

    /// Lands the copies of groups before `end`.
    fn land(block: &mut Block, lane: usize, end: u32) {
        let count = block.copies[lane].pending.iter().take_while(|c| c.group < end).count();
        if count == 0 {
            return;
        }
        let record = block.lane(lane);
        let landing: Vec<Copy> = block.copies[lane].pending.drain(..count).collect();
        for copy in landing {
            let mut data = [0_u8; MAX_BYTES];
            // SAFETY: in checked mode both ranges were checked when the copy was issued; in fast mode a wrong
            // address faults, as on a device.
            unsafe {
                std::ptr::copy_nonoverlapping(copy.src as *const u8, data.as_mut_ptr(), copy.src_bytes);
                std::ptr::copy_nonoverlapping(data.as_ptr(), copy.dst as *mut u8, copy.bytes);
                if let Some(checker) = &mut block.checker {
                    checker.copy_landed(&*record, &copy);
                }
            }
        }
    }
}
