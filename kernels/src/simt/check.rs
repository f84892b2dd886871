//! Judges every access of a checked launch: bounds, alignment, initialisation, races.
//!
//! Methods that return a bool say whether the access may be performed; they add what they find to the findings.

use super::abi::Lane;
use super::asynccopy::Copy;
use super::block::WARP;
use super::findings::Findings;
use super::global_shadow::{self, GlobalShadow, OtherBlock, pieces};
use super::memory::Memory;
use super::module::Module;
use super::schedule::Walk;
use super::shared_shadow::{Action, Conflict, SharedShadow};
use super::warp::Lanes;
use crate::device::FindingKind;

/// The checks of one launch.
pub(super) struct Checker {
    memory: *const Memory,
    module: *const Module,
    global: *mut GlobalShadow,
    shared: SharedShadow,
    shared_base: usize,
    /// End of the last checked live allocation, and its start: most accesses go where the one before went.
    recent: (usize, usize),
    grid: [u32; 3],
    walk: Walk,
    /// Index of the running block.
    block: [u32; 3],
    /// Its serial number; `None` if it is the only block and cannot race with another.
    serial: Option<u32>,
}

/// An access as messages name it.
#[derive(Clone, Copy)]
struct Access {
    address: usize,
    bytes: usize,
    what: &'static str,
    pc: u32,
}

impl Checker {
    /// Checks for a launch over `grid` whose blocks run in the order of `walk`. `memory`, `module` and `global` must
    /// outlive the checker.
    pub fn new(
        memory: &Memory,
        module: &Module,
        global: &mut GlobalShadow,
        shared: SharedShadow,
        shared_base: usize,
        grid: [u32; 3],
        walk: Walk,
    ) -> Self {
        Self {
            memory,
            module,
            global,
            shared,
            shared_base,
            recent: (0, 0),
            grid,
            walk,
            block: [0; 3],
            serial: None,
        }
    }

    fn memory(&self) -> &Memory {
        // SAFETY: see `new`.
        unsafe { &*self.memory }
    }

    #[inline(always)]
    fn global(&mut self) -> &mut GlobalShadow {
        // SAFETY: see `new`; nothing else uses the shadow during a launch.
        unsafe { &mut *self.global }
    }

    /// Prepares for a block; returns the stamp its lanes start with.
    pub fn start_block(&mut self, block: [u32; 3]) -> u32 {
        self.block = block;
        self.serial = (self.grid != [1, 1, 1]).then(|| self.global().start_block());
        self.shared.start_block()
    }

    /// Every lane of the block has met.
    pub fn block_synchronised(&mut self) -> u32 {
        self.shared.block_synchronised()
    }

    /// Lanes of a warp have met, of `all` that it started with.
    pub fn warp_synchronised(&mut self, lanes: &Lanes, all: u32) {
        self.shared.warp_synchronised(lanes, all);
    }

    /// An aligned access of 1, 2, 4, 8 or 16 bytes.
    #[inline]
    pub fn access<const BYTES: usize, const WRITE: bool>(
        &mut self,
        findings: &mut Findings,
        lane: &Lane,
        address: usize,
        pc: u32,
    ) -> bool {
        let access = Access { address, bytes: BYTES, what: if WRITE { "write" } else { "read" }, pc };
        if address & (BYTES - 1) != 0 {
            return self.misaligned(findings, lane, access, BYTES);
        }
        self.plain(findings, lane, access, WRITE)
    }

    /// An access of any size and alignment.
    pub fn range(
        &mut self,
        findings: &mut Findings,
        lane: &Lane,
        address: usize,
        bytes: usize,
        write: bool,
        pc: u32,
    ) -> bool {
        let access = Access { address, bytes, what: if write { "write" } else { "read" }, pc };
        bytes == 0 || self.plain(findings, lane, access, write)
    }

