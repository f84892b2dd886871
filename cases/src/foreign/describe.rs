//! Asking a library what it is: the questions in a child process, the answers in the parent.

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kernels::abi::types::{ABI_VERSION, OK};
use kernels::abi::{ForeignDevice, ForeignInfo, Library, LibraryError};
use kernels::device::{Finding, FindingKind};
use kernels::tensor::DType;
use serde::{Deserialize, Serialize};

use super::server::{Text, empty_attention, empty_store, keep_stdout};
use crate::executor::signal_name;
use crate::verdict::Verdict;

/// What a child found out about a library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Description {
    /// It cannot be loaded: a missing file, or a library that it needs.
    NotLoaded(String),
    /// It does not keep to the header.
    Faults(Vec<String>),
    /// It is a kernel.
    Kernel(Box<ForeignInfo>),
}

/// Loads a library in this process, asks it, and prints the description as one line of JSON.
///
/// # Errors
/// When standard output cannot be written.
pub fn describe_here(path: &Path) -> std::io::Result<()> {
    let mut out = keep_stdout()?;
    kernels::abi::watch_faults();
    let description = describe(path);
    let line = serde_json::to_string(&description)?;
    writeln!(out, "{line}")
}

fn describe(path: &Path) -> Description {
    step("the library is loaded and attest_info is called");
    // SAFETY: this process exists for this; the parent survives whatever happens here.
    let library = match unsafe { Library::load(path) } {
        Ok(library) => library,
        Err(error @ LibraryError::Load { .. }) => return Description::NotLoaded(error.to_string()),
        Err(error) => return Description::Faults(vec![error.to_string()]),
    };
    let mut faults = Vec::new();
    step("attest_info is called again");
    match library.ask_again() {
        Ok(again) if again == *library.info() => {}
        Ok(_) => faults.push("attest_info answers differently when it is asked again".to_owned()),
        Err(error) => faults.push(format!("asked again: {error}")),
    }
    faults.extend(version_faults(&library));
    match faults.is_empty() {
        true => Description::Kernel(Box::new(library.info().clone())),
        false => Description::Faults(faults),
    }
}

/// Says on standard error what is about to be done, for the parent to tell if it is the last thing that happens.
fn step(what: &str) {
    eprintln!("{STEP_MARK}{what}");
}

const STEP_MARK: &str = "attest-step:";

/// Structs of another version or size must be refused, before anything else in them is believed.
fn version_faults(library: &Library) -> Vec<String> {
    let mut faults = Vec::new();
    let mut expect = |function: &str, what: &str, code: Option<i32>| {
        if code == Some(OK) {
            faults.push(format!("{function} returned 0 for {what}; accepted: 1 (ATTEST_INVALID_ARGUMENT)"));
        }
    };
    let changes: [(&str, u32, u32); 2] =
        [("a struct of version 2", ABI_VERSION + 1, 0), ("a struct that is 8 bytes shorter", ABI_VERSION, 8)];
    for (what, version, shorter) in changes {
        let mut text = Text::default();
        let mut args = empty_attention(&mut text);
        (args.version, args.struct_size) = (version, args.struct_size - shorter);
        step(&format!("attest_paged_attention is called with {what}"));
        // SAFETY: the struct is a whole one, whatever it says of itself.
        expect("attest_paged_attention", what, Some(unsafe { library.attention(&args) }));
        step(&format!("attest_workspace_size is called with {what}"));
        // SAFETY: as above.
        expect(
            "attest_workspace_size",
            what,
            Some(unsafe { library.workspace_size(&args) }.err().unwrap_or(0)),
        );
        let mut store = empty_store(&mut text);
        (store.version, store.struct_size) = (version, store.struct_size - shorter);
        step(&format!("attest_store is called with {what}"));
        // SAFETY: as above.
        expect("attest_store", what, unsafe { library.store(&store) });
    }
    let mut text = Text::default();
    let mut args = empty_attention(&mut text);
    (args.error, args.error_bytes) = (std::ptr::null_mut(), 0);
    step("attest_paged_attention is called with no tensor and no place for a message");
    // SAFETY: as above.
    expect("attest_paged_attention", "a call with no tensor", Some(unsafe { library.attention(&args) }));
    faults
}

/// Why there is no description.
#[derive(Clone, Debug, PartialEq)]
pub enum Undescribed {
    /// The surroundings: no such file, a library that it needs is missing.
    Surroundings(String),
    /// A verdict on the library.
    Verdict(Box<Verdict>),
}

