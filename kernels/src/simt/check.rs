//! Judges every access of a checked launch: bounds, alignment, initialisation, races.

use super::abi::Lane;
use super::asynccopy::Copy;
use super::findings::Findings;
use super::memory::Memory;
use super::module::Module;
use super::warp::Lanes;
use crate::device::FindingKind;

/// The checks of one launch. Methods that return a bool say whether the access may be performed.
pub(super) struct Checker {
    memory: *const Memory,
    module: *const Module,
    shared: (usize, usize),
    block: u64,
}

impl Checker {
    pub fn new(memory: &Memory, module: &Module, shared: (usize, usize)) -> Self {
        Self { memory, module, shared, block: 0 }
    }

    /// Prepares for a block; returns the epoch its lanes start in.
    pub fn start_block(&mut self, index: u64) -> u32 {
        self.block = index;
        0
    }

    pub fn block_synchronised(&mut self) -> u32 {
        0
    }

    pub fn warp_synchronised(&mut self, _lanes: &Lanes, _live: u32) {}

    #[inline]
    pub fn access<const BYTES: usize, const WRITE: bool>(
        &mut self,
        findings: &mut Findings,
        lane: &mut Lane,
        address: usize,
        pc: u32,
    ) -> bool {
        self.range(findings, lane, address, BYTES, WRITE, pc)
    }

    pub fn range(
        &mut self,
        findings: &mut Findings,
        lane: &mut Lane,
        address: usize,
        bytes: usize,
        write: bool,
        pc: u32,
    ) -> bool {
        // SAFETY: the launch keeps both alive.
        let (memory, module) = unsafe { (&*self.memory, &*self.module) };
        if address.wrapping_sub(self.shared.0) < self.shared.1
            && address + bytes <= self.shared.0 + self.shared.1
        {
            return true;
        }
        if module.contains(address) {
            return true;
        }
        if let Some(a) = memory.find(address)
            && a.live
            && address >= a.start
            && address + bytes <= a.end()
        {
            return true;
        }
        findings.add(FindingKind::OutOfBounds, pc, 0, || {
            format!(
                "{bytes}-byte {} at {address:#x} by lane {}",
                if write { "write" } else { "read" },
                lane.linear
            )
        });
        false
    }

    pub fn atomic(
        &mut self,
        findings: &mut Findings,
        lane: &mut Lane,
        address: usize,
        bytes: usize,
        pc: u32,
    ) -> bool {
        self.range(findings, lane, address, bytes, true, pc)
    }

    pub fn matrix_row(
        &mut self,
        findings: &mut Findings,
        _lanes: &Lanes,
        lane: &mut Lane,
        row: usize,
        _transposed: bool,
    ) -> bool {
        let pc = lane.wait.pc;
        self.range(findings, lane, row, 16, false, pc)
    }

    pub fn copy_issued(&mut self, findings: &mut Findings, lane: &mut Lane, copy: &Copy) -> bool {
        self.range(findings, lane, copy.src, copy.src_bytes, false, copy.pc)
            && self.range(findings, lane, copy.dst, copy.bytes, true, copy.pc)
    }

    pub fn copy_landed(&mut self, _lane: &Lane, _copy: &Copy) {}
}
