//! The same numbers in another arrangement: other pages, other requests, fewer rows, fewer heads.

use std::ops::Range;

use ndarray::{Array3, Axis, s};
use oracle::OracleError;

use super::{Inputs, PageMap, Stream, passed, rng, starts};
use crate::case::Case;
use crate::problem::Scale;

/// Some rows of a request, with its first keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The request they are taken from.
    pub request: usize,
    /// Its query rows.
    pub rows: Range<usize>,
    /// How many of its keys; the last row stands at the last of them.
    pub kv_len: usize,
}

/// What a batch is rearranged into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrangement {
    /// The new batch.
    pub parts: Vec<Part>,
    /// KV heads that are kept, with their query heads.
    pub kv_heads: Range<usize>,
    /// Slots of a page.
    pub page_size: usize,
    /// Seed of the new page order.
    pub seed: u64,
}

impl Arrangement {
    /// Everything as it is, on other pages.
    #[must_use]
    pub fn of(case: &Case) -> Self {
        let problem = &case.problem;
        let lens = problem.query_lens.iter().zip(&problem.kv_lens).enumerate();
        Self {
            parts: lens.map(|(request, (q, kv))| Part { request, rows: 0..*q, kv_len: *kv }).collect(),
            kv_heads: 0..problem.num_kv_heads,
            page_size: problem.page_size,
            seed: case.seed.wrapping_add(1),
        }
    }
}

impl Inputs {
    /// The case and its inputs in another arrangement. No value is generated or rounded anew.
    ///
    /// # Errors
    /// If the cache cannot be laid out.
    ///
    /// # Panics
    /// If the arrangement asks for rows, keys or heads that the case does not have.
    pub fn rearranged(&self, case: &Case, to: &Arrangement) -> Result<(Case, Self), OracleError> {
        let case = rearranged_case(case, to);
        let problem = &case.problem;
        let pages = PageMap::place(&case, &mut rng(&case, Stream::Pages));
        let views = problem.cache_views(pages.num_pages)?;
        let group = self.query.dim().1 / self.views.k.heads;
        let heads = to.kv_heads.start * group..to.kv_heads.end * group;
        let values = |of: &[Array3<f32>]| -> Vec<Array3<f32>> {
            let part = |p: &Part| of[p.request].slice(s![..p.kv_len, to.kv_heads.clone(), ..]).to_owned();
            to.parts.iter().map(part).collect()
        };
        let codes = |of: &[Vec<u8>], dim: usize| -> Vec<Vec<u8>> {
            let row = dim * self.cache_format.size_bytes();
            to.parts.iter().map(|p| self.some_codes(&of[p.request], row, p.kv_len, &to.kv_heads)).collect()
        };
        let of_heads = |all: &Option<Vec<f32>>| all.as_ref().map(|all| all[heads.clone()].to_vec());
        let inputs = Self {
            query: self.rows_of(to, &heads),
            keys: values(&self.keys),
            values: values(&self.values),
            pages,
            views,
            sinks: of_heads(&self.sinks),
            alibi_slopes: of_heads(&self.alibi_slopes),
            exact_products: self.exact_products,
            key_codes: codes(&self.key_codes, self.views.k.dim),
            value_codes: codes(&self.value_codes, self.views.v.dim),
            cache_format: self.cache_format,
            shares_buffer: self.shares_buffer,
            query_starts: starts(to.parts.iter().map(|part| part.rows.len())),
            passed: passed(&case.problem),
        };
        Ok((case, inputs))
    }

    fn rows_of(&self, to: &Arrangement, heads: &Range<usize>) -> Array3<f32> {
        let first = |part: &Part| self.query_starts[part.request];
        let rows: Vec<_> = to
            .parts
            .iter()
            .map(|part| {
                let rows = first(part) + part.rows.start..first(part) + part.rows.end;
                self.query.slice(s![rows, heads.clone(), ..])
            })
            .collect();
        match rows.is_empty() {
            true => Array3::zeros((0, heads.len(), self.query.dim().2)),
            false => ndarray::concatenate(Axis(0), &rows).expect("slices of one array fit each other"),
        }
    }

    /// Codes of the first keys of some heads; `row` bytes to a key and head.
    fn some_codes(&self, codes: &[u8], row: usize, kv_len: usize, kv_heads: &Range<usize>) -> Vec<u8> {
        let key = row * self.views.k.heads;
        let keys = codes.chunks_exact(key).take(kv_len);
        keys.flat_map(|key| &key[kv_heads.start * row..kv_heads.end * row]).copied().collect()
    }
}

fn rearranged_case(case: &Case, to: &Arrangement) -> Case {
    let mut case = case.clone();
    case.seed = to.seed;
    let problem = &mut case.problem;
    problem.query_lens = to.parts.iter().map(|part| part.rows.len()).collect();
    problem.kv_lens = to.parts.iter().map(|part| part.kv_len).collect();
    problem.page_size = to.page_size;
    let group = problem.num_q_heads / problem.num_kv_heads;
    problem.num_kv_heads = to.kv_heads.len();
    problem.num_q_heads = group * to.kv_heads.len();
    for scale in [&mut problem.k_scale, &mut problem.v_scale] {
        if let Scale::PerHead(scales) = scale {
            *scales = scales[to.kv_heads.clone()].to_vec();
        }
    }
    case
}
