//! Collects what a launch does wrong, one entry per distinct place.

use std::collections::HashMap;

use super::module::{Module, Place};
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

    /// The findings with source lines, places on the same lines merged, in the order they were first seen.
    pub fn into_findings(self, module: &Module) -> Vec<Finding> {
        let mut merged: Vec<Finding> = Vec::new();
        for entry in self.entries {
            let (place, other) = (place(module, entry.pc), place(module, entry.other));
            let site = place.as_ref().map(|p| p.site.clone());
            let other_site = other.as_ref().map(|p| p.site.clone());
            let same = merged.iter_mut().find(|f| {
                f.kind == entry.kind && f.site == site && f.other_site == other_site && site.is_some()
            });
            if let Some(finding) = same {
                finding.count += entry.count;
                continue;
            }
            let mut message = format!("{} in {}", entry.message, module.entry_name);
            let helpers: Vec<String> =
                [place, other].into_iter().flatten().filter_map(|p| p.helper).collect();
            if !helpers.is_empty() {
                message.push_str(&format!(" (through {})", helpers.join(" and ")));
            }
            merged.push(Finding { kind: entry.kind, message, site, other_site, count: entry.count });
        }
        if let (Some(last), true) = (merged.last_mut(), self.dropped > 0) {
            last.message.push_str(&format!(" (and {} more at further places)", self.dropped));
        }
        merged
    }
}

fn place(module: &Module, pc: u32) -> Option<Place> {
    if pc == 0 { None } else { module.place(pc) }
}
