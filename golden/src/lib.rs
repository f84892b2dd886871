//! Texts that are kept as snapshots: tables, messages, reports and reference values. Each function makes one text; the tests
//! compare them with the reviewed files in `snapshots`.

pub mod formats;
pub mod messages;
pub mod references;
pub mod reports;
pub mod routes;
pub mod vectors;

use sha2::{Digest, Sha256};

/// The first 16 hexadecimal digits of the SHA-256 of some bytes.
#[must_use]
pub fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Every case of the catalogue: identifier, tier, group and line.
///
/// # Panics
/// If the embedded catalogue does not parse.
#[must_use]
pub fn catalogue() -> String {
    let entries = cases::catalogue::entries().expect("the catalogue parses");
    let mut lines: Vec<String> = entries
        .iter()
        .map(|entry| format!("{} {} {} {}", entry.case.id(), entry.tier.name(), entry.group, entry.case))
        .collect();
    lines.push(format!("{} cases", lines.len()));
    lines.join("\n")
}