    #[inline(always)]
    fn plain(&mut self, findings: &mut Findings, lane: &Lane, access: Access, write: bool) -> bool {
        let offset = access.address.wrapping_sub(self.shared_base);
        if offset < self.shared.bytes() && access.bytes <= self.shared.bytes() - offset {
            let action = if write { Action::Write } else { Action::Read };
            return self.in_shared(findings, lane, access, action);
        }
        let action = if write { global_shadow::Action::Write } else { global_shadow::Action::Read };
        self.in_global(findings, lane, access, action)
    }

    /// An atomic read-modify-write.
    pub fn atomic(
        &mut self,
        findings: &mut Findings,
        lane: &Lane,
        address: usize,
        bytes: usize,
        pc: u32,
    ) -> bool {
        let access = Access { address, bytes, what: "atomic", pc };
        if !address.is_multiple_of(bytes) {
            return self.misaligned(findings, lane, access, bytes);
        }
        let offset = address.wrapping_sub(self.shared_base);
        if offset < self.shared.bytes() {
            return self.in_shared(findings, lane, access, Action::Atomic);
        }
        self.in_global(findings, lane, access, global_shadow::Action::Atomic)
    }

    /// A row of ldmatrix: 16 bytes of shared memory, read by the lanes that receive them.
    pub fn matrix_row(
        &mut self,
        findings: &mut Findings,
        lanes: &Lanes,
        supplier: usize,
        row: usize,
        transposed: bool,
    ) -> bool {
        let pc = lanes.get(supplier).wait.pc;
        let access = Access { address: row, bytes: 16, what: "ldmatrix row", pc };
        if !row.is_multiple_of(16) {
            return self.misaligned(findings, lanes.get(supplier), access, 16);
        }
        let offset = row.wrapping_sub(self.shared_base);
        if offset >= self.shared.bytes() {
            return self.out_of_bounds(findings, lanes.get(supplier), access);
        }
        let r = supplier % 8;
        for word in 0..4 {
            // The lanes that receive columns 2·word and 2·word + 1 of row r.
            let receivers =
                if transposed { [8 * word + r / 2, 8 * word + 4 + r / 2] } else { [4 * r + word; 2] };
            let part = Access { address: row + 4 * word, bytes: 4, ..access };
            for (i, receiver) in receivers.into_iter().enumerate() {
                if i == 0 || receiver != receivers[0] {
                    self.in_shared(findings, lanes.get(receiver), part, Action::Read);
                }
            }
        }
        true
    }

    /// A cp.async starts.
    pub fn copy_issued(&mut self, findings: &mut Findings, lane: &Lane, copy: &Copy) -> bool {
        let source = Access { address: copy.src, bytes: copy.src_bytes, what: "cp.async read", pc: copy.pc };
        let target = Access { address: copy.dst, bytes: copy.bytes, what: "cp.async write", pc: copy.pc };
        if !copy.dst.is_multiple_of(copy.bytes) {
            return self.misaligned(findings, lane, target, copy.bytes);
        }
        if copy.src_bytes > 0 {
            if !copy.src.is_multiple_of(copy.bytes) {
                return self.misaligned(findings, lane, source, copy.bytes);
            }
            if !self.in_global(findings, lane, source, global_shadow::Action::Read) {
                return false;
            }
        }
        if copy.dst.wrapping_sub(self.shared_base) >= self.shared.bytes() {
            return self.out_of_bounds(findings, lane, target);
        }
        self.in_shared(findings, lane, target, Action::CopyIssued)
    }

    /// A cp.async has arrived.
    pub fn copy_landed(&mut self, lane: &Lane, copy: &Copy) {
        self.shared.copy_landed(lane, copy.dst - self.shared_base, copy.bytes, copy.pc);
    }

    #[inline(always)]
    fn in_shared(&mut self, findings: &mut Findings, lane: &Lane, access: Access, action: Action) -> bool {
        let offset = access.address - self.shared_base;
        if let Err(conflict) = self.shared.access(lane, offset, access.bytes, action, access.pc) {
            self.shared_conflict(findings, lane, access, action, conflict);
        }
        true
    }

