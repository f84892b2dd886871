//! What a kernel library and this runtime share: the lane table, the visible part of a block, the function table.
//!
//! The layouts are mirrored in `shim.cpp`, which checks the table's size when a library is attached.

use std::ffi::{c_char, c_void};

use super::block::{Block, Wait};
use super::fiber::LaneYielder;

/// log2 of a lane record's size; the shim finds a lane by shifting its fiber's index.
pub(super) const LANE_SHIFT: u32 = 8;

/// What a lane is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum LaneState {
    Ready,
    AtBarrier,
    InCollective,
    Exited,
}

/// One lane. The first three fields are read by kernel code through the shim.
#[repr(C, align(256))]
pub(super) struct Lane {
    pub thread: [u32; 3],
    pub linear: u32,
    pub block: *mut Block,
    pub yielder: *const LaneYielder,
    /// Stamp of the last synchronisation this lane took part in.
    pub epoch: u32,
    pub warp: u16,
    /// Index within the warp.
    pub index: u8,
    pub state: LaneState,
    /// Where the lane waits, valid in the two waiting states.
    pub wait: Wait,
    /// What the collective gave this lane.
    pub result: u64,
}

const _: () = assert!(size_of::<Lane>() == 1 << LANE_SHIFT);

impl Lane {
    /// This lane's bit in warp masks.
    #[inline]
    pub fn bit(&self) -> u32 {
        1 << self.index
    }
}

type Access = unsafe extern "C" fn(*mut Lane, *const c_void, usize);

/// Functions and constants handed to a kernel library when it is loaded.
#[repr(C)]
pub(super) struct Table {
    pub stack_base: usize,
    pub stack_bytes: usize,
    pub stack_shift: usize,
    pub lanes: usize,
    pub lane_shift: usize,
    pub read: [Access; 5],
    pub write: [Access; 5],
    pub range: unsafe extern "C" fn(*mut Lane, *const c_void, u64, u32, usize),
    pub barrier: unsafe extern "C" fn(*mut Lane, i32, usize),
    pub sync_warp: unsafe extern "C" fn(*mut Lane, u32, usize),
    pub shuffle: unsafe extern "C" fn(*mut Lane, u32, u64, i32, i32, i32, usize) -> u64,
    pub vote: unsafe extern "C" fn(*mut Lane, u32, i32, i32, usize) -> u32,
    pub active_mask: unsafe extern "C" fn(*mut Lane) -> u32,
    pub atomic32: unsafe extern "C" fn(*mut Lane, i32, i32, *mut c_void, u32, u32, usize) -> u32,
    pub atomic64: unsafe extern "C" fn(*mut Lane, i32, i32, *mut c_void, u64, u64, usize) -> u64,
    pub atomic_check: unsafe extern "C" fn(*mut Lane, *const c_void, u32, usize),
    pub beyond_array: unsafe extern "C" fn(*mut Lane, usize, *const c_char, usize),
    pub cp_async: unsafe extern "C" fn(*mut Lane, *mut c_void, *const c_void, i32, i32, usize),
    pub cp_commit: unsafe extern "C" fn(*mut Lane),
    pub cp_wait: unsafe extern "C" fn(*mut Lane, i32, usize),
    pub mma: unsafe extern "C" fn(*mut Lane, *mut f32, *const u32, *const u32, *const f32, i32, usize),
    pub ldmatrix: unsafe extern "C" fn(*mut Lane, *mut u32, *const c_void, i32, i32, usize),
    pub ex2: extern "C" fn(f32) -> f32,
}
