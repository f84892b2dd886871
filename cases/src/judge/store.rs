//! The cache after a store, byte for byte.

use std::collections::BTreeSet;

use oracle::{CacheViews, PagedView};

use crate::case::Case;
use crate::inputs::StoreInputs;
use crate::verdict::{ErrorMap, Failure, RowKind, RowPlace};

/// Compares the cache buffers with what a correct store leaves. NaN codes count as equal by class.
#[must_use]
pub fn judge_store(case: &Case, inputs: &StoreInputs, after: &[Vec<u8>]) -> Vec<Failure> {
    let CacheViews { k, v, .. } = &inputs.views;
    let last = after.len() - 1;
    let mut failures = Vec::new();
    failures.extend(tensor(case, "k", k, &inputs.expected[0], &after[0]));
    failures.extend(tensor(case, "v", v, &inputs.expected[last], &after[last]));
    if failures.is_empty() {
        failures.extend(elsewhere(&inputs.expected, after));
    }
    failures
}

fn tensor(case: &Case, name: &str, view: &PagedView, expected: &[u8], after: &[u8]) -> Option<Failure> {
    let format = case.problem.cache_format;
    let size = format.size_bytes();
    let mut wrong = BTreeSet::new();
    let mut first = None;
    for page in 0..view.pages {
        for slot in 0..view.page_size {
            for head in 0..view.heads {
                for dim in 0..view.dim {
                    let at = view.index(page, slot, head, dim) * size;
                    let (want, got) = (&expected[at..at + size], &after[at..at + size]);
                    if want == got {
                        continue;
                    }
                    let value = |bytes: &[u8]| format.decode_bytes(bytes)[0];
                    let (a, b) = (value(want), value(got));
                    if a.is_nan() && b.is_nan() && a.is_sign_negative() == b.is_sign_negative() {
                        continue;
                    }
                    wrong.insert((page * view.page_size + slot, head, dim));
                    first.get_or_insert_with(|| {
                        let place = format!("page {page}, slot {slot}, head {head}, dim {dim}");
                        format!("{place}: code {} ({b:e}), expected {} ({a:e})", hex(got), hex(want))
                    });
                }
            }
        }
    }
    let of = view.pages * view.page_size * view.heads * view.dim;
    first.map(|first| {
        let map = Some(Box::new(map_of_slots(view, &wrong)));
        Failure::Cache { tensor: name.to_owned(), wrong: wrong.len(), of, first, map }
    })
}

/// Wrong elements by slot of the pool, head and dim.
fn map_of_slots(view: &PagedView, wrong: &BTreeSet<(usize, usize, usize)>) -> ErrorMap {
    let slots = 0..view.pages * view.page_size;
    let places: Vec<RowPlace> =
        slots.map(|slot| RowPlace { request: 0, row: slot, position: slot as i64 }).collect();
    ErrorMap::new(RowKind::Slot, &places, (view.heads, view.dim), |slot, head, dim| {
        if wrong.contains(&(slot, head, dim)) { f64::INFINITY } else { 0.0 }
    })
}

/// Bytes outside both views: padding and what lies before the base offset.
fn elsewhere(expected: &[Vec<u8>], after: &[Vec<u8>]) -> Option<Failure> {
    let buffers = expected.iter().zip(after).enumerate();
    let changed: Vec<(usize, usize)> = buffers
        .flat_map(|(buffer, (a, b))| {
            a.iter().zip(b).enumerate().filter(|(_, (a, b))| a != b).map(move |(at, _)| (buffer, at))
        })
        .collect();
    let (buffer, at) = changed.first()?;
    Some(Failure::Cache {
        tensor: "unowned".to_owned(),
        wrong: changed.len(),
        of: expected.iter().map(Vec::len).sum(),
        first: format!("byte {at} of buffer {buffer}"),
        map: None,
    })
}

fn hex(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().rev().map(|b| format!("{b:02x}")).collect();
    format!("0x{digits}")
}
