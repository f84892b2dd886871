//! The functions that kernel code calls, through the shim, from a lane's fiber.
//!
//! They may suspend the lane. A lane that is suspended for good is dropped without unwinding, so no frame here may
//! own anything at a suspension point.

use std::ffi::{CStr, c_char, c_void};
use std::io;
use std::sync::OnceLock;

use super::abi::{LANE_SHIFT, Lane, Table};
use super::asynccopy::AsyncCopies;
use super::atomics;
use super::block::Block;
use super::ex2::ex2_approx_ftz;
use super::fiber::{Arena, STACK_SHIFT};
use super::warp::{Operation, ShuffleKind, VoteKind, Warp};
use crate::device::FindingKind;

/// The table for kernel libraries; the same for all.
pub(super) fn table() -> io::Result<&'static Table> {
    static TABLE: OnceLock<Table> = OnceLock::new();
    let arena = Arena::get()?;
    Ok(TABLE.get_or_init(|| {
        let (stack_base, stack_bytes) = arena.stack_range();
        Table {
            stack_base,
            stack_bytes,
            stack_shift: STACK_SHIFT as usize,
            lanes: arena.lanes_base(),
            lane_shift: LANE_SHIFT as usize,
            read: [
                access::<1, false>,
                access::<2, false>,
                access::<4, false>,
                access::<8, false>,
                access::<16, false>,
            ],
            write: [
                access::<1, true>,
                access::<2, true>,
                access::<4, true>,
                access::<8, true>,
                access::<16, true>,
            ],
            range,
            barrier,
            sync_warp,
            shuffle,
            vote,
            active_mask,
            atomic32,
            atomic64,
            atomic_check,
            beyond_array,
            cp_async,
            cp_commit,
            cp_wait,
            mma,
            ldmatrix,
            ex2,
        }
    }))
}

/// The running lane, its block, and the code offset of a return address.
///
/// # Safety
/// `lane` is the record of the running lane.
#[inline(always)]
unsafe fn parts<'a>(lane: *mut Lane, pc: usize) -> (&'a mut Block, &'a mut Lane, u32) {
    // SAFETY: lane records point at their block while it runs, and only the running lane's hooks touch either.
    unsafe {
        let block = &mut *(*lane).block;
        let pc = block.module().offset(pc);
        (block, &mut *lane, pc)
    }
}

/// Suspends the running lane until it is released, or for good once the launch has been stopped.
///
/// # Safety
/// `lane` is the record of the running lane; no reference into it or its block is live.
#[inline]
unsafe fn suspend(lane: *mut Lane) {
    // SAFETY: the fiber set its yielder when it started.
    unsafe { (*(*lane).yielder).suspend(()) };
}

/// After an access: stops the lane for good if the launch has been stopped, or preempts it when its time is up.
///
/// # Safety
/// As for [`suspend`].
#[inline(always)]
unsafe fn after_access(lane: *mut Lane, ok: bool) {
    // SAFETY: the caller's promise.
    unsafe {
        let block = (*lane).block;
        if !ok {
            (*block).stopped = true;
            suspend(lane);
        }
        (*block).until_preemption -= 1;
        if (*block).until_preemption == 0 {
            (*block).requeue((*lane).linear as usize);
            suspend(lane);
        }
    }
}

unsafe extern "C" fn access<const BYTES: usize, const WRITE: bool>(
    lane: *mut Lane,
    address: *const c_void,
    pc: usize,
) {
    // SAFETY: called by the shim with the running lane.
    unsafe {
        let ok = {
            let (block, record, pc) = parts(lane, pc);
            match block.checker.as_deref_mut() {
                Some(checker) => {
                    checker.access::<BYTES, WRITE>(&mut block.findings, record, address as usize, pc)
                }
                None => true,
            }
        };
        after_access(lane, ok);
    }
}

unsafe extern "C" fn range(lane: *mut Lane, address: *const c_void, bytes: u64, write: u32, pc: usize) {
    // SAFETY: as above.
    unsafe {
        let ok = {
            let (block, record, pc) = parts(lane, pc);
            match block.checker.as_deref_mut() {
                Some(checker) => checker.range(
                    &mut block.findings,
                    record,
                    address as usize,
                    bytes as usize,
                    write != 0,
                    pc,
                ),
                None => true,
            }
        };
        after_access(lane, ok);
    }
}

unsafe extern "C" fn barrier(lane: *mut Lane, line: i32, pc: usize) {
    // SAFETY: as above.
    unsafe {
        let (block, record, pc) = parts(lane, pc);
        block.arrive_at_barrier(record, line, pc);
        suspend(lane);
    }
}

/// Takes part in a collective and returns its outcome for this lane.
///
/// # Safety
/// As for [`suspend`].
unsafe fn collective(lane: *mut Lane, operation: Operation, mask: u32, pc: usize) -> u64 {
    // SAFETY: as above.
    unsafe {
        let (block, record, pc) = parts(lane, pc);
        Warp::join(block, record, operation, mask, pc);
        suspend(lane);
        (*lane).result
    }
}

unsafe extern "C" fn sync_warp(lane: *mut Lane, mask: u32, pc: usize) {
    // SAFETY: as above.
    unsafe { collective(lane, Operation::SyncWarp, mask, pc) };
}

unsafe extern "C" fn shuffle(
    lane: *mut Lane,
    mask: u32,
    value: u64,
    operand: i32,
    width: i32,
    kind: i32,
    pc: usize,
) -> u64 {
    let kind = match kind {
        0 => ShuffleKind::Index,
        1 => ShuffleKind::Xor,
        2 => ShuffleKind::Down,
        _ => ShuffleKind::Up,
    };
    // SAFETY: as above.
    unsafe {
        if !matches!(width, 1 | 2 | 4 | 8 | 16 | 32) {
            refuse_width(lane, width, pc);
            suspend(lane);
        }
        collective(lane, Operation::Shuffle { kind, value, operand, width }, mask, pc)
    }
}

