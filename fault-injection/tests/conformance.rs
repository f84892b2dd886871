//! Every device of this crate passes the suite that every device passes.

use std::sync::Arc;

use fault_injection::{FaultyDevice, HostDevice, HostMemory};
use kernels::conformance;
use kernels::device::{DevicePtr, DeviceRef, DeviceResult, LaunchConfig};
use kernels::simt::{Mode, SimtDevice, SimtOptions};
use kernels::source::SourceSet;

/// What a host device does not promise: it knows neither a launch's limits nor a kernel's source.
const NOT_OF_THE_HOST: [&str; 2] = [
    "launches outside the limits are refused before anything runs",
    "a kernel that does not exist or compile is named",
];

fn conforms(device: &DeviceRef, without: &[&str]) {
    let checks = conformance::checks();
    assert!(checks.len() > 20);
    assert!(without.iter().all(|name| checks.iter().any(|check| check.name == *name)));
    for check in checks.iter().filter(|check| !without.contains(&check.name)) {
        (check.run)(device).unwrap_or_else(|violation| panic!("{}: {violation}", check.name));
    }
}

/// The suite's kernel in Rust: `values = values * factor + addend`.
fn probe(memory: &mut HostMemory, _: LaunchConfig, params: &[u8]) -> DeviceResult<()> {
    let values = u64::from_ne_bytes(params[..8].try_into().expect("eight bytes"));
    let word = |at: usize| i32::from_ne_bytes(params[at..at + 4].try_into().expect("four bytes"));
    let (count, factor, addend) = (word(8), word(12), word(16));
    for value in memory.bytes_mut(DevicePtr(values), 4 * count as u64)?.as_chunks_mut::<4>().0 {
        *value = (i32::from_ne_bytes(*value) * factor + addend).to_ne_bytes();
    }
    Ok(())
}

/// A host device without a plan, as it is and wrapped, with a ceiling and without one.
#[test]
fn a_host_device_conforms() {
    for limit in [None, Some(1 << 30)] {
        let host = Arc::new(HostDevice::new(limit).with_kernel("conformance_probe", probe));
        conforms(&(Arc::clone(&host) as DeviceRef), &NOT_OF_THE_HOST);
        let wrapped = FaultyDevice::new(host);
        conforms(&wrapped.handle(), &NOT_OF_THE_HOST);
        assert_eq!(wrapped.snapshot().bytes(), 0);
    }
}

/// A wrapped device without a plan is the device.
#[test]
fn a_wrapped_device_conforms() {
    let sources = conformance::sources(SourceSet::load().expect("kernel sources"));
    let inner =
        SimtDevice::new(SimtOptions { mode: Mode::Fast, ..SimtOptions::new(sources) }).expect("a device");
    let device = FaultyDevice::new(inner);
    conforms(&device.handle(), &[]);
    assert_eq!(device.snapshot().bytes(), 0);
}
