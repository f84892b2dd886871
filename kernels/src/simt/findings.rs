//! Collects what a launch does wrong, one entry per distinct place.

use std::collections::HashMap;

use super::module::Module;
use crate::device::{Finding, FindingKind};

/// Distinct places kept per launch; the rest is only counted.
const MAX_PLACES: usize = 64;

/// Findings of one launch.
#[derive(Default)]
pub(super) struct Findings {
    places: HashMap<(FindingKind, u32, u32), usize>,
    entries: Vec<Entry>,
    dropped: u64,
}

struct Entry {
    kind: FindingKind,
    message: String,
    pc: u32,
    other: u32,
    count: u64,
}

impl Findings {
    /// Counts a finding at a place; the message is made for the first one only. A place is the code offsets of
    /// the access and of the other party (0 for none).
    pub fn add(&mut self, kind: FindingKind, pc: u32, other: u32, message: impl FnOnce() -> String) {
        if let Some(&index) = self.places.get(&(kind, pc, other)) {
            self.entries[index].count += 1;
        } else if self.entries.len() < MAX_PLACES {
            self.places.insert((kind, pc, other), self.entries.len());
            self.entries.push(Entry { kind, message: message(), pc, other, count: 1 });
        } else {
            self.dropped += 1;
        }
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The findings with source lines, places on the same lines merged, in the order they were first seen.
    pub fn into_findings(self, module: &Module) -> Vec<Finding> {
        let mut merged: Vec<Finding> = Vec::new();
        let site = |pc: u32| if pc == 0 { None } else { module.site(pc) };
        for entry in self.entries {
            let (site, other_site) = (site(entry.pc), site(entry.other));
            let same = merged.iter_mut().find(|f| {
                f.kind == entry.kind && f.site == site && f.other_site == other_site && site.is_some()
            });
            match same {
                Some(finding) => finding.count += entry.count,
                None => merged.push(Finding {
                    kind: entry.kind,
                    message: format!("{} in {}", entry.message, module.entry_name),
                    site,
                    other_site,
                    count: entry.count,
                }),
            }
        }
        if let (Some(last), true) = (merged.last_mut(), self.dropped > 0) {
            last.message.push_str(&format!(" (and {} more at further places)", self.dropped));
        }
        merged
    }
}
