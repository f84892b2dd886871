//! Compiles one kernel instance with the host's C++ compiler, once: results live in a cache directory.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use sha2::{Digest, Sha256};

use super::Mode;
use crate::device::{DeviceError, DeviceResult};
use crate::source::{KernelSpec, SourceSet};

const PRELUDE: &str = include_str!("prelude.h");
const SHIM: &str = include_str!("shim.cpp");

/// Flags of both modes: what a kernel computes must not depend on the mode.
const COMMON_FLAGS: &[&str] = &[
    "-std=c++17",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-strict-aliasing",
    "-fno-semantic-interposition",
    // A call at the end of a function must return into it: return addresses name source lines.
    "-fno-optimize-sibling-calls",
    "-DATTEST_SIMT=1",
];
const FAST_FLAGS: &[&str] = &["-O2"];
/// Nothing may be merged, vectorised or turned into a library call behind the access hooks' back, and no two lines may
/// share their code: -O1 does neither, and compiles faster.
const CHECKED_FLAGS: &[&str] = &[
    "-O1",
    "-g",
    "-fsanitize=thread",
    // A thread's own arrays, which the access hooks leave alone.
    "-fsanitize=bounds",
    "-fno-tree-vectorize",
    "-fno-builtin-memcpy",
    "-fno-builtin-memmove",
    "-fno-builtin-memset",
    "-DATTEST_CHECKED=1",
];
/// Used when the compiler accepts them.
const OPTIONAL_FLAGS: &[&str] = &["-march=native"];
const OPTIONAL_CHECKED_FLAGS: &[&str] = &[
    "-fno-tree-loop-distribute-patterns",
    "-fno-store-merging",
    "--param=tsan-instrument-func-entry-exit=0",
];

/// The C++ compiler of this process.
pub(super) struct Compiler {
    program: OsString,
    pub version: String,
    /// Identifies compiler and processor in cache keys.
    identity: String,
    common: Vec<&'static str>,
    checked: Vec<&'static str>,
}

impl Compiler {
    /// The compiler `program`, else the one that `CXX` names, else `g++`; tried once per process and name.
    pub fn find(program: Option<&OsStr>) -> DeviceResult<Arc<Self>> {
        type Found = HashMap<Option<OsString>, Result<Arc<Compiler>, String>>;
        static FOUND: LazyLock<Mutex<Found>> = LazyLock::new(Mutex::default);
        let cxx = program.map(OsStr::to_owned).or_else(|| std::env::var_os("CXX")).filter(|c| !c.is_empty());
        let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = found.entry(cxx).or_insert_with_key(|cxx| Self::probe(cxx.clone()).map(Arc::new));
        entry.clone().map_err(DeviceError::Environment)
    }

    fn probe(cxx: Option<OsString>) -> Result<Self, String> {
        let origin = if cxx.is_some() { "CXX names" } else { "CXX is not set; the default is" };
        let program = cxx.unwrap_or_else(|| "g++".into());
        let shown = format!("{origin} {:?}", program.to_string_lossy());
        let output = command(&program).arg("--version").output();
        let output = output.map_err(|e| format!("no C++ compiler: {shown}, which does not start: {e}"))?;
        let version = String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or("").trim().to_owned();
        if !output.status.success() || version.is_empty() {
            return Err(format!("broken C++ compiler: {shown}, and --version fails:\n{}", log_of(&output)));
        }
        let accepts = |flags: &[&'static str]| -> Vec<&'static str> {
            flags.iter().copied().filter(|flag| try_flag(&program, flag)).collect()
        };
        let (common, checked) = (accepts(OPTIONAL_FLAGS), accepts(OPTIONAL_CHECKED_FLAGS));
        let identity = format!("{}\n{version}\n{}", program.to_string_lossy(), processor());
        Ok(Self { program, version, identity, common, checked })
    }

    fn flags(&self, mode: Mode) -> Vec<&'static str> {
        let mut flags = COMMON_FLAGS.to_vec();
        flags.extend(&self.common);
        match mode {
            Mode::Fast => flags.extend(FAST_FLAGS),
            Mode::Checked => {
                flags.extend(CHECKED_FLAGS);
                flags.extend(&self.checked);
            }
        }
        flags
    }
}

fn command(program: &OsString) -> Command {
    // `CXX` may carry arguments, such as "ccache g++".
    let text = program.to_string_lossy();
    let mut words = text.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or("g++"));
    command.args(words).stdin(Stdio::null()).env("LC_ALL", "C");
    command
}

/// Whether an empty file compiles with a flag.
fn try_flag(program: &OsString, flag: &str) -> bool {
    let tried = command(program)
        .args(["-fsanitize=thread", "-Werror", flag, "-x", "c++", "-fsyntax-only", "/dev/null"])
        .output();
    tried.is_ok_and(|o| o.status.success())
}

/// What -march=native depends on.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let lines = text.lines().take_while(|l| !l.is_empty());
    lines
        .filter(|l| l.starts_with("model name") || l.starts_with("flags") || l.starts_with("Features"))
        .collect()
}

fn log_of(output: &Output) -> String {
    let mut log = String::from_utf8_lossy(&output.stderr).into_owned();
    log.push_str(&String::from_utf8_lossy(&output.stdout));
    if log.trim().is_empty() {
        log = format!("(no output; {})", output.status);
    }
    log
}

/// Where compiled kernels are kept: `dir` if given, else `ATTEST_CACHE_DIR`, else the user's cache directory.
pub(super) fn cache_dir(dir: Option<&Path>) -> PathBuf {
    let base = dir.map(Path::to_owned).or_else(|| std::env::var_os("ATTEST_CACHE_DIR").map(PathBuf::from));
    let base = base.unwrap_or_else(|| dirs::cache_dir().unwrap_or_else(std::env::temp_dir).join("attest"));
    base.join("simt")
}

