//! Loading a kernel's shared library and calling it.

use std::path::{Path, PathBuf};

use super::info::{ForeignInfo, InfoError};
use super::types::{ABI_VERSION, AttentionArgs, KernelInfo, OK, StoreArgs};

type InfoFn = unsafe extern "C" fn(*mut KernelInfo) -> i32;
type AttentionFn = unsafe extern "C" fn(*const AttentionArgs) -> i32;
type WorkspaceFn = unsafe extern "C" fn(*const AttentionArgs, *mut u64) -> i32;
type StoreFn = unsafe extern "C" fn(*const StoreArgs) -> i32;

/// A library that is no kernel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LibraryError {
    /// It cannot be loaded.
    #[error("{} cannot be loaded: {message}", path.display())]
    Load {
        /// The file.
        path: PathBuf,
        /// What the loader says.
        message: String,
    },
    /// A function is missing.
    #[error("{} does not export {symbol}; accepted: every function of attest_kernel.h (extern \"C\", default visibility)", path.display())]
    Symbol {
        /// The file.
        path: PathBuf,
        /// The function.
        symbol: &'static str,
    },
    /// Its description of itself cannot be used.
    #[error(transparent)]
    Info(#[from] InfoError),
}

/// A loaded kernel. It is never unloaded: threads that it left behind would run into nothing.
pub struct Library {
    info_fn: InfoFn,
    attention_fn: AttentionFn,
    workspace_fn: WorkspaceFn,
    store_fn: Option<StoreFn>,
    info: ForeignInfo,
}

impl Library {
    /// Loads a library and asks it what it is.
    ///
    /// # Errors
    /// What is missing or makes no sense.
    ///
    /// # Safety
    /// Foreign code runs: it may do anything. Load it only in a process that may die.
    pub unsafe fn load(path: &Path) -> Result<Self, LibraryError> {
        let load =
            |error: libloading::Error| LibraryError::Load { path: path.to_owned(), message: chain(&error) };
        // SAFETY: as the caller promises.
        let library = std::mem::ManuallyDrop::new(unsafe { libloading::Library::new(path) }.map_err(load)?);
        let missing = |symbol| LibraryError::Symbol { path: path.to_owned(), symbol };
        macro_rules! symbol {
            ($name:literal, $type:ty) => {
                // SAFETY: the header fixes the type, and the library is never unloaded.
                unsafe { library.get::<$type>($name) }.map(|symbol| *symbol).map_err(|_| missing($name))
            };
        }
        let info_fn = symbol!("attest_info", InfoFn)?;
        let mut this = Self {
            info_fn,
            attention_fn: symbol!("attest_paged_attention", AttentionFn)?,
            workspace_fn: symbol!("attest_workspace_size", WorkspaceFn)?,
            store_fn: symbol!("attest_store", StoreFn).ok(),
            // SAFETY: as the caller promises.
            info: unsafe { ask(info_fn) }?,
        };
        if this.store_fn.is_none() && !this.info.store.is_empty() {
            return Err(missing("attest_store"));
        }
        if this.info.store.is_empty() {
            this.store_fn = None;
        }
        Ok(this)
    }

    /// What the kernel said when it was loaded.
    #[must_use]
    pub fn info(&self) -> &ForeignInfo {
        &self.info
    }

    /// Asks again.
    ///
    /// # Errors
    /// If the answer makes no sense.
    pub fn ask_again(&self) -> Result<ForeignInfo, InfoError> {
        // SAFETY: the function was loaded under the promise of `load`.
        unsafe { ask(self.info_fn) }
    }

    /// Calls `attest_paged_attention`.
    ///
    /// # Safety
    /// As for `load`; the arguments follow the header or are refused by it.
    pub unsafe fn attention(&self, args: &AttentionArgs) -> i32 {
        // SAFETY: as the caller promises.
        unsafe { (self.attention_fn)(args) }
    }

    /// Calls `attest_workspace_size`: the bytes, or the code that it returned instead.
    ///
    /// # Errors
    /// The code.
    ///
    /// # Safety
    /// As for `attention`.
    pub unsafe fn workspace_size(&self, args: &AttentionArgs) -> Result<u64, i32> {
        let mut bytes = 0;
        // SAFETY: as the caller promises.
        match unsafe { (self.workspace_fn)(args, &raw mut bytes) } {
            OK => Ok(bytes),
            code => Err(code),
        }
    }

    /// Calls `attest_store`; `None` if the kernel has none.
    ///
    /// # Safety
    /// As for `attention`.
    pub unsafe fn store(&self, args: &StoreArgs) -> Option<i32> {
        // SAFETY: as the caller promises.
        self.store_fn.map(|store| unsafe { store(args) })
    }
}

/// Calls `attest_info` and reads the answer.
///
/// # Safety
/// `info_fn` has the header's type.
unsafe fn ask(info_fn: InfoFn) -> Result<ForeignInfo, InfoError> {
    let mut raw = KernelInfo {
        struct_size: size_of::<KernelInfo>() as u32,
        version: ABI_VERSION,
        name: std::ptr::null(),
        device: 0,
        layouts: 0,
        options: 0,
        promises: 0,
        attention_caches: [0; 8],
        store_caches: [0; 8],
        head_dim_step: 0,
        head_dim_max: 0,
        head_dims: [0; 16],
        page_sizes: [0; 16],
        cache_alignment: 1,
        max_group: 0,
    };
    // SAFETY: as the caller promises; the struct is writable.
    match unsafe { info_fn(&raw mut raw) } {
        // SAFETY: the header demands a static string.
        OK => unsafe { ForeignInfo::read(&raw) },
        code => Err(InfoError::Failed(code)),
    }
}

/// An error and its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}
