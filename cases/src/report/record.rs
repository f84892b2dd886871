//! The record of a run on a card: committed, so that everybody sees what has been seen on one, and when it went stale.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kernels::device::DeviceInfo;
use kernels::source::SourceSet;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::agreement::Agreement;
use crate::events::{Consumer, Event};
use crate::verdict::{Class, Verdict};

/// What an arm did in the recorded run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ArmRecord {
    /// Cases that passed.
    pub passed: usize,
    /// Cases that failed.
    pub failed: usize,
    /// Cases that the arm does not serve.
    pub skipped: usize,
    /// Largest share of its bound that any element used.
    pub worst_share: f64,
    /// How far the card agreed with `simt` bit for bit, where that was compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against_simt: Option<Agreement>,
}

/// A run on a card.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CardRecord {
    /// The card, driver and compiler.
    pub card: DeviceInfo,
    /// Hash of the kernel sources that were judged.
    pub kernel_sources: String,
    /// Tier of the cases.
    pub tier: Option<String>,
    /// By arm.
    pub arms: BTreeMap<String, ArmRecord>,
}

/// Hash of a set of kernel sources: every name and every text.
#[must_use]
pub fn source_hash(sources: &SourceSet) -> String {
    let mut hash = Sha256::new();
    for (name, text) in sources.iter() {
        for part in [name, text] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
    }
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

impl CardRecord {
    /// Reads a record.
    ///
    /// # Errors
    /// When the file cannot be read or is no record.
    pub fn read(path: &Path) -> std::io::Result<Self> {
        serde_json::from_str(&std::fs::read_to_string(path)?).map_err(std::io::Error::other)
    }

    /// Whether the kernel sources have changed since.
    #[must_use]
    pub fn is_stale(&self, sources: &SourceSet) -> bool {
        self.kernel_sources != source_hash(sources)
    }

    /// Writes the record.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        let text = serde_json::to_string_pretty(self).map_err(std::io::Error::other)?;
        std::fs::write(path, text + "\n")
    }
}

/// Counts verdicts by arm and writes the record at the end.
pub struct CardRecorder {
    path: PathBuf,
    record: CardRecord,
}

impl CardRecorder {
    /// Records a run on `card` over `sources`.
    #[must_use]
    pub fn new(path: PathBuf, card: DeviceInfo, sources: &SourceSet) -> Self {
        let kernel_sources = source_hash(sources);
        Self { path, record: CardRecord { card, kernel_sources, tier: None, arms: BTreeMap::new() } }
    }
}

impl Consumer for CardRecorder {
    fn take(&mut self, event: &Event) -> std::io::Result<()> {
        match event {
            Event::Started(started) => self.record.tier = started.tier.clone(),
            Event::Judged(judged) => {
                let arm = self.record.arms.entry(judged.arm.clone()).or_default();
                match judged.class {
                    Class::Passed => arm.passed += 1,
                    Class::Failed => arm.failed += 1,
                    _ => arm.skipped += 1,
                }
                if let Verdict::Pass { worst_share } = judged.verdict {
                    arm.worst_share = arm.worst_share.max(worst_share);
                }
            }
            Event::Finished(_) => self.record.write(&self.path)?,
            _ => {}
        }
        Ok(())
    }
}
