//! The committed support manifest: which cases an arm may leave out, and why.

use std::sync::LazyLock;

use kernels::device::DeviceKind;
use serde::Deserialize;

use crate::case::Case;
use crate::filter::Filter;

const MANIFEST: &str = include_str!("../catalogue/support.toml");

/// One declared gap.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gap {
    /// The arm.
    pub arm: String,
    /// The device; `None` for every device.
    #[serde(default)]
    pub device: Option<DeviceKind>,
    /// Filter over cases, as on the command line.
    pub cases: String,
    /// Why these cases are not served.
    pub why: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    #[serde(default)]
    gap: Vec<Gap>,
}

static GAPS: LazyLock<Vec<Gap>> = LazyLock::new(|| {
    let manifest: Manifest = toml::from_str(MANIFEST).expect("the embedded manifest parses: a test reads it");
    manifest.gap
});

/// Every declared gap.
#[must_use]
pub fn gaps() -> &'static [Gap] {
    &GAPS
}

/// Whether the manifest says that `arm` on `device` does not serve this case.
#[must_use]
pub fn declares(case: &Case, arm: &str, device: DeviceKind) -> bool {
    gaps().iter().any(|gap| {
        gap.arm == arm && gap.device.is_none_or(|d| d == device) && Filter::new(&gap.cases).matches(case, "")
    })
}
