//! Relations about where things lie: pages, requests, rows, heads, splits.

use std::ops::Range;

use super::{Setting, Step, joined, pointless, rows};
use crate::inputs::{Arrangement, Part};
use crate::judge::{AttentionOutput, differences};
use crate::problem::{Op, Problem};
use crate::reference::VARYING_ARM;
use crate::verdict::Failure;

/// Page sizes that a case is cut into anew.
const PAGE_SIZES: [usize; 6] = [1, 5, 8, 16, 48, 64];
/// Numbers of splits that are forced.
const SPLITS: [u64; 14] = [1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 31, 32, 48, 64];

impl Setting<'_, '_> {
    pub fn permute_pages(&mut self) -> Step<Vec<Failure>> {
        for step in 1..=3 {
            let to = Arrangement { seed: self.case.seed.wrapping_add(step), ..Arrangement::of(self.case) };
            let failures = self.same_as_base(&to, "the order of pages in the pool")?;
            if !failures.is_empty() {
                return Ok(failures);
            }
        }
        Ok(Vec::new())
    }

    pub fn repage(&mut self) -> Step<Vec<Failure>> {
        for page_size in PAGE_SIZES.into_iter().filter(|size| *size != self.case.problem.page_size) {
            let to = Arrangement { page_size, ..Arrangement::of(self.case) };
            let on = format!("the page size ({} or {page_size})", self.case.problem.page_size);
            let failures = match self.arm == VARYING_ARM {
                true => self.right_by_itself(&to, None)?,
                false => self.same_as_base(&to, &on)?,
            };
            if !failures.is_empty() {
                return Ok(failures);
            }
        }
        Ok(Vec::new())
    }

    /// Runs an arrangement whose bits may be its own, and judges it by its own reference.
    fn right_by_itself(&mut self, to: &Arrangement, splits: Option<u64>) -> Step<Vec<Failure>> {
        let (case, inputs) = self.inputs.rearranged(self.case, to).map_err(super::impossible)?;
        let output = (self.attend)(&case, &inputs, splits)?;
        self.judge(&case, &inputs, &output)
    }

    /// Runs an arrangement that must give the base's bits.
    fn same_as_base(&mut self, to: &Arrangement, on: &str) -> Step<Vec<Failure>> {
        let output = self.run(to, None)?;
        Ok(differences(&self.case.problem, on, &self.base, &output))
    }

    fn run(&mut self, to: &Arrangement, splits: Option<u64>) -> Step<AttentionOutput> {
        let (case, inputs) = self.inputs.rearranged(self.case, to).map_err(super::impossible)?;
        (self.attend)(&case, &inputs, splits)
    }

    pub fn reorder(&mut self) -> Step<Vec<Failure>> {
        if self.case.problem.num_requests() < 2 {
            return Ok(pointless("it has one request"));
        }
        let mut to = Arrangement::of(self.case);
        to.parts.reverse();
        if self.arm == VARYING_ARM {
            return self.right_by_itself(&to, None);
        }
        let output = self.run(&to, None)?;
        let problem = &self.case.problem;
        let reversed =
            Problem { query_lens: problem.query_lens.iter().rev().copied().collect(), ..problem.clone() };
        let back = requests(&reversed).into_iter().rev().map(|range| rows(problem, &output, range));
        let output = joined(back.collect());
        Ok(differences(problem, "the order of requests in the batch", &self.base, &output))
    }

    /// Alone, a request gives the same bits when the number of splits is the same, and the same within the bound when the
    /// launch code chooses it. A single row out of a batch with longer queries takes the way of a decode when it is alone:
    /// another order of sums, so only the bound holds.
    pub fn solo(&mut self) -> Step<Vec<Failure>> {
        if self.case.problem.num_requests() < 2 {
            return Ok(pointless("it has one request"));
        }
        let unsplit = (self.attend)(self.case, self.inputs, Some(1))?;
        for (request, range) in requests(&self.case.problem).into_iter().enumerate() {
            let all = Arrangement::of(self.case);
            let to = Arrangement { parts: vec![all.parts[request].clone()], ..all };
            let (case, inputs) = self.inputs.rearranged(self.case, &to).map_err(super::impossible)?;
            let output = (self.attend)(&case, &inputs, Some(1))?;
            let on = format!("the other requests of the batch (request {request} alone)");
            let becomes_decode = range.len() == 1 && self.case.problem.query_lens.iter().any(|len| *len > 1);
            let mut failures = match becomes_decode || self.arm == VARYING_ARM {
                true => self.judge(&case, &inputs, &output)?,
                false => differences(&case.problem, &on, &rows(&self.case.problem, &unsplit, range), &output),
            };
            if failures.is_empty() {
                let output = (self.attend)(&case, &inputs, None)?;
                failures = self.judge(&case, &inputs, &output)?;
            }
            if !failures.is_empty() {
                return Ok(failures);
            }
        }
        Ok(Vec::new())
    }

