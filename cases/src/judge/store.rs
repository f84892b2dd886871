//! The cache after a store, byte for byte.

use oracle::{CacheViews, PagedView};

use crate::case::Case;
use crate::inputs::StoreInputs;
use crate::verdict::Failure;

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
    let mut wrong = 0;
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
                    wrong += 1;
                    first.get_or_insert_with(|| {
                        let place = format!("page {page}, slot {slot}, head {head}, dim {dim}");
                        format!("{place}: code {} ({b:e}), expected {} ({a:e})", hex(got), hex(want))
                    });
                }
            }
        }
    }
    let of = view.pages * view.page_size * view.heads * view.dim;
    first.map(|first| Failure::Cache { tensor: name.to_owned(), wrong, of, first })
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
    })
}

fn hex(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().rev().map(|b| format!("{b:02x}")).collect();
    format!("0x{digits}")
}
