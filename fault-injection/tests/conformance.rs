//! A wrapped device without a plan is the device: it passes the suite that every device passes.

use fault_injection::FaultyDevice;
use kernels::conformance;
use kernels::simt::{Mode, SimtDevice, SimtOptions};
use kernels::source::SourceSet;

#[test]
fn a_wrapped_device_conforms() {
    let sources = conformance::sources(SourceSet::load().expect("kernel sources"));
    let inner =
        SimtDevice::new(SimtOptions { mode: Mode::Fast, ..SimtOptions::new(sources) }).expect("a device");
    let device = FaultyDevice::new(inner);
    let checks = conformance::checks();
    assert!(checks.len() > 20);
    for check in checks {
        (check.run)(&device.handle()).unwrap_or_else(|violation| panic!("{}: {violation}", check.name));
    }
    assert_eq!(device.snapshot().bytes(), 0);
}