    #[inline(always)]
    fn in_global(
        &mut self,
        findings: &mut Findings,
        lane: &Lane,
        access: Access,
        action: global_shadow::Action,
    ) -> bool {
        let Access { address, bytes, pc, .. } = access;
        if !(address >= self.recent.0 && address + bytes <= self.recent.1) {
            match self.memory().find(address) {
                Some(a) if a.live && address >= a.start && address + bytes <= a.end() => {
                    self.recent = (a.start, a.end());
                }
                _ => return self.elsewhere(findings, lane, access),
            }
        }
        if action != global_shadow::Action::Write {
            let undefined = if bytes <= 16 {
                self.global().first_undefined(address, bytes)
            } else {
                pieces(address, bytes).find_map(|(at, n)| self.global().first_undefined(at, n))
            };
            if let Some(at) = undefined {
                self.undefined_global(findings, lane, access, at);
            }
        }
        if action != global_shadow::Action::Read {
            if bytes <= 16 {
                self.global().define(address, bytes);
            } else {
                self.global().define_range(address, bytes);
            }
        }
        if let Some(serial) = self.serial
            && let Some(other) = self.global().access(serial, address, bytes, action, pc)
        {
            self.global_race(findings, lane, access, other);
        }
        true
    }

    /// Not in shared memory and not in a live allocation: the library's own data, or a fault.
    #[cold]
    #[inline(never)]
    fn elsewhere(&mut self, findings: &mut Findings, lane: &Lane, access: Access) -> bool {
        // SAFETY: see `new`.
        let module = unsafe { &*self.module };
        module.contains(access.address) || self.out_of_bounds(findings, lane, access)
    }

    /// `lane 3 (thread [3, 0, 0]) of block [0, 0, 0]`.
    fn who(&self, lane: &Lane) -> String {
        format!("lane {} (thread {:?}) of block {:?}", lane.linear, lane.thread, self.block)
    }

    #[cold]
    #[inline(never)]
    fn misaligned(&self, findings: &mut Findings, lane: &Lane, access: Access, align: usize) -> bool {
        findings.add(FindingKind::Misaligned, access.pc, 0, || {
            let Access { address, bytes, what, .. } = access;
            let place = self.place(address, bytes).unwrap_or_else(|| format!("address {address:#x}"));
            let off = address % align;
            format!("{bytes}-byte {what} at {place}, {off} past a multiple of {align}, by {}", self.who(lane))
        });
        false
    }

    #[cold]
    #[inline(never)]
    fn out_of_bounds(&self, findings: &mut Findings, lane: &Lane, access: Access) -> bool {
        let Access { address, bytes, what, pc } = access;
        let freed =
            self.memory().find(address).filter(|a| !a.live && address >= a.start && address < a.end());
        let kind = if freed.is_some() { FindingKind::UseAfterFree } else { FindingKind::OutOfBounds };
        findings.add(kind, pc, 0, || {
            let place = self.place(address, bytes).unwrap_or_else(|| self.nowhere(address));
            format!("{bytes}-byte {what} at {place}, by {}", self.who(lane))
        });
        false
    }

    /// Where an address lies relative to what is nearest to it, if something is near.
    fn place(&self, address: usize, bytes: usize) -> Option<String> {
        let size = self.shared.bytes();
        let offset = address.wrapping_sub(self.shared_base) as isize;
        if (-65_536..262_144).contains(&offset) {
            return Some(format!(
                "offset {offset} of the {size} bytes of shared memory{}",
                past(offset, bytes, size)
            ));
        }
        let allocation = self.memory().find(address)?;
        let offset = address.wrapping_sub(allocation.start) as isize;
        let size = allocation.bytes;
        let state = if allocation.live { "an allocation" } else { "a freed allocation" };
        Some(format!("offset {offset} of {state} of {size} bytes{}", past(offset, bytes, size)))
    }

