//! Paged attention as a list of decisions, each of which an impostor can take wrongly.
//!
//! [`HONEST`] takes all of them rightly, in f64; an impostor is that recipe with one decision replaced.

use std::ops::Range;

use ndarray::{Array1, Array2, Array3, ArrayView2, s};
use oracle::{Format, Mask};

use super::call::{Call, Side, scale_of};

/// One query row of one head.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub request: usize,
    /// Index in the request.
    pub index: usize,
    pub head: usize,
    pub q_len: usize,
    pub kv_len: usize,
}

impl Row {
    /// Position among the keys, bottom-right aligned.
    pub fn position(&self) -> i64 {
        self.kv_len as i64 - self.q_len as i64 + self.index as i64
    }

    /// The visibility rule of the row's request.
    pub fn mask(&self, call: &Call<'_>) -> Mask {
        Mask {
            q_len: self.q_len as i64,
            kv_len: self.kv_len as i64,
            causal: call.causal,
            window_left: call.window_left,
            window_right: call.window_right,
        }
    }
}

/// What the last step of a row works on.
pub(super) struct Scores<'a> {
    pub call: &'a Call<'a>,
    pub row: Row,
    /// The first key that counts.
    pub first: usize,
    /// Logits of the keys that count.
    pub logits: Vec<f64>,
    pub sink: Option<f64>,
    /// V of the row's KV head from key 0 on, unscaled, to the end of the last page at least.
    pub values: ArrayView2<'a, f64>,
    /// Plain dot products with every key that `values` has.
    pub dots: &'a [f64],
}

/// Output before `v_scale`, and lse.
pub(super) struct RowAnswer {
    pub out: Array1<f64>,
    pub lse: f64,
}

/// What the kernel leaves.
pub(super) struct Answer {
    /// `[total_q, num_q_heads, head_dim_v]`.
    pub out: Array3<f64>,
    /// `[total_q, num_q_heads]`.
    pub lse: Array2<f64>,
    /// Rows and heads whose output is written at all.
    pub writes_out: Array2<bool>,
    /// Rows and heads whose lse is written at all.
    pub writes_lse: Array2<bool>,
}

