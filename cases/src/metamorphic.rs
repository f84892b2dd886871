//! Relations between several runs of one kernel: what must not matter is changed, and the output must not; what must
//! matter is changed, and it must.
//!
//! They need no reference to be meaningful, so they also hold where a bound is wide; where a relation is exact, it is
//! checked bit for bit.

mod arrangement;
mod options;
mod scales;

use oracle::{OracleError, Reference};

use crate::case::{Case, Relation};
use crate::inputs::Inputs;
use crate::judge::{AttentionOutput, judge_attention};
use crate::problem::Problem;
use crate::reference::references;
use crate::run::Prepared;
use crate::verdict::{Failure, Verdict};

/// Runs a case with given inputs and, if one is given, a fixed number of splits.
pub type Attend<'a> = dyn FnMut(&Case, &Inputs, Option<u64>) -> Result<AttentionOutput, Verdict> + 'a;

/// What a relation works with.
struct Setting<'a, 'b> {
    case: &'a Case,
    arm: &'a str,
    inputs: &'a Inputs,
    references: &'a [Reference],
    attend: &'a mut Attend<'b>,
    /// The case as it is.
    base: AttentionOutput,
}

/// Checks a relation. Returns what fails, and the largest share of the bound that the case itself used.
///
/// # Errors
/// A verdict reached before the relation could be checked.
pub fn hold(
    case: &Case,
    relation: Relation,
    arm: &str,
    prepared: &Prepared,
    attend: &mut Attend<'_>,
) -> Result<(Vec<Failure>, f64), Verdict> {
    let Prepared { inputs, references } = prepared;
    let base = attend(case, inputs, None)?;
    let (failures, share) = judge_attention(case, inputs, references, &base).map_err(impossible)?;
    if !failures.is_empty() {
        return Ok((failures, share));
    }
    let mut setting = Setting { case, arm, inputs, references, attend, base };
    let failures = match relation {
        Relation::PermutePages => setting.permute_pages(),
        Relation::Repage => setting.repage(),
        Relation::Reorder => setting.reorder(),
        Relation::Solo => setting.solo(),
        Relation::Chunks => setting.chunks(),
        Relation::LastRow => setting.last_row(),
        Relation::Splits => setting.splits(),
        Relation::Heads => setting.heads(),
        Relation::Shift => setting.shift(),
        Relation::KScale => setting.k_scale(),
        Relation::VScale => setting.v_scale(),
        Relation::Live => setting.live(),
        Relation::Unlimited => setting.unlimited(),
    }?;
    Ok((failures, share))
}

type Step<T> = Result<T, Verdict>;

impl Setting<'_, '_> {
    /// Judges another case's run by its own reference.
    fn judge(&self, case: &Case, inputs: &Inputs, output: &AttentionOutput) -> Step<Vec<Failure>> {
        let references = references(case, inputs, self.arm).map_err(impossible)?;
        Ok(judge_attention(case, inputs, &references, output).map_err(impossible)?.0)
    }
}

/// A relation that cannot be checked for want of a reference is a mistake in the case.
fn impossible(error: OracleError) -> Verdict {
    Verdict::Environment { message: format!("the relation cannot be checked: {error}") }
}

/// A case that does not have what its relation is about.
fn pointless(what: &str) -> Vec<Failure> {
    vec![Failure::Probe { message: format!("the case cannot show the relation: {what}"), wrong: 0, of: 0 }]
}

/// Bytes of a row of `out` (all heads), and of a row of lse.
fn row_bytes(problem: &Problem) -> (usize, usize) {
    let heads = problem.num_q_heads;
    (heads * problem.head_dim_v * problem.query_format.size_bytes(), heads * 4)
}

/// Some rows of an output.
fn rows(problem: &Problem, output: &AttentionOutput, rows: std::ops::Range<usize>) -> AttentionOutput {
    let (out, lse) = row_bytes(problem);
    AttentionOutput {
        out: output.out[rows.start * out..rows.end * out].to_vec(),
        lse: output.lse.as_ref().map(|bytes| bytes[rows.start * lse..rows.end * lse].to_vec()),
    }
}

/// Outputs one after another.
fn joined(parts: Vec<AttentionOutput>) -> AttentionOutput {
    let lse: Option<Vec<Vec<u8>>> = parts.iter().map(|part| part.lse.clone()).collect();
    AttentionOutput {
        out: parts.into_iter().flat_map(|part| part.out).collect(),
        lse: lse.map(|parts| parts.concat()),
    }
}