    fn nowhere(&self, address: usize) -> String {
        if address < 1 << 16 {
            return format!("null plus {address}");
        }
        let near = match self.memory().neighbours(address) {
            (Some(below), _) => {
                format!(
                    "{} bytes past the end of an allocation of {} bytes",
                    address - below.end(),
                    below.bytes
                )
            }
            (None, Some(above)) => {
                format!("{} bytes before an allocation of {} bytes", above.start - address, above.bytes)
            }
            (None, None) => "with nothing allocated".to_owned(),
        };
        format!("address {address:#x}, {near}")
    }

    #[cold]
    #[inline(never)]
    fn undefined_global(&self, findings: &mut Findings, lane: &Lane, access: Access, at: usize) {
        let Access { address, bytes, what, pc } = access;
        findings.add(FindingKind::Uninitialised, pc, 0, || {
            let place = self.place(address, bytes).unwrap_or_default();
            let first = at - address;
            format!(
                "{bytes}-byte {what} at {place}, by {}: nothing has written byte {first} of it",
                self.who(lane)
            )
        });
    }

    #[cold]
    #[inline(never)]
    fn global_race(&mut self, findings: &mut Findings, lane: &Lane, access: Access, other: OtherBlock) {
        let Access { address, bytes, what, pc } = access;
        let position = self.global().position(other.serial);
        findings.add(FindingKind::GlobalRace, pc, other.pc, || {
            let place = self.place(address, bytes).unwrap_or_default();
            let block = position.map_or("another block".to_owned(), |position| {
                let [gx, gy, _] = self.grid.map(u64::from);
                let index = self.walk.at(position);
                format!("block {:?}", [index % gx, index / gx % gy, index / (gx * gy)])
            });
            let byte = other.address.max(address) - address;
            format!(
                "{bytes}-byte {what} at {place}, by {}: byte {byte} was {} by {block} in the same launch",
                self.who(lane),
                other.action
            )
        });
    }

    #[cold]
    #[inline(never)]
    fn shared_conflict(
        &self,
        findings: &mut Findings,
        lane: &Lane,
        access: Access,
        action: Action,
        conflict: Conflict,
    ) {
        let Access { bytes, what, pc, address } = access;
        let start = address - self.shared_base;
        let size = self.shared.bytes();
        let place = format!("{bytes}-byte {what} at offset {start} of the {size} bytes of shared memory");
        match conflict {
            Conflict::Undefined { offset } => findings.add(FindingKind::Uninitialised, pc, 0, || {
                let first = offset.max(start) - start;
                format!(
                    "{place}, by {}: nothing in this block has written byte {first} of it",
                    self.who(lane)
                )
            }),
            Conflict::InFlight { lane: other, pc: other_pc } => {
                let kind =
                    if action == Action::Read { FindingKind::Uninitialised } else { FindingKind::SharedRace };
                findings.add(kind, pc, other_pc, || {
                    format!(
                        "{place}, by {}: a cp.async of lane {other} into it is still in flight",
                        self.who(lane)
                    )
                });
            }
            Conflict::Race { other } => findings.add(FindingKind::SharedRace, pc, other.pc, || {
                let distance = if other.lane as usize / WARP == lane.linear as usize / WARP {
                    "with no barrier or __syncwarp between"
                } else {
                    "with no barrier between"
                };
                format!("{place}, by {}: {} by lane {} {distance}", self.who(lane), other.action, other.lane)
            }),
        }
    }
}

/// How far an access reaches outside, in words.
fn past(offset: isize, bytes: usize, size: usize) -> String {
    if offset < 0 {
        return format!(" ({} bytes before its start)", -offset);
    }
    let end = offset as usize + bytes;
    match (offset as usize).checked_sub(size) {
        Some(beyond) => format!(" ({beyond} bytes past its end)"),
        None if end > size => format!(" (its last {} bytes are past the end)", end - size),
        None => String::new(),
    }
}
