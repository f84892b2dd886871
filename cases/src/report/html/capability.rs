//! What was judged: features of the cases against arms.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::escape;
use crate::case::{Case, Flag};
use crate::problem::Problem;
use crate::verdict::Class;

/// Counts of the cases with one feature on one arm.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
    /// The first failure among those that the page shows.
    anchor: Option<usize>,
}

/// A feature's place in the table: its group, its rank there, its name.
type Feature = (usize, usize, String);

/// Cases by feature and arm.
#[derive(Default)]
pub(super) struct Capabilities {
    arms: Vec<String>,
    counts: BTreeMap<Feature, BTreeMap<String, Counts>>,
}

/// Groups of features, in the order of the page.
const GROUPS: [&str; 7] =
    ["operation", "query over cache", "head_dim", "query heads per KV head", "page size", "layout", "option"];

impl Capabilities {
    /// Counts a case under each of its features. `anchor` is the number of its failure on the page.
    pub fn add(&mut self, case: &Case, arm: &str, class: Class, anchor: Option<usize>) {
        if !self.arms.iter().any(|known| known == arm) {
            self.arms.push(arm.to_owned());
        }
        for feature in features(case) {
            let counts = self.counts.entry(feature).or_default().entry(arm.to_owned()).or_default();
            match class {
                Class::Passed => counts.passed += 1,
                Class::Skipped => counts.skipped += 1,
                Class::Failed | Class::UndeclaredSkip | Class::NoVerdict => {
                    counts.failed += 1;
                    counts.anchor = counts.anchor.or(anchor);
                }
            }
        }
    }

    /// The tables, one per group; empty if nothing was judged.
    pub fn html(&self) -> String {
        let mut html = String::from("<div class=\"groups\">");
        let mut any = false;
        for (group, name) in GROUPS.iter().enumerate() {
            let rows: Vec<_> = self.counts.iter().filter(|((of, ..), _)| *of == group).collect();
            if rows.is_empty() {
                continue;
            }
            any = true;
            let failed = rows.iter().any(|(_, arms)| arms.values().any(|counts| counts.failed > 0));
            let open = if group < 2 || failed { " open" } else { "" };
            let arms: String = self.arms.iter().map(|arm| format!("<th>{}</th>", escape(arm))).collect();
            let _ = write!(
                html,
                "<details class=\"group\"{open}><summary>{name}</summary><div class=\"scroll\">\
                 <table class=\"capability\"><thead><tr><th></th>{arms}</tr></thead><tbody>"
            );
            for ((_, _, feature), counts) in rows {
                let cells: String = self.arms.iter().map(|arm| cell(counts.get(arm))).collect();
                let _ = write!(html, "<tr><th>{}</th>{cells}</tr>", escape(feature));
            }
            html.push_str("</tbody></table></div></details>");
        }
        html.push_str("</div>");
        if any { html } else { String::new() }
    }
}

fn cell(counts: Option<&Counts>) -> String {
    let Some(Counts { passed, failed, skipped, anchor }) = counts.copied() else {
        return "<td class=\"none\"></td>".to_owned();
    };
    let judged = passed + failed;
    if failed > 0 {
        let text = format!("✗ {failed} of {judged}");
        let linked = anchor.map(|number| format!("<a href=\"#failure-{}\">{text}</a>", number + 1));
        return format!("<td class=\"bad\">{}</td>", linked.unwrap_or(text));
    }
    if judged == 0 {
        return format!("<td class=\"skipped\" title=\"{skipped} skipped\">–</td>");
    }
    format!("<td class=\"good\" title=\"{passed} passed, {skipped} skipped\">✓ {passed}</td>")
}

fn features(case: &Case) -> Vec<Feature> {
    let p = &case.problem;
    let mut features = vec![
        (0, p.op as usize, p.op.name().to_owned()),
        (1, formats_rank(p), format!("{} over {}", p.query_format.name(), p.cache_format.name())),
        (3, group(p), format!("{}", group(p))),
        (4, p.page_size, format!("{}", p.page_size)),
        (5, p.layout as usize, p.layout.name().to_owned()),
    ];
    let (rank, dims) = dims(p);
    features.push((2, rank, dims));
    for flag in case.flags() {
        if let Some((group, name)) = named(flag) {
            features.push((group, flag as usize + 16, name.to_owned()));
        }
    }
    features
}

/// Dims that kernels are made for by name, the others in ranges.
fn dims(p: &Problem) -> (usize, String) {
    let dim = p.head_dim;
    if dim != p.head_dim_v {
        return (usize::MAX, "K and V differ".to_owned());
    }
    let named = [64, 128, 256];
    let upper = named.iter().position(|named| dim <= *named).unwrap_or(named.len());
    let words = match (named.get(upper), upper.checked_sub(1).map(|lower| named[lower])) {
        (Some(named), _) if *named == dim => dim.to_string(),
        (Some(named), Some(lower)) => format!("{} to {}", lower + 1, named - 1),
        (Some(named), None) => format!("below {named}"),
        (None, lower) => format!("above {}", lower.unwrap_or_default()),
    };
    (2 * upper + usize::from(named.contains(&dim)), words)
}

fn formats_rank(p: &Problem) -> usize {
    p.query_format as usize * 16 + p.cache_format as usize
}

/// Query heads per KV head, rounded down where a case is about a number that does not divide.
fn group(p: &Problem) -> usize {
    p.num_q_heads / p.num_kv_heads.max(1)
}

/// Group and words of the flags that no other feature says.
fn named(flag: Flag) -> Option<(usize, &'static str)> {
    Some(match flag {
        Flag::Interleaved => (5, "K and V interleaved"),
        Flag::Padded => (5, "padded strides"),
        Flag::VPadded => (5, "V with strides of its own"),
        Flag::IdentityPaging => (5, "pages in order"),
        Flag::Causal => (6, "causal"),
        Flag::Window => (6, "window"),
        Flag::Softcap => (6, "softcap"),
        Flag::Alibi => (6, "ALiBi"),
        Flag::Sinks => (6, "sinks"),
        Flag::Scaled => (6, "K and V scales"),
        Flag::PerHeadScale => (6, "a scale per head"),
        Flag::Varlen => (6, "ragged batch"),
        Flag::EmptyQuery => (6, "empty query"),
        Flag::EmptyKv => (6, "no keys"),
        Flag::QueryPastKv => (6, "more rows than keys"),
        Flag::Probe => (6, "exact probe"),
        Flag::Real => (6, "recorded activations"),
        Flag::Invalid => (6, "must be refused"),
        Flag::Gqa
        | Flag::Mqa
        | Flag::UnequalDims
        | Flag::Fp8
        | Flag::Hnd
        | Flag::OddPage
        | Flag::PageSpanning
        | Flag::Store => return None,
    })
}
