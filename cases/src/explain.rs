//! What a case exercises, in words: the request, what every row sees, the bound and its parts, who serves it.

mod bound;
mod visible;
mod words;

use std::fmt;

use oracle::OracleError;

use crate::case::{Case, Expectation};
use crate::inputs::Inputs;
use crate::problem::Op;
use crate::reference::p_format;
use crate::support;

/// One part of an explanation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// What it is about.
    pub title: String,
    /// Its lines.
    pub lines: Vec<String>,
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        self.lines.iter().try_for_each(|line| writeln!(f, "  {line}"))
    }
}

/// Explains a case for the given arms.
///
/// # Errors
/// When a case that must be served has no inputs or no reference.
pub fn explain(case: &Case, arms: &[String]) -> Result<Vec<Section>, OracleError> {
    let section = |title: &str, lines| Section { title: title.to_owned(), lines };
    let mut sections = vec![
        section("asks for", words::request(case)),
        section("exercises", words::exercises(case)),
        section("data", words::data(case)),
    ];
    if let Expectation::Reject { argument } = &case.expectation {
        let line = format!("a typed error that names {argument}; nothing runs and nothing is written");
        sections.push(section("expects", vec![line]));
        return Ok(sections);
    }
    sections.push(section("arms", arms.iter().map(|arm| arm_line(case, arm)).collect()));
    if case.problem.op == Op::Store {
        let line = "every byte of the cache: codes are encode(x / scale), all other bytes stay as they were";
        sections.push(section("expects", vec![line.to_owned()]));
        return Ok(sections);
    }
    sections.push(section("visible keys", visible::lines(&case.problem)));
    let inputs = Inputs::generate(case)?;
    let mut explained = Vec::new();
    for arm in arms.iter().filter(|arm| support::gap(case, arm).is_none()) {
        // Arms that round alike have the same bound.
        let model = crate::reference::bound_model(case, &inputs, arm);
        if explained.contains(&model) {
            continue;
        }
        explained.push(model);
        let title = format!("bound (P in {}, as {arm} keeps it)", p_format(arm, &case.problem));
        sections.push(Section { title, lines: bound::lines(case, &inputs, arm)? });
    }
    Ok(sections)
}

fn arm_line(case: &Case, arm: &str) -> String {
    match support::gap(case, arm) {
        Some(gap) => format!("{arm} does not serve it ({gap})"),
        None => format!("{arm} serves it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(line: &str, arms: &[&str]) -> String {
        let case: Case = line.parse().expect("a case");
        let arms: Vec<String> = arms.iter().map(|arm| (*arm).to_owned()).collect();
        explain(&case, &arms).expect("an explanation").iter().map(ToString::to_string).collect()
    }

    #[track_caller]
    fn has(text: &str, parts: &[&str]) {
        for part in parts {
            assert!(text.contains(part), "{part:?} is missing from\n{text}");
        }
    }

    #[test]
    fn a_windowed_batch_says_what_each_row_sees() {
        let line = "mixed bf16 kv=e4m3 h8/2 d64 page4 HND causal win=5,- sinks q=[3,0,2] kv=[9,4,0] kscale=0.5 seed=3";
        let text = text(line, &["scalar", "mma", "fp8-dense"]);
        has(
            &text,
            &[
                "3 requests",
                "4 query heads share a KV head",
                "request 0: 3 rows over 9 keys, the first at position 6",
                "row 0 sees keys 1..=6 (6)",
                "row 2 sees keys 3..=8 (6)",
                "request 1: no query row",
                "request 2: 2 rows over 0 keys",
                "no row sees a key: out is 0, lse is the sink",
                "mma does not serve it",
                "bound (P in f32, as scalar keeps it)",
                "bound (P in bf16, as fp8-dense keeps it)",
            ],
        );
    }

    #[test]
    fn the_parts_of_the_bound_add_up() {
        let line = "decode f16 kv=f16 h2/2 d64 page16 NHD causal q=[1] kv=[300] seed=8";
        let text = text(line, &["mma"]);
        let percent = |part: &str| -> f64 {
            let line =
                text.lines().find(|line| line.contains(part)).unwrap_or_else(|| panic!("{part}\n{text}"));
            let share = line.split('(').nth(1).and_then(|rest| rest.split('%').next());
            share.and_then(|share| share.trim().parse().ok()).unwrap_or_else(|| panic!("{line}"))
        };
        let parts = ["rounding of P", "weights of P that underflow", "dot products", "the rest"].map(percent);
        assert!((parts.iter().sum::<f64>() - 100.0).abs() < 0.5, "{parts:?}\n{text}");
        assert!(parts[0] > parts[2], "P in f16 costs more than f32 products: {parts:?}");
    }

    #[test]
    fn stores_and_refusals_have_no_bound() {
        let store = "store bf16 kv=e4m3 h2/2 d8 page4 NHD slots=[3,-1] kv=[4] kscale=0.5 seed=1";
        has(&text(store, &["store"]), &["every byte of the cache", "2 rows to store, 1 of them skipped"]);
        let refused =
            "prefill f32 kv=f32 h4/2 d8 page4 NHD softcap=0 q=[1] kv=[4] expect=reject:softcap seed=1";
        let text = text(refused, &["scalar"]);
        has(&text, &["a typed error that names softcap"]);
        assert!(!text.contains("bound"), "{text}");
    }
}
