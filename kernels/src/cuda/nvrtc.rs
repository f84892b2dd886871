//! NVRTC: kernel text to cubin for one architecture, with a disk cache.
//!
//! Cubins, never PTX: a driver that recompiles PTX is another compiler, and what was judged would not be what runs.

use std::ffi::{CString, c_char, c_int};
use std::path::{Path, PathBuf};

use cudarc::nvrtc::{result as nvrtc, sys};
use sha2::{Digest, Sha256};

use crate::device::{DeviceError, DeviceResult};
use crate::source::{KernelSpec, SourceSet};

/// Options of every compilation besides the architecture. Contraction stays off and division and square root stay
/// IEEE, so that a CPU can repeat the arithmetic bit for bit; `-lineinfo` changes no code and lets tools name lines.
const OPTIONS: &[&str] =
    &["--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true", "-lineinfo"];

/// One kernel compiled for one architecture.
#[derive(Clone, Debug)]
pub struct CompiledKernel {
    /// The cubin image.
    pub cubin: Vec<u8>,
    /// The compiler's log, `ptxas` resource lines included. Empty when it came from the cache without one.
    pub log: String,
    /// Whether it came from the disk cache.
    pub cached: bool,
}

/// What `ptxas` reports for a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ResourceUse {
    /// Registers of one thread.
    pub registers: u32,
    /// Stack frame of one thread in bytes; arrays that did not fit registers live there.
    pub stack_bytes: u32,
    /// Bytes stored to local memory because registers ran out.
    pub spill_store_bytes: u32,
    /// Bytes loaded back.
    pub spill_load_bytes: u32,
}

impl ResourceUse {
    /// Reads the figures out of a `--ptxas-options=-v` log; `None` if it has none.
    #[must_use]
    pub fn from_log(log: &str) -> Option<Self> {
        let number_before = |unit: &str| -> Option<u32> {
            let head = &log[..log.find(unit)?];
            head.rsplit(|c: char| !c.is_ascii_digit()).find(|t| !t.is_empty())?.parse().ok()
        };
        let registers = log.split("Used ").nth(1)?.split(' ').next()?.parse().ok()?;
        Some(Self {
            registers,
            stack_bytes: number_before(" bytes stack frame").unwrap_or(0),
            spill_store_bytes: number_before(" bytes spill stores").unwrap_or(0),
            spill_load_bytes: number_before(" bytes spill loads").unwrap_or(0),
        })
    }
}

/// Makes the NVRTC library available, or says why it is not.
fn require_nvrtc() -> DeviceResult<()> {
    preload_named_library();
    // SAFETY: only opens the library.
    if unsafe { sys::is_culib_present() } {
        Ok(())
    } else {
        Err(DeviceError::Environment(
            "NVRTC (libnvrtc.so.13) was not found: install the CUDA toolkit or the Python package nvidia-cuda-nvrtc, \
             and put its lib folder on LD_LIBRARY_PATH or its file in ATTEST_NVRTC"
                .into(),
        ))
    }
}

/// With `ATTEST_NVRTC=FILE`, loads that file and its built-ins library first and for good: NVRTC looks both up by name,
/// and a library that is loaded already is found.
fn preload_named_library() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let Some(file) = std::env::var_os("ATTEST_NVRTC").map(PathBuf::from) else { return };
        let siblings =
            file.parent().and_then(|dir| std::fs::read_dir(dir).ok()).into_iter().flatten().flatten();
        let is_builtins = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("libnvrtc-builtins.so") && !name.contains("alt")
        };
        for library in siblings.map(|entry| entry.path()).filter(is_builtins).chain([file.clone()]) {
            let flags = libc::RTLD_NOW | libc::RTLD_GLOBAL;
            // SAFETY: loading NVRTC runs no code of ours; the handle is kept for the life of the process.
            if let Ok(library) = unsafe { libloading::os::unix::Library::open(Some(&library), flags) } {
                std::mem::forget(library);
            }
        }
    });
}

/// NVRTC's version as `major.minor`.
///
/// # Errors
/// [`DeviceError::Environment`] when NVRTC cannot be loaded.
pub fn compiler_version() -> DeviceResult<String> {
    require_nvrtc()?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both pointers are valid for writes.
    unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) }
        .result()
        .map_err(|e| DeviceError::Environment(format!("nvrtcVersion failed: {e}")))?;
    Ok(format!("{major}.{minor}"))
}

/// Compiles one kernel instance to a cubin for `arch`, for example `sm_90`.
///
/// With `cache_dir`, cubins and logs are kept there under a hash of compiler version, options and every source
/// file that the instance includes.
///
/// # Errors
/// [`DeviceError::Compile`] with the log; [`DeviceError::Environment`] when NVRTC or the cache cannot be used.
pub fn compile_to_cubin(
    sources: &SourceSet,
    spec: &KernelSpec,
    arch: &str,
    cache_dir: Option<&Path>,
) -> DeviceResult<CompiledKernel> {
    let version = compiler_version()?;
    let options = options_for(spec, arch);
    if sources.get(spec.file).is_none() {
        return Err(DeviceError::InvalidArgument {
            call: "load_kernel",
            argument: "file",
            value: spec.file.to_owned(),
            accepted: format!(
                "one of {}",
                sources.iter().map(|(name, _)| name).collect::<Vec<_>>().join(", ")
            ),
        });
    }
    let files = sources.closure(spec.file).map_err(|missing| DeviceError::Compile {
        kernel: spec.label(),
        compiler: format!("NVRTC {version}"),
        log: format!("{missing} is included and not among the kernel sources"),
    })?;
    let Some(dir) = cache_dir else { return compile(&files, spec, &options, &version) };
    let key = cache_key(&files, spec, &options, &version);
    let (image, log) = (dir.join(format!("{key}.cubin")), dir.join(format!("{key}.log")));
    if let (Ok(cubin), Ok(log)) = (std::fs::read(&image), std::fs::read_to_string(&log)) {
        return Ok(CompiledKernel { cubin, log, cached: true });
    }
    let compiled = compile(&files, spec, &options, &version)?;
    store(dir, &log, compiled.log.as_bytes())?;
    store(dir, &image, &compiled.cubin)?;
    Ok(compiled)
}

