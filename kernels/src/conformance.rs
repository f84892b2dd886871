//! One suite for every device and every decorator: what the [`Device`] interface promises, each promise a check.
//!
//! A check takes a device whose sources contain the suite's kernel ([`sources`]), and leaves it as it found it. The
//! checks use only the interface, so what passes on one implementation means the same on another.

mod graphs;
mod memory;
mod refusals;
mod streams;

use std::fmt;

use crate::device::{
    Device, DeviceError, DevicePtr, DeviceRef, DeviceResult, KernelId, LaunchConfig, StreamId,
};
use crate::source::{KernelSpec, SourceSet};

const KERNEL_FILE: &str = "conformance.cu";
const KERNEL_ENTRY: &str = "conformance_probe";

/// Why a device does not conform.
#[derive(Debug, thiserror::Error)]
pub enum Violation {
    /// A call that should have succeeded failed.
    #[error("a call failed: {0}")]
    Device(#[from] DeviceError),
    /// A promise was not kept.
    #[error("{0}")]
    Broken(String),
}

/// Outcome of a check.
pub type Outcome = Result<(), Violation>;

/// One promise of the interface.
pub struct Check {
    /// What is promised, as a file-name-like identifier.
    pub name: &'static str,
    /// Runs the check.
    pub run: fn(&DeviceRef) -> Outcome,
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Check({})", self.name)
    }
}

/// Every check, in an order from simple to involved.
#[must_use]
pub fn checks() -> Vec<&'static Check> {
    [memory::CHECKS, streams::CHECKS, graphs::CHECKS, refusals::CHECKS].into_iter().flatten().collect()
}

/// `base` with the suite's kernel added.
#[must_use]
pub fn sources(base: SourceSet) -> SourceSet {
    base.with_file(KERNEL_FILE, include_str!("conformance/probe.cu"))
}

/// Fails the check with a formatted message unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {{
        let held: bool = $condition;
        if !held {
            return Err($crate::conformance::Violation::Broken(format!($($message)+)));
        }
    }};
}
/// Fails the check unless the expression is an error that matches the pattern.
macro_rules! ensure_refused {
    ($call:expr, $pattern:pat) => {
        match $call {
            Err($pattern) => {}
            other => {
                let text = format!(
                    "{} should fail with {}, not {:?}",
                    stringify!($call),
                    stringify!($pattern),
                    other
                );
                return Err($crate::conformance::Violation::Broken(text));
            }
        }
    };
}
use {ensure, ensure_refused};

fn spec() -> KernelSpec {
    KernelSpec { file: KERNEL_FILE, entry: KERNEL_ENTRY, defines: vec![] }
}

/// Parameters of the suite's kernel.
#[repr(C)]
struct ProbeParams {
    values: u64,
    count: i32,
    factor: i32,
    addend: i32,
    unused: i32,
}

/// Values on a device, and the suite's kernel to change them.
struct Probe<'a> {
    device: &'a dyn Device,
    kernel: KernelId,
    values: DevicePtr,
    count: usize,
}

impl<'a> Probe<'a> {
    /// `count` values, all `start`, allocated and set on `stream`.
    fn new(device: &'a dyn Device, stream: StreamId, count: usize, start: i32) -> DeviceResult<Self> {
        let kernel = device.load_kernel(&spec())?;
        let values = device.alloc(4 * count as u64, stream)?;
        device.copy_to_device(values, &bytes(&vec![start; count]), stream)?;
        Ok(Self { device, kernel, values, count })
    }

    fn config(&self) -> LaunchConfig {
        LaunchConfig { grid: [self.count.div_ceil(128) as u32, 1, 1], block: [128, 1, 1], shared_bytes: 0 }
    }

    fn params(&self, factor: i32, addend: i32) -> Vec<u8> {
        let p = ProbeParams { values: self.values.0, count: self.count as i32, factor, addend, unused: 0 };
        let mut bytes = p.values.to_ne_bytes().to_vec();
        for field in [p.count, p.factor, p.addend, p.unused] {
            bytes.extend(field.to_ne_bytes());
        }
        bytes
    }

    /// Puts `values = values * factor + addend` on a stream.
    fn launch(&self, factor: i32, addend: i32, stream: StreamId) -> DeviceResult<()> {
        self.device.launch(self.kernel, self.config(), &self.params(factor, addend), stream)
    }

    /// The values, once the stream's work is done.
    fn read(&self, stream: StreamId) -> DeviceResult<Vec<i32>> {
        read(self.device, self.values, self.count, stream)
    }

    /// All values are `want`.
    fn ensure_all(&self, want: i32, stream: StreamId, when: &str) -> Outcome {
        let got = self.read(stream)?;
        ensure!(
            got.iter().all(|&v| v == want),
            "{when}: values are {:?}…, want {want}",
            &got[..got.len().min(4)]
        );
        Ok(())
    }

    /// Frees the values.
    fn free(self, stream: StreamId) -> DeviceResult<()> {
        self.device.free(self.values, stream)?;
        self.device.synchronize(stream)
    }
}

fn read(device: &dyn Device, ptr: DevicePtr, count: usize, stream: StreamId) -> DeviceResult<Vec<i32>> {
    let mut raw = vec![0; 4 * count];
    device.copy_to_host(&mut raw, ptr, stream)?;
    Ok(raw.as_chunks::<4>().0.iter().map(|b| i32::from_ne_bytes(*b)).collect())
}

fn bytes(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

/// Launches of the suite's kernel so far.
fn launches(device: &dyn Device) -> u64 {
    device.launch_counts().iter().find(|(name, _)| name == KERNEL_ENTRY).map_or(0, |(_, count)| *count)
}