/// Every decision of a paged-attention kernel.
#[derive(Clone, Copy)]
pub(super) struct Recipe {
    /// Keys of a request.
    pub kv_len: fn(&Call<'_>, usize) -> usize,
    /// Row of q and out that belongs to a row of a request.
    pub query_row: fn(&Call<'_>, usize, usize) -> usize,
    /// Logical page and slot of a key.
    pub locate: fn(&Call<'_>, usize) -> (usize, usize),
    /// Physical page of a request's logical page.
    pub page: fn(&Call<'_>, usize, usize) -> usize,
    /// Code of an element of K.
    pub k_code: fn(&Call<'_>, Place) -> u32,
    /// Code of an element of V.
    pub v_code: fn(&Call<'_>, Place) -> u32,
    /// Value of a code.
    pub decode: fn(Format, u32) -> f32,
    /// KV head of a query head.
    pub kv_head: fn(&Call<'_>, usize) -> usize,
    /// Dims that the dot product covers.
    pub dims: fn(&Call<'_>) -> usize,
    /// Factor of the dot products of a query head.
    pub sigma: fn(&Call<'_>, usize) -> f64,
    /// Factor of the output of a query head.
    pub v_scale: fn(&Call<'_>, usize) -> f64,
    /// Keys that count.
    pub keys: fn(&Call<'_>, &Row) -> Range<usize>,
    /// Logit of a key from its scaled dot product.
    pub score: fn(&Call<'_>, &Row, usize, f64) -> f64,
    /// Sink of a query head.
    pub sink: fn(&Call<'_>, usize) -> Option<f64>,
    /// Softmax and weighted sum.
    pub attend: fn(&Scores<'_>) -> RowAnswer,
    /// A last look at everything.
    pub finish: fn(&Call<'_>, &mut Answer),
}

/// Where an element of the cache lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub page: usize,
    pub slot: usize,
    pub head: usize,
    pub dim: usize,
}

impl Place {
    /// The element's code in a side of the cache, found as its view says.
    pub fn code(self, side: &Side<'_>) -> u32 {
        side.code(side.index(self.page, self.slot, self.head, self.dim))
    }
}

/// The right way to do everything.
pub(super) const HONEST: Recipe = Recipe {
    kv_len: |call, request| call.seq_lens[request],
    query_row: |call, request, index| call.query_start_loc[request] + index,
    locate: |call, key| (key / call.page_size, key % call.page_size),
    page: |call, request, logical| call.entry(request, logical),
    k_code: |call, place| place.code(&call.k),
    v_code: |call, place| place.code(&call.v),
    decode: |format, code| format.decode(code),
    kv_head: |call, head| head / call.group(),
    dims: |call| call.k.dim,
    sigma: |call, head| call.softmax_scale * scale_of(&call.k_scales, head / call.group()),
    v_scale: |call, head| scale_of(&call.v_scales, head / call.group()),
    keys: |call, row| row.mask(call).visible_keys(row.position()),
    score: |call, row, key, scaled| biased(call, row, key, capped(call, scaled)),
    sink: |call, head| call.sinks.as_ref().map(|sinks| sinks[head]),
    attend: softmax,
    finish: |_, _| {},
};

/// c·tanh(s/c).
pub(super) fn capped(call: &Call<'_>, score: f64) -> f64 {
    call.softcap.map_or(score, |cap| cap * (score / cap).tanh())
}

/// s + slope·(j − p).
pub(super) fn biased(call: &Call<'_>, row: &Row, key: usize, score: f64) -> f64 {
    let slope = call.alibi_slopes.as_ref().map_or(0.0, |slopes| slopes[row.head]);
    score + slope * (key as i64 - row.position()) as f64
}

/// Softmax with the sink in the denominator, and the weighted sum of V.
pub(super) fn softmax(scores: &Scores<'_>) -> RowAnswer {
    let max = scores.logits.iter().copied().chain(scores.sink).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.logits.iter().map(|x| (x - max).exp()).collect();
    let total = weights.iter().sum::<f64>() + scores.sink.map_or(0.0, |sink| (sink - max).exp());
    if scores.logits.is_empty() && scores.sink.is_none() {
        return RowAnswer { out: Array1::zeros(scores.values.ncols()), lse: f64::NEG_INFINITY };
    }
    RowAnswer { out: scores.weighted(&weights) / total, lse: max + total.ln() }
}

impl Scores<'_> {
    /// Σ w_j v_j over the keys that count.
    pub fn weighted(&self, weights: &[f64]) -> Array1<f64> {
        let mut out = Array1::zeros(self.values.ncols());
        for (weight, key) in weights.iter().zip(self.first..) {
            out.scaled_add(*weight, &self.values.row(key));
        }
        out
    }

    /// The same row with some of its keys (indices among those that count), with or without the sink.
    pub fn part(&self, keys: Range<usize>, with_sink: bool) -> Scores<'_> {
        Scores {
            call: self.call,
            row: self.row,
            first: self.first + keys.start,
            logits: self.logits[keys].to_vec(),
            sink: self.sink.filter(|_| with_sink),
            values: self.values,
            dots: self.dots,
        }
    }
}

/// Computes a whole call.
pub(super) fn cook(recipe: &Recipe, call: &Call<'_>) -> Answer {
    let (rows, heads) = (call.q.dim().0, call.num_q_heads);
    let mut answer = Answer {
        out: Array3::zeros((rows, heads, call.v.dim)),
        lse: Array2::zeros((rows, heads)),
        writes_out: Array2::from_elem((rows, heads), false),
        writes_lse: Array2::from_elem((rows, heads), false),
    };
    for request in 0..call.num_requests() {
        cook_request(recipe, call, request, &mut answer);
    }
    (recipe.finish)(call, &mut answer);
    answer
}

fn cook_request(recipe: &Recipe, call: &Call<'_>, request: usize, answer: &mut Answer) {
    let (q_len, kv_len) = (call.query_len(request), (recipe.kv_len)(call, request));
    // Past the last key to the end of its page, and one key more: what wrong kernels touch.
    let reach = (kv_len.div_ceil(call.page_size) * call.page_size).max(kv_len + 1).min(call.capacity());
    let mut gathered: Option<(usize, Array2<f64>, Array2<f64>)> = None;
    for head in (0..call.num_q_heads).filter(|_| q_len > 0) {
        let kv_head = (recipe.kv_head)(call, head);
        if gathered.as_ref().is_none_or(|(of, ..)| *of != kv_head) {
            let k = gather(recipe, call, request, kv_head, (reach, call.k.dim), recipe.k_code, call.k.format);
            let v = gather(recipe, call, request, kv_head, (reach, call.v.dim), recipe.v_code, call.v.format);
            gathered = Some((kv_head, k, v));
        }
        let Some((_, k, v)) = &gathered else { continue };
        cook_head(recipe, call, Row { request, index: 0, head, q_len, kv_len }, (k, v), answer);
    }
}

/// K or V of one head of a request, `[keys, dim]`.
fn gather(
    recipe: &Recipe,
    call: &Call<'_>,
    request: usize,
    head: usize,
    dims: (usize, usize),
    code: fn(&Call<'_>, Place) -> u32,
    format: Format,
) -> Array2<f64> {
    let mut values = Array2::zeros(dims);
    for (key, mut row) in values.outer_iter_mut().enumerate() {
        let (logical, slot) = (recipe.locate)(call, key);
        let page = (recipe.page)(call, request, logical);
        for (dim, value) in row.iter_mut().enumerate() {
            let place = Place { page, slot, head, dim };
            *value = f64::from((recipe.decode)(format, code(call, place)));
        }
    }
    values
}

fn cook_head(
    recipe: &Recipe,
    call: &Call<'_>,
    first: Row,
    (k, v): (&Array2<f64>, &Array2<f64>),
    answer: &mut Answer,
) {
    let head = first.head;
    let dims = (recipe.dims)(call);
    let (sigma, v_scale) = ((recipe.sigma)(call, head), (recipe.v_scale)(call, head));
    for index in 0..first.q_len {
        let row = Row { index, ..first };
        let place = (recipe.query_row)(call, row.request, index).min(call.q.dim().0 - 1);
        let q = call.q.slice(s![place, head, ..dims]);
        let dots = k.slice(s![.., ..dims]).dot(&q).to_vec();
        let keys = (recipe.keys)(call, &row);
        let keys = keys.start.min(dots.len())..keys.end.min(dots.len());
        let score = |key: usize| (recipe.score)(call, &row, key, sigma * dots[key]);
        let scores = Scores {
            call,
            row,
            first: keys.start,
            logits: keys.map(score).collect(),
            sink: (recipe.sink)(call, head),
            values: v.view(),
            dots: &dots,
        };
        let RowAnswer { out, lse } = (recipe.attend)(&scores);
        answer.out.slice_mut(s![place, head, ..]).assign(&(out * v_scale));
        answer.lse[[place, head]] = lse;
        answer.writes_out[[place, head]] = true;
        answer.writes_lse[[place, head]] = true;
    }
}