    /// Every request in two chunks: the rows before the cut see no key after it.
    pub fn chunks(&mut self) -> Step<Vec<Failure>> {
        let problem = &self.case.problem;
        if !problem.options.causal || problem.query_lens.iter().all(|len| *len < 2) {
            return Ok(pointless("it is not causal, or no request has two rows"));
        }
        // A request without a first chunk still takes part in the batch.
        let cut = |part: &Part| part.rows.len() / 3;
        let all = Arrangement::of(self.case);
        let first = |part: &Part| {
            let rows = 0..cut(part);
            Part { kv_len: (part.kv_len + rows.end).saturating_sub(part.rows.len()), rows, ..part.clone() }
        };
        let last = |part: &Part| Part { rows: cut(part)..part.rows.end, ..part.clone() };
        let firsts = Arrangement { parts: all.parts.iter().map(first).collect(), ..all.clone() };
        let lasts = Arrangement { parts: all.parts.iter().map(last).collect(), ..all.clone() };
        let halves = [self.run(&firsts, None)?, self.run(&lasts, None)?];
        let problem = &self.case.problem;
        let starts = |of: &Arrangement| -> Vec<Range<usize>> {
            let query_lens = of.parts.iter().map(|part| part.rows.len()).collect();
            requests(&Problem { query_lens, ..problem.clone() })
        };
        let (a, b) = (starts(&firsts), starts(&lasts));
        let both = a
            .into_iter()
            .zip(b)
            .flat_map(|(a, b)| [rows(problem, &halves[0], a), rows(problem, &halves[1], b)]);
        let output = joined(both.collect());
        self.within_bound(&output, "the prefill in two chunks")
    }

    pub fn last_row(&mut self) -> Step<Vec<Failure>> {
        if self.case.problem.query_lens.contains(&0) {
            return Ok(pointless("a request has no row"));
        }
        let all = Arrangement::of(self.case);
        let last = |part: &Part| Part { rows: part.rows.end - 1..part.rows.end, ..part.clone() };
        let to = Arrangement { parts: all.parts.iter().map(last).collect(), ..all };
        let (mut case, inputs) = self.inputs.rearranged(self.case, &to).map_err(super::impossible)?;
        case.problem.op = Op::Decode;
        let output = (self.attend)(&case, &inputs, None)?;
        self.judge(&case, &inputs, &output)
    }

    pub fn splits(&mut self) -> Step<Vec<Failure>> {
        for splits in SPLITS {
            let output = (self.attend)(self.case, self.inputs, Some(splits))?;
            let failures = self.within_bound(&output, &format!("{splits} splits"))?;
            if !failures.is_empty() {
                return Ok(failures);
            }
        }
        Ok(Vec::new())
    }

    pub fn heads(&mut self) -> Step<Vec<Failure>> {
        let problem = &self.case.problem;
        if problem.num_kv_heads < 2 {
            return Ok(pointless("it has one KV head"));
        }
        let unsplit = (self.attend)(self.case, self.inputs, Some(1))?;
        for kv_head in 0..problem.num_kv_heads {
            let to = Arrangement { kv_heads: kv_head..kv_head + 1, ..Arrangement::of(self.case) };
            if self.arm == VARYING_ARM {
                let failures = self.right_by_itself(&to, Some(1))?;
                if !failures.is_empty() {
                    return Ok(failures);
                }
                continue;
            }
            let output = self.run(&to, Some(1))?;
            let group = problem.num_q_heads / problem.num_kv_heads;
            let part = heads(problem, &unsplit, kv_head * group..(kv_head + 1) * group);
            let on = format!("the other heads (KV head {kv_head} alone)");
            let alone = Problem { num_q_heads: group, num_kv_heads: 1, ..problem.clone() };
            let failures = differences(&alone, &on, &part, &output);
            if !failures.is_empty() {
                return Ok(failures);
            }
        }
        Ok(Vec::new())
    }

    /// Judges another way to the base's answer, and says which way it was.
    fn within_bound(&self, output: &AttentionOutput, way: &str) -> Step<Vec<Failure>> {
        let judged = crate::judge::judge_attention(self.case, self.inputs, self.references, output);
        let mut failures = judged.map_err(super::impossible)?.0;
        for failure in &mut failures {
            if let Failure::Elements { explanation, .. } = failure {
                let known = explanation.take().map(|text| format!("; {text}")).unwrap_or_default();
                *explanation = Some(format!("with {way}; the plain run is right{known}"));
            }
        }
        Ok(failures)
    }
}

/// Rows of each request in the batch.
fn requests(problem: &Problem) -> Vec<Range<usize>> {
    let mut first = 0;
    let range = |len: &usize| {
        first += len;
        first - len..first
    };
    problem.query_lens.iter().map(range).collect()
}

/// Some query heads of every row.
fn heads(problem: &Problem, output: &AttentionOutput, heads: Range<usize>) -> AttentionOutput {
    let take = |bytes: &[u8], head: usize| -> Vec<u8> {
        let rows = bytes.chunks_exact((problem.num_q_heads * head).max(1));
        rows.flat_map(|row| &row[heads.start * head..heads.end * head]).copied().collect()
    };
    AttentionOutput {
        out: take(&output.out, problem.head_dim_v * problem.query_format.size_bytes()),
        lse: output.lse.as_ref().map(|lse| take(lse, 4)),
    }
}
