//! What a case exercises, in the words of the capability table.

use crate::case::Case;
use crate::events::Judged;
use crate::problem::Op;

/// The capabilities that a judged case speaks for: formats and head dim, then each option.
#[must_use]
pub fn capabilities_of(judged: &Judged) -> Vec<String> {
    if judged.group == super::PROBES {
        return vec!["refuses what it does not declare".to_owned()];
    }
    let Ok(case) = judged.line.parse::<Case>() else { return Vec::new() };
    if case.must_reject() {
        return vec!["refuses invalid calls".to_owned()];
    }
    let problem = &case.problem;
    let (query, cache) = (problem.query_format.name(), problem.cache_format.name());
    let dims = match problem.head_dim == problem.head_dim_v {
        true => problem.head_dim.to_string(),
        false => format!("{}/{}", problem.head_dim, problem.head_dim_v),
    };
    if problem.op == Op::Store {
        return vec![format!("store {query} kv={cache}")];
    }
    vec![format!("attention {query} kv={cache}"), format!("head dim {dims}")]
        .into_iter()
        .chain(
            OPTIONS
                .iter()
                .filter(|flag| judged.flags.iter().any(|f| f == *flag))
                .map(|flag| format!("with {flag}")),
        )
        .collect()
}

/// Where a capability stands in the table: attention by format, then by head dim, options, stores, refusals.
#[must_use]
pub fn rank(name: &str) -> (usize, usize) {
    let kinds = ["head dim ", "with ", "store ", "refuses "];
    let kind = kinds.iter().position(|kind| name.starts_with(kind)).map_or(0, |place| place + 1);
    let digits = name.strip_prefix("head dim ").map_or("", |dims| dims.split('/').next().unwrap_or(dims));
    (kind, digits.parse().unwrap_or(0))
}

/// Flags that get a row of their own.
const OPTIONS: [&str; 9] =
    ["window", "softcap", "alibi", "sinks", "per-head-scale", "hnd", "interleaved", "padded", "odd-page"];
