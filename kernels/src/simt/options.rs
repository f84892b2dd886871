//! What can be chosen about a `simt` device.

use std::ffi::OsString;
use std::path::PathBuf;

use super::{Fill, Schedule};
use crate::source::SourceSet;

/// How kernels are compiled and watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Every access is judged: for small cases.
    #[default]
    Checked,
    /// Uninstrumented. Barriers, collectives and allocation ends are still watched; an access to an unmapped page
    /// stops the process with SIGSEGV.
    Fast,
}

/// Options of a `simt` device.
#[derive(Clone, Debug)]
pub struct SimtOptions {
    /// Checked or fast.
    pub mode: Mode,
    /// Order of blocks and lanes.
    pub schedule: Schedule,
    /// Contents of fresh memory.
    pub fill: Fill,
    /// Kernel sources.
    pub sources: SourceSet,
    /// Where compiled kernels are kept; `None` for `ATTEST_CACHE_DIR`, else the user's cache directory.
    pub cache_dir: Option<PathBuf>,
    /// The C++ compiler; `None` for `CXX`, else `g++`.
    pub compiler: Option<OsString>,
    /// Bytes the pool may hand out at once; `None` for no limit but the address range.
    pub memory_limit: Option<u64>,
    /// Streaming multiprocessors the device claims.
    pub multiprocessors: u32,
    /// Largest dynamic shared memory of a block, in bytes; at most 256 KiB.
    pub max_shared_bytes: u32,
    /// Compute capability the device claims.
    pub capability: (u32, u32),
}

impl SimtOptions {
    /// Checked mode, forward order, NaN-filled memory, and the figures of an H200.
    #[must_use]
    pub fn new(sources: SourceSet) -> Self {
        Self {
            mode: Mode::Checked,
            schedule: Schedule::Forward,
            fill: Fill::Nan,
            sources,
            cache_dir: None,
            compiler: None,
            memory_limit: None,
            multiprocessors: 132,
            max_shared_bytes: 232_448,
            capability: (9, 0),
        }
    }
}
