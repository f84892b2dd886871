//! A compiled kernel loaded into the process, and the way back from its code addresses to source lines.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::path::{Path, PathBuf};

use addr2line::Loader;
use libloading::Library;

use super::abi::Table;
use super::hooks;
use crate::device::{DeviceError, DeviceResult};
use crate::source::KernelSpec;

/// Entry point of a kernel: called once per lane with the parameter block.
pub(super) type Entry = unsafe extern "C" fn(*const c_void);

/// A loaded kernel.
pub(super) struct Module {
    pub entry: Entry,
    pub label: String,
    pub entry_name: &'static str,
    pub params_bytes: usize,
    /// Launch bound of the kernel, if its library states one.
    pub max_threads: Option<u32>,
    /// Addresses the library occupies: code, constants, its own variables.
    image: (usize, usize),
    path: PathBuf,
    lines: RefCell<Lines>,
    _library: Library,
}

#[derive(Default)]
struct Lines {
    loader: Option<Loader>,
    opened: bool,
    places: HashMap<usize, Option<Place>>,
}

// SAFETY: `Loader` holds only data read from a file; a module is used under the device's lock.
unsafe impl Send for Module {}

impl Module {
    /// Loads a library, attaches it to the runtime, and finds the kernel's entry.
    pub fn load(path: &Path, spec: &KernelSpec) -> DeviceResult<Self> {
        let environment = |what: String| DeviceError::Environment(what);
        // SAFETY: the library is one of our own builds; its only initialisers are empty.
        let library = unsafe { Library::new(path) }
            .map_err(|e| environment(format!("cannot load compiled kernel {}: {e}", path.display())))?;
        let table = hooks::table().map_err(|e| environment(format!("cannot reserve fiber stacks: {e}")))?;
        let missing = |symbol: &str| DeviceError::InvalidArgument {
            call: "load_kernel",
            argument: "entry",
            value: spec.label(),
            accepted: format!("a kernel whose library exports {symbol}"),
        };
        // SAFETY: the signatures are the ones that the shim and the kernel macro give these symbols.
        unsafe {
            let attach = library
                .get::<unsafe extern "C" fn(*const Table, u64) -> u64>(b"attest_simt_attach")
                .map_err(|_| missing("attest_simt_attach"))?;
            let expected = attach(&raw const *table, size_of::<Table>() as u64);
            if expected != size_of::<Table>() as u64 {
                return Err(environment(format!(
                    "{} was built for another version of the runtime; delete the cache",
                    path.display()
                )));
            }
            let entry = *library.get::<Entry>(spec.entry.as_bytes()).map_err(|_| missing(spec.entry))?;
            let bytes_symbol = format!("{}_params_bytes", spec.entry);
            let params_bytes =
                **library.get::<*const u32>(bytes_symbol.as_bytes()).map_err(|_| missing(&bytes_symbol))?;
            let threads_symbol = format!("{}_max_threads", spec.entry);
            let max_threads = library.get::<*const u32>(threads_symbol.as_bytes()).ok().map(|s| **s);
            let image = image_of(entry as usize).ok_or_else(|| {
                environment(format!("{} is not among the loaded libraries", path.display()))
            })?;
            Ok(Self {
                entry,
                label: spec.label(),
                entry_name: spec.entry,
                params_bytes: params_bytes as usize,
                max_threads,
                image,
                path: path.to_owned(),
                lines: RefCell::default(),
                _library: library,
            })
        }
    }

    /// Whether an address belongs to the library itself.
    pub fn contains(&self, address: usize) -> bool {
        address >= self.image.0 && address < self.image.1
    }

    /// Offset of a return address in the library, as findings keep it.
    pub fn offset(&self, pc: usize) -> u32 {
        pc.wrapping_sub(self.image.0) as u32
    }

    /// Where in the kernel's source the call before a return address stands.
    pub fn place(&self, pc_offset: u32) -> Option<Place> {
        let mut lines = self.lines.borrow_mut();
        if !lines.opened {
            lines.opened = true;
            lines.loader = Loader::new(&self.path).ok();
        }
        let probe = (pc_offset as usize).checked_sub(1)?;
        if let Some(known) = lines.places.get(&probe) {
            return known.clone();
        }
        let found = lines.loader.as_ref().and_then(|loader| place_of(loader, probe as u64));
        lines.places.insert(probe, found.clone());
        found
    }

    /// `file:line` of [`Self::place`].
    pub fn site(&self, pc_offset: u32) -> Option<String> {
        self.place(pc_offset).map(|place| place.site)
    }
}

/// A place in kernel sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// `file:line` in the kernel's own file: where a helper was called from, if the place is in one.
    pub site: String,
    /// `file:line` in the helper.
    pub helper: Option<String>,
}

/// The innermost frame in a `.cu` file, and the innermost one in a header if that lies deeper. The prelude and the
/// wrappers of single instructions are not places of a kernel.
fn place_of(loader: &Loader, probe: u64) -> Option<Place> {
    let mut frames = loader.find_frames(probe).ok()?;
    let (mut wrapper, mut helper) = (None, None);
    while let Ok(Some(frame)) = frames.next() {
        let Some(location) = frame.location else { continue };
        let (Some(file), Some(line)) = (location.file, location.line) else { continue };
        let name = file.rsplit('/').next().unwrap_or(file);
        let text = format!("{name}:{line}");
        if name.ends_with(".cu") {
            return Some(Place { site: text, helper });
        }
        let slot = if matches!(name, "prelude.h" | "arch.cuh") { &mut wrapper } else { &mut helper };
        slot.get_or_insert(text);
    }
    Some(Place { site: helper.or(wrapper)?, helper: None })
}

/// First address and end of the loaded object that contains `address`.
fn image_of(address: usize) -> Option<(usize, usize)> {
    struct Search {
        address: usize,
        found: Option<(usize, usize)>,
    }
    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> i32 {
        // SAFETY: the loader passes a valid record, and `data` is the `Search` below.
        let (info, search) = unsafe { (&*info, &mut *data.cast::<Search>()) };
        // SAFETY: the record describes `dlpi_phnum` headers.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        let base = info.dlpi_addr as usize;
        let end = headers
            .iter()
            .filter(|h| h.p_type == libc::PT_LOAD)
            .map(|h| base + h.p_vaddr as usize + h.p_memsz as usize)
            .max()
            .unwrap_or(base);
        if search.address >= base && search.address < end {
            search.found = Some((base, end));
            return 1;
        }
        0
    }
    let mut search = Search { address, found: None };
    // SAFETY: `visit` only reads what the loader passes and writes `search`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}
