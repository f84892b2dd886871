//! The error bound of a case, where it is loosest, and what it is made of there.

use ndarray::s;
use oracle::{BoundModel, OracleError, Reference, Request, Rows, attend_f64};

use crate::case::Case;
use crate::inputs::Inputs;
use crate::reference::{attention_options, bound_model, references};

/// An output element.
#[derive(Clone, Copy)]
struct Element {
    request: usize,
    row: usize,
    head: usize,
    dim: usize,
    want: f64,
    allowed: f64,
}

/// The bound of a case on an arm, in lines.
pub(super) fn lines(case: &Case, inputs: &Inputs, arm: &str) -> Result<Vec<String>, OracleError> {
    let references = references(case, inputs, arm)?;
    let Some(worst) = loosest(&references) else {
        return Ok(vec!["no finite output element has an error to allow".to_owned()]);
    };
    let mut lines = Vec::new();
    let Element { request, row, head, dim, want, allowed } = worst;
    lines.push(format!(
        "loosest at request {request}, row {row}, head {head}, dim {dim}: {want:.6e} ± {allowed:.2e}"
    ));
    let full = bound_model(case, inputs, arm);
    let total = allowed_with(case, inputs, &full, &worst)?;
    let mut rest = total;
    for (name, without) in parts(&full) {
        let part = total - allowed_with(case, inputs, &without, &worst)?;
        rest -= part;
        lines.push(part_line(name, part, total));
    }
    lines.push(part_line("the rest: exponentials, rescaling and sums in f32", rest, total));
    let lse = references[request].rows.iter().position(|r| *r == row).map(|index| {
        let reference = &references[request];
        format!(
            "lse there: {:.6e} ± {:.2e}",
            reference.lse[[index, head]],
            reference.lse_bound[[index, head]]
        )
    });
    lines.extend(lse);
    lines.push(detection(&references));
    let eta = references.iter().map(|reference| reference.max_eta).fold(0.0, f64::max);
    let meaning = if eta > 0.1 { "; beyond 0.1 a first-order bound means nothing" } else { "" };
    lines.push(format!("largest relative error of a single weight {eta:.1e}{meaning}"));
    Ok(lines)
}

/// The bound without one of its terms each.
fn parts(full: &BoundModel) -> [(&'static str, BoundModel); 3] {
    [
        ("rounding of P", BoundModel { p_unit_roundoff: 0.0, ..*full }),
        ("weights of P that underflow", BoundModel { p_underflow: 0.0, ..*full }),
        ("dot products", BoundModel { grid_inputs: true, ..*full }),
    ]
}

fn part_line(name: &str, part: f64, total: f64) -> String {
    format!("  {part:.2e} ({:.1}%) {name}", 100.0 * part / total)
}

fn loosest(references: &[Reference]) -> Option<Element> {
    let mut worst: Option<Element> = None;
    for (request, reference) in references.iter().enumerate() {
        for ((index, head, dim), &allowed) in reference.bound.indexed_iter() {
            let want = reference.out[[index, head, dim]];
            let looser = worst.is_none_or(|worst| allowed > worst.allowed);
            if looser && allowed > 0.0 && allowed.is_finite() && want.is_finite() {
                worst = Some(Element { request, row: reference.rows[index], head, dim, want, allowed });
            }
        }
    }
    worst
}

/// The bound of one element under another model.
fn allowed_with(case: &Case, inputs: &Inputs, model: &BoundModel, at: &Element) -> Result<f64, OracleError> {
    let lens = &case.problem.query_lens;
    let first: usize = lens[..at.request].iter().sum();
    let request = Request {
        q: inputs.query.slice(s![first..first + lens[at.request], .., ..]),
        k: inputs.keys[at.request].view(),
        v: inputs.values[at.request].view(),
    };
    let options = attention_options(case, inputs);
    let reference = attend_f64(&request, &options, model, Rows::Sample(&[at.row]))?;
    Ok(reference.bound[[0, at.head, at.dim]])
}

/// How much of the output a kernel must really compute: elements that are farther from 0 than their bound.
fn detection(references: &[Reference]) -> String {
    let (mut told, mut all) = (0_usize, 0_usize);
    for reference in references {
        let pairs = reference.out.iter().zip(&reference.bound);
        told += pairs.filter(|(want, allowed)| want.abs() > **allowed).count();
        all += reference.out.len();
    }
    let percent = 100.0 * told as f64 / all.max(1) as f64;
    format!("zeros would be noticed in {told} of {all} elements ({percent:.0}%)")
}