/// The compiled library of a kernel instance, from the cache if it is there.
pub(super) fn library(
    compiler: &Compiler,
    spec: &KernelSpec,
    sources: &SourceSet,
    mode: Mode,
    cache: &Path,
) -> DeviceResult<PathBuf> {
    let source = sources.get(spec.file).ok_or_else(|| DeviceError::InvalidArgument {
        call: "load_kernel",
        argument: "file",
        value: spec.file.to_owned(),
        accepted: format!("one of {}", sources.iter().map(|(name, _)| name).collect::<Vec<_>>().join(", ")),
    })?;
    let headers: Vec<(&str, &str)> =
        sources.iter().filter(|(name, _)| name.ends_with(".cuh") || name.ends_with(".h")).collect();
    let flags = compiler.flags(mode);
    let key = key(compiler, spec, source, &headers, &flags);
    let target = cache.join(format!("{key}.so"));
    if target.is_file() {
        return Ok(target);
    }
    let build = tempdir_in(cache)?;
    let write = |name: &str, text: &str| {
        std::fs::write(build.path().join(name), text).map_err(|e| unwritable(&build.path().join(name), &e))
    };
    for (name, text) in &headers {
        write(name, text)?;
    }
    write(spec.file, source)?;
    write("prelude.h", PRELUDE)?;
    let shim = shim_object(compiler, mode, cache)?;
    let failed =
        |log: String| DeviceError::Compile { kernel: spec.label(), compiler: compiler.version.clone(), log };
    let mut compile = command(&compiler.program);
    compile
        .current_dir(build.path())
        .args(&flags)
        .arg("-fdebug-prefix-map=".to_owned() + &build.path().to_string_lossy() + "=.");
    for (name, value) in &spec.defines {
        compile.arg(format!("-D{name}={value}"));
    }
    compile.args(["-include", "prelude.h", "-x", "c++", "-c", spec.file, "-o", "kernel.o"]);
    run(compile, compiler, &failed)?;
    let mut link = command(&compiler.program);
    link.current_dir(build.path())
        .args([
            "-shared",
            "-Wl,-z,defs",
            "-Wl,-Bsymbolic",
            "-Wl,--build-id=none",
            "-o",
            "kernel.so",
            "kernel.o",
        ])
        .arg(&shim)
        .args(["-nodefaultlibs", "-lm", "-lc", "-lgcc"]);
    run(link, compiler, &failed)?;
    std::fs::rename(build.path().join("kernel.so"), &target).map_err(|e| unwritable(&target, &e))?;
    Ok(target)
}

fn run(
    mut command: Command,
    compiler: &Compiler,
    failed: &dyn Fn(String) -> DeviceError,
) -> DeviceResult<()> {
    let output = command.output().map_err(|e| {
        DeviceError::Environment(format!(
            "the C++ compiler {} does not start: {e}",
            compiler.program.to_string_lossy()
        ))
    })?;
    if output.status.success() { Ok(()) } else { Err(failed(log_of(&output))) }
}

/// The shim, compiled once per compiler and mode. A failure here is the compiler's, not a kernel's.
fn shim_object(compiler: &Compiler, mode: Mode, cache: &Path) -> DeviceResult<PathBuf> {
    let mut flags: Vec<&str> = compiler.flags(mode);
    flags.retain(|f| !f.starts_with("-fsanitize") && !f.contains("tsan") && *f != "-g");
    flags.extend(["-fno-builtin", "-fno-tree-vectorize", "-fno-tree-loop-distribute-patterns"]);
    let mut hash = Sha256::new();
    hash.update(compiler.identity.as_bytes());
    hash.update(flags.join(" ").as_bytes());
    hash.update(SHIM.as_bytes());
    let target = cache.join(format!("shim-{}.o", hex(&hash.finalize())));
    if target.is_file() {
        return Ok(target);
    }
    let build = tempdir_in(cache)?;
    let source = build.path().join("shim.cpp");
    std::fs::write(&source, SHIM).map_err(|e| unwritable(&source, &e))?;
    let mut compile = command(&compiler.program);
    compile.current_dir(build.path()).args(&flags).args(["-c", "shim.cpp", "-o", "shim.o"]);
    run(compile, compiler, &|log| {
        DeviceError::Environment(format!(
            "broken C++ compiler {} ({}):\n{log}",
            compiler.program.to_string_lossy(),
            compiler.version
        ))
    })?;
    std::fs::rename(build.path().join("shim.o"), &target).map_err(|e| unwritable(&target, &e))?;
    Ok(target)
}

fn tempdir_in(cache: &Path) -> DeviceResult<tempfile::TempDir> {
    std::fs::create_dir_all(cache).map_err(|e| unwritable(cache, &e))?;
    tempfile::Builder::new().prefix("build-").tempdir_in(cache).map_err(|e| unwritable(cache, &e))
}

fn unwritable(path: &Path, error: &io::Error) -> DeviceError {
    DeviceError::Environment(format!(
        "the kernel cache is not writable: {}: {error} (set ATTEST_CACHE_DIR)",
        path.display()
    ))
}

fn key(
    compiler: &Compiler,
    spec: &KernelSpec,
    source: &str,
    headers: &[(&str, &str)],
    flags: &[&str],
) -> String {
    let mut hash = Sha256::new();
    let mut part = |text: &str| {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    };
    part(&compiler.identity);
    part(&flags.join(" "));
    // Not the entry: one library holds every entry of its file.
    part(spec.file);
    for (name, value) in &spec.defines {
        part(name);
        part(value);
    }
    part(source);
    part(PRELUDE);
    part(SHIM);
    for (name, text) in headers {
        part(name);
        part(text);
    }
    hex(&hash.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
