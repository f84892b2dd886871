//! What the tests of the `simt` device share: devices with the fixture kernels, and launches of one line.
#![allow(dead_code)]

use std::path::Path;
use std::sync::Arc;

use kernels::device::{
    Device, DeviceError, DevicePtr, DeviceResult, Finding, FindingKind, LaunchConfig, StreamId,
};
use kernels::simt::{Mode, SimtDevice, SimtOptions};
use kernels::source::{KernelSpec, SourceSet};

/// The stream every test uses unless it is about streams.
pub const STREAM: StreamId = StreamId::DEFAULT;

/// The kernel headers and every fixture.
pub fn sources() -> SourceSet {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = SourceSet::from_dir(&root.join("cuda")).expect("kernel sources");
    let fixtures = SourceSet::from_dir(&root.join("tests/fixtures")).expect("fixtures");
    for (name, text) in fixtures.iter() {
        sources = sources.with_file(name, text);
    }
    sources
}

pub fn options(mode: Mode) -> SimtOptions {
    SimtOptions { mode, ..SimtOptions::new(sources()) }
}

pub fn device(mode: Mode) -> Arc<SimtDevice> {
    SimtDevice::new(options(mode)).expect("a simt device")
}

pub fn spec(file: &'static str, entry: &'static str) -> KernelSpec {
    KernelSpec { file, entry, defines: vec![] }
}

/// A one-dimensional launch.
pub fn config(grid: u32, block: u32, shared_bytes: u32) -> LaunchConfig {
    LaunchConfig { grid: [grid, 1, 1], block: [block, 1, 1], shared_bytes }
}

/// Bytes of a parameter struct.
pub fn bytes_of<T: Copy>(value: &T) -> &[u8] {
    // SAFETY: parameter structs of the tests have no padding.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// A device buffer with these values.
pub fn upload<T: Copy>(device: &dyn Device, values: &[T]) -> DevicePtr {
    let ptr = device.alloc(size_of_val(values) as u64, STREAM).expect("memory");
    // SAFETY: plain numbers.
    let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) };
    device.copy_to_device(ptr, bytes, STREAM).expect("copy");
    ptr
}

/// `count` values from a device buffer.
pub fn download<T: Copy + Default>(device: &dyn Device, ptr: DevicePtr, count: usize) -> Vec<T> {
    let mut values = vec![T::default(); count];
    // SAFETY: plain numbers.
    let bytes = unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), count * size_of::<T>()) };
    device.copy_to_host(bytes, ptr, STREAM).expect("copy");
    values
}

/// Loads, launches and waits.
pub fn launch<P: Copy>(
    device: &dyn Device,
    kernel: &KernelSpec,
    config: LaunchConfig,
    params: &P,
) -> DeviceResult<()> {
    let kernel = device.load_kernel(kernel)?;
    device.launch(kernel, config, bytes_of(params), STREAM)?;
    device.synchronize(STREAM)
}

/// The findings of a launch that must have some.
pub fn findings(result: DeviceResult<()>) -> Vec<Finding> {
    match result {
        Err(DeviceError::Findings(findings)) => findings,
        other => panic!("expected findings, got {other:?}"),
    }
}

/// The one finding of a launch that must have exactly one.
pub fn only_finding(result: DeviceResult<()>, kind: FindingKind) -> Finding {
    let findings = findings(result);
    assert_eq!(findings.len(), 1, "{findings:#?}");
    assert_eq!(findings[0].kind, kind, "{findings:#?}");
    findings.into_iter().next().expect("one finding")
}

/// `file:line` of the only line of a fixture that carries `marker` in a comment.
pub fn line(file: &str, marker: &str) -> Option<String> {
    let sources = sources();
    let text = sources.get(file).expect("fixture");
    let needle = format!("// {marker}");
    let lines: Vec<usize> = text
        .lines()
        .enumerate()
        .filter(|(_, l)| l.trim_end().ends_with(&needle))
        .map(|(i, _)| i + 1)
        .collect();
    assert_eq!(lines.len(), 1, "marker {marker} in {file}");
    Some(format!("{file}:{}", lines[0]))
}
