//! Relations about options: each must act, and an unlimited one must not.

use oracle::Reference;

use super::{Setting, Step, pointless};
use crate::case::Case;
use crate::inputs::Inputs;
use crate::judge::differences;
use crate::problem::{Options, Problem, Scale, Sinks};
use crate::reference::references;
use crate::verdict::Failure;

/// Name of an option, and the same case without it.
type Without = (&'static str, Case);

impl Setting<'_, '_> {
    /// Without any one of its options, the output must change wherever the right answer changes by more than both bounds.
    pub fn live(&mut self) -> Step<Vec<Failure>> {
        let all = without_each(self.case);
        if all.is_empty() {
            return Ok(pointless("it has no option"));
        }
        for (option, case) in all {
            let failures = self.acts(option, &case)?;
            if !failures.is_empty() {
                return Ok(failures);
            }
        }
        Ok(Vec::new())
    }

    fn acts(&mut self, option: &str, case: &Case) -> Step<Vec<Failure>> {
        let mut inputs: Inputs = self.inputs.clone();
        if case.problem.options.sinks == Sinks::Absent {
            inputs.sinks = None;
        }
        if !case.problem.options.alibi {
            inputs.alibi_slopes = None;
        }
        let others = references(case, &inputs, self.arm).map_err(super::impossible)?;
        let output = (self.attend)(case, &inputs, None)?;
        let size = self.case.problem.query_format.size_bytes();
        let must_change = changing(&self.case.problem, self.references, &others);
        if must_change.is_empty() {
            return Ok(pointless(&format!("without {option} the right answer is the same within the bound")));
        }
        let element = |bytes: &[u8], index: usize| bytes[index * size..][..size].to_vec();
        let dead = must_change
            .iter()
            .filter(|index| element(&self.base.out, **index) == element(&output.out, **index));
        let wrong = dead.count();
        let message = format!("{option} does not act: the output is the same without it");
        Ok((wrong > 0)
            .then_some(Failure::Probe { message, wrong, of: must_change.len() })
            .into_iter()
            .collect())
    }

    pub fn unlimited(&mut self) -> Step<Vec<Failure>> {
        let options = &self.case.problem.options;
        if options.window_left.is_some() || options.window_right.is_some() {
            return Ok(pointless("it has a window"));
        }
        for limit in [i64::MAX, i64::from(i32::MAX), 1 << 24] {
            let mut case = self.case.clone();
            case.problem.options.window_left = Some(limit);
            case.problem.options.window_right = Some(limit);
            let output = (self.attend)(&case, self.inputs, None)?;
            let on = format!("a window of {limit} in place of none");
            let failures = differences(&self.case.problem, &on, &self.base, &output);
            if !failures.is_empty() {
                return Ok(failures);
            }
        }
        Ok(Vec::new())
    }
}

/// Flat indices of output elements whose right answers lie further apart than both bounds and the rounding to the output
/// format allow.
fn changing(problem: &Problem, with: &[Reference], without: &[Reference]) -> Vec<usize> {
    let (heads, dim) = (problem.num_q_heads, problem.head_dim_v);
    let mut first = 0;
    let mut found = Vec::new();
    for ((a, b), q_len) in with.iter().zip(without).zip(&problem.query_lens) {
        for ((index, head, d), x) in a.out.indexed_iter() {
            let (place, y) = ([index, head, d], b.out[[index, head, d]]);
            let rounding = 2.0 * problem.query_format.unit_roundoff() * x.abs().max(y.abs());
            if (x - y).abs() > a.bound[place] + b.bound[place] + rounding {
                found.push(((first + a.rows[index]) * heads + head) * dim + d);
            }
        }
        first += q_len;
    }
    found
}

/// The case without each option that it has.
fn without_each(case: &Case) -> Vec<Without> {
    let mut all = Vec::new();
    let mut add = |name, has: bool, change: &dyn Fn(&mut Problem)| {
        if has {
            let mut case = case.clone();
            change(&mut case.problem);
            all.push((name, case));
        }
    };
    let Problem { options, k_scale, v_scale, .. } = &case.problem;
    let Options { causal, window_left, window_right, softcap, alibi, sinks, softmax_scale } = options;
    add("causal", *causal, &|p| p.options.causal = false);
    add("window_left", window_left.is_some(), &|p| p.options.window_left = None);
    add("window_right", window_right.is_some(), &|p| p.options.window_right = None);
    add("softcap", softcap.is_some(), &|p| p.options.softcap = None);
    add("alibi_slopes", *alibi, &|p| p.options.alibi = false);
    add("sinks", *sinks != Sinks::Absent, &|p| p.options.sinks = Sinks::Absent);
    add("softmax_scale", softmax_scale.is_some(), &|p| p.options.softmax_scale = None);
    add("k_scale", *k_scale != Scale::default(), &|p| p.k_scale = Scale::default());
    add("v_scale", *v_scale != Scale::default(), &|p| p.v_scale = Scale::default());
    all
}