/// Lets `binary` ask a library, and waits at most `limit`.
///
/// # Errors
/// Why there is no description.
pub fn describe_in_child(binary: &Path, library: &Path, limit: Duration) -> Result<ForeignInfo, Undescribed> {
    let surroundings =
        |error: std::io::Error| Undescribed::Surroundings(format!("cannot start a worker: {error}"));
    let mut child = Command::new(binary)
        .arg("judge")
        .arg(library)
        .arg("--describe")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(surroundings)?;
    let collect = |stream: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut stream) = stream {
                let _ = stream.read_to_end(&mut bytes);
            }
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let stdout = collect(child.stdout.take().map(|stream| Box::new(stream) as Box<dyn Read + Send>));
    let stderr = collect(child.stderr.take().map(|stream| Box::new(stream) as Box<dyn Read + Send>));
    let end = Instant::now() + limit;
    let status = loop {
        match child.try_wait().map_err(surroundings)? {
            Some(status) => break Some(status),
            None if Instant::now() >= end => break None,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let Some(status) = status else {
        let _ = child.kill();
        let _ = child.wait();
        return Err(verdict(Verdict::TimedOut { limit_ms: limit.as_millis() as u64 }));
    };
    let (stdout, stderr) = (stdout.join().unwrap_or_default(), stderr.join().unwrap_or_default());
    if let Some(signal) = status.signal() {
        return Err(verdict(Verdict::Crashed { signal: signal_name(signal), detail: last_step(&stderr) }));
    }
    understood(&stdout).unwrap_or_else(|| {
        let message = format!("the process ended ({status}) without an answer; {}", last_step(&stderr));
        Err(verdict(interface(vec![message])))
    })
}

fn understood(stdout: &str) -> Option<Result<ForeignInfo, Undescribed>> {
    Some(match serde_json::from_str(stdout.lines().last()?).ok()? {
        Description::Kernel(info) => Ok(*info),
        Description::NotLoaded(message) => Err(Undescribed::Surroundings(message)),
        Description::Faults(faults) => Err(verdict(interface(faults))),
    })
}

fn verdict(verdict: Verdict) -> Undescribed {
    Undescribed::Verdict(Box::new(verdict))
}

fn interface(messages: Vec<String>) -> Verdict {
    let finding =
        |message| Finding { kind: FindingKind::Interface, message, site: None, other_site: None, count: 1 };
    Verdict::DeviceError { findings: messages.into_iter().map(finding).collect(), error: None }
}

fn last_step(stderr: &str) -> String {
    let step = stderr.lines().rev().find_map(|line| line.strip_prefix(STEP_MARK));
    format!("while {}", step.unwrap_or("the process started"))
}

/// What a kernel is, in a few words: a line, and one each for attention and store.
#[must_use]
pub fn in_words(info: &ForeignInfo) -> String {
    let device = match info.device {
        ForeignDevice::Host => "host memory",
        ForeignDevice::Cuda => "device memory",
    };
    let list = |numbers: &[u64]| numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let dims = match info.head_dims.as_slice() {
        [] => format!("multiples of {} up to {}", info.head_dim_step, info.head_dim_max),
        dims => list(dims),
    };
    let pages = if info.page_sizes.is_empty() { "any".to_owned() } else { list(&info.page_sizes) };
    let mut text = format!("kernel `{}`, {device}; head dims: {dims}; page sizes: {pages}", info.name);
    for (name, pairs) in [("attention", &info.attention), ("store", &info.store)] {
        for (caches, rows) in by_caches(pairs) {
            text.push_str(&format!("\n  {name}: {} over {}", names(&rows), names(&caches)));
        }
    }
    text
}

/// Formats with the same caches together.
fn by_caches(pairs: &[(DType, Vec<DType>)]) -> Vec<(Vec<DType>, Vec<DType>)> {
    let mut groups: Vec<(Vec<DType>, Vec<DType>)> = Vec::new();
    for (row, caches) in pairs {
        match groups.iter_mut().find(|(known, _)| known == caches) {
            Some((_, rows)) => rows.push(*row),
            None => groups.push((caches.clone(), vec![*row])),
        }
    }
    groups
}

fn names(dtypes: &[DType]) -> String {
    dtypes.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(", ")
}
