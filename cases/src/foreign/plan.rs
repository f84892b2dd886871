//! Which cases a foreign kernel meets: those inside its support, those that can be moved there, invalid calls, and for each
//! thing that it does not declare one call that it must refuse.

use std::collections::HashSet;

use kernels::abi::ForeignInfo;

use super::support::{adapted, gap};
use crate::catalogue::Entry;
use crate::problem::Op;
use crate::reference::FOREIGN_ARM;
use crate::run::STORE_ARM;
use crate::session::Item;

/// The group of calls outside the kernel's support.
pub const PROBES: &str = "unsupported";

/// The items of a run over these entries.
#[must_use]
pub fn items(entries: &[Entry], info: &ForeignInfo) -> Vec<Item> {
    let mut items = Vec::new();
    let (mut lines, mut gaps) = (HashSet::new(), HashSet::new());
    for entry in entries {
        let Some(what) = gap(&entry.case, info) else {
            lines.insert(without_seed(&entry.case.to_string()));
            items.push(item(entry, entry.case.clone(), entry.group));
            continue;
        };
        let new = |case: &crate::case::Case, lines: &mut HashSet<String>| {
            lines.insert(without_seed(&case.to_string()))
        };
        if let Some(case) = adapted(&entry.case, info).filter(|case| new(case, &mut lines)) {
            items.push(item(entry, case, entry.group));
        }
        if !entry.case.must_reject() {
            let group = if gaps.insert(what) { PROBES } else { entry.group };
            items.push(item(entry, entry.case.clone(), group));
        }
    }
    items
}

fn item(entry: &Entry, case: crate::case::Case, group: &str) -> Item {
    let arm = if case.problem.op == Op::Store { STORE_ARM } else { FOREIGN_ARM };
    Item { case, arm: arm.to_owned(), group: group.to_owned(), comment: entry.comment.clone() }
}

/// A line without its last term: two cases that differ in nothing else show the same.
fn without_seed(line: &str) -> String {
    line.rsplit_once(" seed=").map_or(line, |(before, _)| before).to_owned()
}
