//! The impostors, by kind.

mod addressing;
mod basic;
mod masks;
mod numbers;
mod options;
mod refusals;
mod rows;
mod splits;
mod stores;

use super::recipe::Recipe;
use super::{Behaviour, Impostor, Kind};
use crate::case::{Case, Expectation};
use crate::problem::{Op, Problem, Scale};

/// Every impostor, in the order of kinds.
#[must_use]
pub fn all() -> Vec<Impostor> {
    let mut all = [
        basic::impostors(),
        addressing::impostors(),
        masks::impostors(),
        splits::impostors(),
        options::impostors(),
        numbers::impostors(),
        stores::impostors(),
        refusals::impostors(),
        rows::impostors(),
    ]
    .concat();
    all.sort_by_key(|impostor| impostor.kind);
    all
}

/// An impostor of valid attention cases.
fn attention(
    name: &'static str,
    kind: Kind,
    wrong: &'static str,
    applies: fn(&Case) -> bool,
    recipe: Recipe,
) -> Impostor {
    Impostor { name, kind, wrong, blunt: false, applies, behaviour: Behaviour::Attention(recipe) }
}

impl Impostor {
    /// The same, marked as wrong wherever there is anything to be wrong about.
    fn blunt(self) -> Self {
        Self { blunt: true, ..self }
    }

    /// Whether it takes part in a case at all.
    #[must_use]
    pub fn takes_part(&self, case: &Case) -> bool {
        let is_store = case.problem.op == Op::Store;
        let valid = case.expectation == Expectation::Valid;
        let fits = match self.behaviour {
            Behaviour::Attention(_) => valid && !is_store,
            Behaviour::Store(_) => valid && is_store,
            Behaviour::Reply(_) => true,
        };
        fits && (self.applies)(case)
    }
}

/// Always.
fn anywhere(_: &Case) -> bool {
    true
}

fn grouped(case: &Case) -> bool {
    case.problem.num_q_heads > case.problem.num_kv_heads
}

fn several_kv_heads(case: &Case) -> bool {
    case.problem.num_kv_heads > 1
}

fn several_requests(case: &Case) -> bool {
    case.problem.num_requests() > 1
}

fn has_fp8(case: &Case) -> bool {
    matches!(case.problem.cache_format, oracle::Format::E4m3 | oracle::Format::E5m2)
}

/// Whether a scale differs from one.
fn scaled(scale: &Scale) -> bool {
    scale.values().iter().any(|scale| *scale != 1.0)
}

/// Whether K's or V's scale differs between heads.
fn per_head(case: &Case) -> bool {
    let varies = |scale: &Scale| scale.values().windows(2).any(|pair| pair[0] != pair[1]);
    varies(&case.problem.k_scale) || varies(&case.problem.v_scale)
}

/// Whether some request has more rows than one.
fn several_rows(case: &Case) -> bool {
    case.problem.query_lens.iter().any(|len| *len > 1)
}

/// Whether some request ends inside a page.
fn has_tail(problem: &Problem) -> bool {
    problem.kv_lens.iter().any(|len| !len.is_multiple_of(problem.page_size.max(1)))
}