fn options_for(spec: &KernelSpec, arch: &str) -> Vec<String> {
    let mut options = vec![format!("--gpu-architecture={arch}"), "--ptxas-options=-v".to_owned()];
    options.extend(OPTIONS.iter().map(|o| (*o).to_owned()));
    options.extend(spec.defines.iter().map(|(name, value)| format!("-D{name}={value}")));
    options
}

fn cache_key(files: &[(&str, &str)], spec: &KernelSpec, options: &[String], version: &str) -> String {
    let mut hash = Sha256::new();
    let mut add = |text: &str| {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    };
    add(version);
    add(&spec.label());
    options.iter().for_each(|o| add(o));
    for (name, text) in files {
        add(name);
        add(text);
    }
    hash.finalize().iter().take(16).map(|b| format!("{b:02x}")).collect()
}

/// Writes through a temporary file, so that a reader never sees half an image.
fn store(dir: &Path, path: &PathBuf, bytes: &[u8]) -> DeviceResult<()> {
    let failed = |e: std::io::Error| {
        DeviceError::Environment(format!(
            "the kernel cache {} cannot be written ({e}); set ATTEST_CACHE_DIR to a writable folder",
            dir.display()
        ))
    };
    std::fs::create_dir_all(dir).map_err(failed)?;
    let file = tempfile::NamedTempFile::new_in(dir).map_err(failed)?;
    std::fs::write(file.path(), bytes).map_err(failed)?;
    file.persist(path).map_err(|e| failed(e.error))?;
    Ok(())
}

/// An NVRTC program that is destroyed when it goes out of scope.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program was created by nvrtcCreateProgram and is destroyed once.
        let _ = unsafe { nvrtc::destroy_program(self.0) };
    }
}

fn compile(
    files: &[(&str, &str)],
    spec: &KernelSpec,
    options: &[String],
    version: &str,
) -> DeviceResult<CompiledKernel> {
    let error = |log: String| DeviceError::Compile {
        kernel: spec.label(),
        compiler: format!("NVRTC {version}"),
        log,
    };
    let cstring = |text: &str| CString::new(text).map_err(|_| error("the source holds a NUL byte".into()));
    let main = cstring(files.iter().find(|(name, _)| *name == spec.file).map_or("", |(_, text)| text))?;
    let name = cstring(spec.file)?;
    let headers = files.iter().filter(|(name, _)| *name != spec.file);
    let (names, texts): (Vec<_>, Vec<_>) = headers.map(|(n, t)| (cstring(n), cstring(t))).unzip();
    let names = names.into_iter().collect::<DeviceResult<Vec<_>>>()?;
    let texts = texts.into_iter().collect::<DeviceResult<Vec<_>>>()?;
    let name_ptrs: Vec<*const c_char> = names.iter().map(|n| n.as_ptr()).collect();
    let text_ptrs: Vec<*const c_char> = texts.iter().map(|t| t.as_ptr()).collect();
    let mut raw = std::ptr::null_mut();
    // SAFETY: every string outlives the program, and the counts match the arrays.
    unsafe {
        sys::nvrtcCreateProgram(
            &raw mut raw,
            main.as_ptr(),
            name.as_ptr(),
            names.len() as c_int,
            text_ptrs.as_ptr(),
            name_ptrs.as_ptr(),
        )
    }
    .result()
    .map_err(|e| error(format!("nvrtcCreateProgram: {e}")))?;
    let program = Program(raw);
    // SAFETY: the program is alive.
    let outcome = unsafe { nvrtc::compile_program(program.0, options) };
    let log = program_log(&program);
    outcome.map_err(|e| error(format!("{e}\n{log}")))?;
    Ok(CompiledKernel { cubin: image(&program).map_err(error)?, log, cached: false })
}

fn program_log(program: &Program) -> String {
    // SAFETY: the program is alive and has been compiled.
    let bytes = unsafe { nvrtc::get_program_log(program.0) }.unwrap_or_default();
    let bytes: Vec<u8> = bytes.into_iter().map(|c| c as u8).take_while(|b| *b != 0).collect();
    String::from_utf8_lossy(&bytes).trim_end().to_owned()
}

fn image(program: &Program) -> Result<Vec<u8>, String> {
    let mut size = 0;
    // SAFETY: the program is compiled; the buffer has the size NVRTC asks for.
    unsafe {
        sys::nvrtcGetCUBINSize(program.0, &raw mut size)
            .result()
            .map_err(|e| format!("nvrtcGetCUBINSize: {e}"))?;
        let mut cubin = vec![0u8; size];
        sys::nvrtcGetCUBIN(program.0, cubin.as_mut_ptr().cast())
            .result()
            .map_err(|e| format!("nvrtcGetCUBIN: {e}"))?;
        Ok(cubin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_figures_are_read_from_the_log() {
        let log = "ptxas info    : Compiling entry function 'k' for 'sm_90'\n\
                   ptxas info    : Function properties for k\n    32 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n\
                   ptxas info    : Used 168 registers, used 1 barriers, 32 bytes cumulative stack size";
        assert_eq!(
            ResourceUse::from_log(log),
            Some(ResourceUse { registers: 168, stack_bytes: 32, spill_store_bytes: 8, spill_load_bytes: 12 })
        );
        assert_eq!(ResourceUse::from_log("no figures"), None);
    }
}
