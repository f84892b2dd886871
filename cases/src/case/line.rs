//! Printing a case on one line. Defaults are left out; terms come in a fixed order.

use std::fmt::{self, Display, Write as _};

use super::{Case, Data, Expectation, Paging};
use crate::problem::{Op, Options, Problem, Scale, Sinks};
use oracle::{Packing, Padding};

impl Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&terms(self).join(" "))
    }
}

/// The terms of a case line in canonical order.
fn terms(case: &Case) -> Vec<String> {
    let mut terms = Vec::with_capacity(24);
    shape(&case.problem, &mut terms);
    options(&case.problem.options, &mut terms);
    lengths(&case.problem, &mut terms);
    scales(&case.problem, &mut terms);
    making(case, &mut terms);
    terms
}

fn shape(problem: &Problem, terms: &mut Vec<String>) {
    terms.push(problem.op.name().to_owned());
    terms.push(problem.query_format.name().to_owned());
    terms.push(format!("kv={}", problem.cache_format.name()));
    terms.push(format!("h{}/{}", problem.num_q_heads, problem.num_kv_heads));
    terms.push(if problem.head_dim == problem.head_dim_v {
        format!("d{}", problem.head_dim)
    } else {
        format!("d{}/{}", problem.head_dim, problem.head_dim_v)
    });
    terms.push(format!("page{}", problem.page_size));
    terms.push(problem.layout.name().to_owned());
    if problem.packing != Packing::Separate {
        terms.push(problem.packing.name().to_owned());
    }
    let k_padding = Some(problem.padding).filter(|padding| *padding != Padding::default());
    for (name, padding) in [("pad", k_padding), ("vpad", problem.v_padding)] {
        if let Some(pad) = padding {
            terms.push(format!("{name}={},{},{},{}", pad.base, pad.row, pad.plane, pad.page));
        }
    }
}

fn options(options: &Options, terms: &mut Vec<String>) {
    if options.causal {
        terms.push("causal".to_owned());
    }
    if options.window_left.is_some() || options.window_right.is_some() {
        terms.push(format!("win={},{}", limit(options.window_left), limit(options.window_right)));
    }
    if let Some(cap) = options.softcap {
        terms.push(format!("softcap={}", number(cap)));
    }
    if options.alibi {
        terms.push("alibi".to_owned());
    }
    match options.sinks {
        Sinks::Absent => {}
        Sinks::Seeded => terms.push("sinks".to_owned()),
        Sinks::Constant(logit) => terms.push(format!("sinks={}", number(logit))),
    }
    if let Some(scale) = options.softmax_scale {
        terms.push(format!("scale={}", number(scale)));
    }
}

fn lengths(problem: &Problem, terms: &mut Vec<String>) {
    if let Some(slots) = &problem.slots {
        terms.push(format!("slots={}", list(slots)));
    } else {
        terms.push(format!("q={}", list(&problem.query_lens)));
    }
    terms.push(format!("kv={}", list(&problem.kv_lens)));
}

fn scales(problem: &Problem, terms: &mut Vec<String>) {
    for (name, scale) in [("kscale", &problem.k_scale), ("vscale", &problem.v_scale)] {
        match scale {
            Scale::PerTensor(one) if *one == 1.0 => {}
            Scale::PerTensor(one) => terms.push(format!("{name}={}", number(*one))),
            Scale::PerHead(all) => {
                let all: Vec<String> = all.iter().map(|s| number(*s)).collect();
                terms.push(format!("{name}=[{}]", all.join(",")));
            }
        }
    }
}

fn making(case: &Case, terms: &mut Vec<String>) {
    if case.data != Data::default() {
        terms.push(format!("data={}", case.data));
    }
    if case.magnitude != 1.0 {
        terms.push(format!("mag={}", number(case.magnitude)));
    }
    if case.logit_shift != 0.0 {
        terms.push(format!("shift={}", number(case.logit_shift)));
    }
    if case.paging != Paging::default() {
        terms.push(format!("paging={}", case.paging.name()));
    }
    if !case.problem.wants_lse && case.problem.op != Op::Store {
        terms.push("nolse".to_owned());
    }
    if let Some(defect) = case.defect {
        terms.push(format!("bad={}", defect.name()));
    }
    if let Expectation::Reject { argument } = &case.expectation {
        terms.push(format!("expect=reject:{argument}"));
    }
    if let Some(relation) = case.relation {
        terms.push(format!("relation={}", relation.name()));
    }
    if let Some(limit) = case.within {
        terms.push(format!("within={}", number(limit)));
    }
    terms.push(format!("seed={}", case.seed));
}

/// A float as short as it can be written and read back.
fn number(x: f32) -> String {
    let text = format!("{x:?}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

fn limit(limit: Option<i64>) -> String {
    limit.map_or_else(|| "-".to_owned(), |l| l.to_string())
}

/// `[1,2,3]`, with runs of three or more equal items written `itemxcount`.
fn list<T: Display + PartialEq>(items: &[T]) -> String {
    let mut text = String::from("[");
    let mut rest = items;
    while let Some(first) = rest.first() {
        let run = rest.iter().take_while(|item| *item == first).count();
        let taken = if run >= 3 { run } else { 1 };
        if text.len() > 1 {
            text.push(',');
        }
        let _ = write!(text, "{first}");
        if taken > 1 {
            let _ = write!(text, "x{taken}");
        }
        rest = &rest[taken..];
    }
    text.push(']');
    text
}
