//! `attest conformance`: does a device keep the promises of the device interface?

use clap::Args;
use kernels::conformance;

use super::Failure;
use super::options::DeviceOptions;
use crate::devices;
use crate::executor::DeviceSpec;

/// Check that a device keeps the promises of the device interface: streams, copies, events, graphs, pool.
#[derive(Debug, Args)]
pub(super) struct Conformance {
    #[command(flatten)]
    device: DeviceOptions,
}

impl Conformance {
    pub fn run(self) -> Result<u8, Failure> {
        let chosen = self.device.choose()?;
        let spec = DeviceSpec { kind: chosen.kind, checked: false, schedule: None };
        let (mut passed, mut failed) = (0, 0);
        for check in conformance::checks() {
            let sources = kernels::source::SourceSet::load().map_err(|error| {
                Failure::surroundings(format!("the kernel sources cannot be read: {error}"))
            })?;
            let device = devices::open_with(&spec, conformance::sources(sources))
                .map_err(|error| Failure::surroundings(error.to_string()))?;
            match (check.run)(&device) {
                Ok(()) => passed += 1,
                Err(error) => {
                    failed += 1;
                    println!("FAILED  {}: {error}", check.name);
                }
            }
        }
        println!("{passed} passed, {failed} failed, 0 skipped");
        Ok(u8::from(failed > 0))
    }
}
