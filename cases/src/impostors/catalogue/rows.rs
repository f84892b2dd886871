//! Rows of q and out that are no slices of their own: kernels that compute where a row lies from its sizes alone.

use super::super::{Behaviour, Impostor, Kind};
use crate::case::Case;
use crate::executor::protocol::TensorSpec;
use crate::executor::{Job, Operation, Reply};
use crate::job::{packed, runs};
use crate::problem::Op;

fn writing(
    name: &'static str,
    wrong: &'static str,
    applies: fn(&Case) -> bool,
    change: fn(&Job, &mut Reply),
) -> Impostor {
    Impostor { name, kind: Kind::Strides, wrong, blunt: false, applies, behaviour: Behaviour::Reply(change) }
}

/// Rows of `out`, a head at a time, of a case whose rows are once laid out apart: a relation between runs has its own way of
/// judging.
fn rows(case: &Case) -> usize {
    let judged = case.problem.op != Op::Store && !case.must_reject() && case.relation.is_none();
    if judged { case.problem.total_query_rows() * case.problem.num_q_heads } else { 0 }
}

/// The specification of `out`, and its contents before and after.
fn out<'a>(job: &'a Job, reply: &'a mut Reply) -> Option<(&'a TensorSpec, &'a [u8], &'a mut Vec<u8>)> {
    let Operation::Attention { call, .. } = &job.operation else { return None };
    let buffer = call.out.buffer;
    let place = job.buffers[..buffer].iter().filter(|buffer| buffer.returned).count();
    Some((&call.out, &job.buffers[buffer].bytes, reply.buffers.get_mut(place)?))
}

pub(super) fn impostors() -> Vec<Impostor> {
    vec![
        writing(
            "out-stride-ignored",
            "writes the rows of out one after another",
            |case| rows(case) > 1,
            |job, reply| {
                if let Some((spec, before, after)) = out(job, reply) {
                    let elements = packed(spec, after);
                    let first = spec.offset as usize;
                    after.copy_from_slice(before);
                    after[first..first + elements.len()].copy_from_slice(&elements);
                }
            },
        ),
        writing(
            "out-gaps-cleared",
            "writes zeros behind every row of out",
            |case| rows(case) > 0,
            |job, reply| {
                if let Some((spec, _, after)) = out(job, reply) {
                    let elements: Vec<_> =
                        runs(spec).into_iter().map(|run| (run.clone(), after[run].to_vec())).collect();
                    after[spec.offset as usize..].fill(0);
                    for (run, bytes) in elements {
                        after[run].copy_from_slice(&bytes);
                    }
                }
            },
        ),
    ]
}