/// Stops the launch for a shuffle of a width that is no power of two.
///
/// # Safety
/// As for [`suspend`].
unsafe fn refuse_width(lane: *mut Lane, width: i32, pc: usize) {
    // SAFETY: as above.
    let (block, record, pc) = unsafe { parts(lane, pc) };
    let who = block.describe_lane(record.linear);
    block.stop(FindingKind::Divergence, pc, 0, || {
        format!("shuffle of width {width} by {who}; a width is a power of two up to 32")
    });
}

unsafe extern "C" fn vote(lane: *mut Lane, mask: u32, predicate: i32, kind: i32, pc: usize) -> u32 {
    let kind = match kind {
        0 => VoteKind::Ballot,
        1 => VoteKind::Any,
        _ => VoteKind::All,
    };
    // SAFETY: as above.
    unsafe { collective(lane, Operation::Vote { kind, predicate: predicate != 0 }, mask, pc) as u32 }
}

unsafe extern "C" fn active_mask(lane: *mut Lane) -> u32 {
    // SAFETY: as above. The lanes that happen to run together are the model's choice: only the caller does.
    unsafe { (*lane).bit() }
}

unsafe extern "C" fn atomic32(
    lane: *mut Lane,
    operation: i32,
    kind: i32,
    address: *mut c_void,
    value: u32,
    compare: u32,
    pc: usize,
) -> u32 {
    // SAFETY: as above; the address was checked, or faults as on a device.
    unsafe {
        atomic_check(lane, address, 4, pc);
        let old = address.cast::<u32>().read_unaligned();
        address.cast::<u32>().write_unaligned(atomics::combine32(operation, kind, old, value, compare));
        old
    }
}

unsafe extern "C" fn atomic64(
    lane: *mut Lane,
    operation: i32,
    _kind: i32,
    address: *mut c_void,
    value: u64,
    compare: u64,
    pc: usize,
) -> u64 {
    // SAFETY: as above.
    unsafe {
        atomic_check(lane, address, 8, pc);
        let old = address.cast::<u64>().read_unaligned();
        address.cast::<u64>().write_unaligned(atomics::combine64(operation, old, value, compare));
        old
    }
}

unsafe extern "C" fn atomic_check(lane: *mut Lane, address: *const c_void, bytes: u32, pc: usize) {
    // SAFETY: as above.
    unsafe {
        let ok = {
            let (block, record, pc) = parts(lane, pc);
            match block.checker.as_deref_mut() {
                Some(checker) => {
                    checker.atomic(&mut block.findings, record, address as usize, bytes as usize, pc)
                }
                None => true,
            }
        };
        after_access(lane, ok);
    }
}

/// The lane is about to touch an element that its array does not have. It gets no further: where the access would land is
/// the compiler's business.
unsafe extern "C" fn beyond_array(lane: *mut Lane, index: usize, array: *const c_char, pc: usize) {
    // SAFETY: as above; the name is a literal that the compiler made.
    unsafe {
        {
            let (block, record, pc) = parts(lane, pc);
            let who = block.describe_lane(record.linear);
            block.stop(FindingKind::OutOfBounds, pc, 0, || {
                // An index of a narrower type arrives sign-extended.
                let (index, array) = (index as isize, CStr::from_ptr(array).to_string_lossy());
                format!("index {index} of an array {} by {who}", array.trim_matches('\''))
            });
        }
        suspend(lane);
    }
}

unsafe extern "C" fn cp_async(
    lane: *mut Lane,
    dst: *mut c_void,
    src: *const c_void,
    bytes: i32,
    src_bytes: i32,
    pc: usize,
) {
    // SAFETY: as above.
    unsafe {
        let ok = {
            let (block, record, pc) = parts(lane, pc);
            AsyncCopies::issue(block, record, dst as usize, src as usize, bytes, src_bytes, pc)
        };
        after_access(lane, ok);
    }
}

unsafe extern "C" fn cp_commit(lane: *mut Lane) {
    // SAFETY: as above.
    unsafe { (&mut (*(*lane).block).copies)[(*lane).linear as usize].commit() };
}

unsafe extern "C" fn cp_wait(lane: *mut Lane, pending: i32, _pc: usize) {
    // SAFETY: as above.
    unsafe { AsyncCopies::wait(&mut *(*lane).block, (*lane).linear as usize, pending) };
}

unsafe extern "C" fn mma(
    lane: *mut Lane,
    d: *mut f32,
    a: *const u32,
    b: *const u32,
    c: *const f32,
    is_f16: i32,
    pc: usize,
) {
    // SAFETY: as above.
    unsafe { collective(lane, Operation::Mma { d, a, b, c, f16: is_f16 != 0 }, u32::MAX, pc) };
}

unsafe extern "C" fn ldmatrix(
    lane: *mut Lane,
    out: *mut u32,
    row: *const c_void,
    count: i32,
    transposed: i32,
    pc: usize,
) {
    let operation =
        Operation::Matrix { out, row: row as usize, count: count as u8, transposed: transposed != 0 };
    // SAFETY: as above.
    unsafe { collective(lane, operation, u32::MAX, pc) };
}

/// Arithmetic only: it needs no lane and cannot suspend one.
extern "C" fn ex2(x: f32) -> f32 {
    ex2_approx_ftz(x)
}
