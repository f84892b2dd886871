//! Judging attention calls of a running model: stored codes bit for bit, outputs against the oracle.

use std::time::Duration;

use kernels::launch::Launched;
use ndarray::{Array2, Array3, Axis, s};
use oracle::{
    AttentionOptions, BoundModel, Comparison, Format, PagedView, Reference, Request, Rows, attend, compare,
    compare_lse, store_code,
};

use super::batch::Batch;
use super::error::ModelError;
use super::gguf::Config;
use super::kv::KvCache;

/// Of a sampled run, one call in so many is judged. The layers take turns.
const SAMPLED_LAYERS: usize = 8;
/// Rows of each request of a sampled call.
const SAMPLED_ROWS: usize = 8;
/// Failures that are told in full.
const TOLD: usize = 5;
/// The shortest key tile of any kernel.
const KEY_TILE: usize = 16;
/// Beyond this relative error of a weight, the bound, which is of first order, means nothing.
const MEANINGFUL_ETA: f64 = 0.1;

/// Which attention calls are judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checks {
    /// None.
    None,
    /// One in eight, the layers taking turns, and of each request at most eight rows.
    #[default]
    Sampled,
    /// Every row of every call.
    All,
}

/// What has been found about one layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerRecord {
    /// Calls judged.
    pub calls: usize,
    /// Output elements compared.
    pub elements: usize,
    /// Largest share of its bound that an element of the output or an lse used.
    pub worst_share: f64,
}

/// One finished attention call of one layer.
pub struct Call<'c> {
    /// The layer.
    pub layer: usize,
    /// What served it.
    pub launched: &'c Launched,
    /// Its requests.
    pub batch: &'c Batch,
    /// `[rows, num_q_heads, head_dim]` as the device got it.
    pub q: &'c [u8],
    /// `[rows, num_q_heads, head_dim]` as the device left it.
    pub out: &'c [u8],
    /// f32 `[rows, num_q_heads]` as the device left it.
    pub lse: &'c [u8],
    /// The layer's cache as the device left it.
    pub stored: &'c [u8],
}

/// Judges calls and remembers what it found.
pub struct Judge {
    checks: Checks,
    steps: usize,
    /// What the bytes of each layer's cache should be. Filled when the layer is first stored to.
    expected: Vec<Vec<u8>>,
    /// One per layer.
    pub layers: Vec<LayerRecord>,
    /// Attention calls made, judged or not.
    pub calls: usize,
    /// Verdicts against a call.
    pub mismatches: usize,
    /// The first of them, in words.
    pub told: Vec<String>,
    /// Time that judging took.
    pub spent: Duration,
}

impl Judge {
    /// A judge of a model's calls.
    #[must_use]
    pub fn new(checks: Checks, config: &Config) -> Self {
        Self {
            checks,
            steps: 0,
            expected: vec![Vec::new(); config.layers],
            layers: vec![LayerRecord::default(); config.layers],
            calls: 0,
            mismatches: 0,
            told: Vec::new(),
            spent: Duration::ZERO,
        }
    }

    /// Calls judged.
    #[must_use]
    pub fn judged(&self) -> usize {
        self.layers.iter().map(|layer| layer.calls).sum()
    }

    /// Output elements compared.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.layers.iter().map(|layer| layer.elements).sum()
    }

    /// Largest share of its bound that any element used.
    #[must_use]
    pub fn worst_share(&self) -> f64 {
        self.layers.iter().fold(0.0, |worst, layer| worst.max(layer.worst_share))
    }

    /// All mismatches in words, the first ones in full; `None` if there are none.
    #[must_use]
    pub fn accusation(&self) -> Option<String> {
        (self.mismatches > 0).then(|| format!("{} mismatches\n{}", self.mismatches, self.told.join("\n")))
    }

    pub(super) fn begin_step(&mut self) {
        self.steps += 1;
    }

    /// Whether the next call of a layer will be judged.
    pub(super) fn wants(&self, layer: usize) -> bool {
        match self.checks {
            Checks::None => false,
            Checks::Sampled => (layer + self.steps).is_multiple_of(SAMPLED_LAYERS),
            Checks::All => true,
        }
    }

    /// Notes what a store should have written: the bytes of `[rows, num_kv_heads, head_dim]` keys and values.
    pub(super) fn remember(&mut self, layer: usize, cache: &KvCache, batch: &Batch, rows: [&[u8]; 2]) {
        self.calls += 1;
        if self.checks == Checks::None {
            return;
        }
        let format = cache.format;
        let expected = &mut self.expected[layer];
        if expected.is_empty() {
            *expected = vec![super::kv::POISON; cache.views.k_elements * format.size_bytes()];
        }
        let scales = &cache.layers[layer].host_scales;
        for ((view, bytes), scales) in [&cache.views.k, &cache.views.v].into_iter().zip(rows).zip(scales) {
            let values = cache.presents().decode_bytes(bytes);
            for (row, &slot) in values.chunks_exact(view.heads * view.dim).zip(&batch.slots) {
                expect_row(expected, view, format, slot as usize, row, scales);
            }
        }
    }

    /// Judges a call.
    ///
    /// # Errors
    /// If the reference refuses the problem; a wrong answer is no error but a mismatch that is remembered.
    pub(super) fn call(
        &mut self,
        cache: &KvCache,
        config: &Config,
        call: &Call<'_>,
    ) -> Result<(), ModelError> {
        self.layers[call.layer].calls += 1;
        if let Some(place) = first_difference(&self.expected[call.layer], call.stored, cache) {
            self.accuse(call, &format!("stored codes differ: {place}"));
        }
        let presented = cache.presents();
        let q = decoded(call.q, presented, (call.batch.rows(), config.num_q_heads, config.head_dim));
        let out = decoded(call.out, presented, q.dim());
        let lse = Array2::from_shape_vec((q.dim().0, q.dim().1), Format::F32.decode_bytes(call.lse))
            .expect("an lse comes back as long as it was allocated");
        for (request, first) in call.batch.first_rows().enumerate() {
            let rows = first..first + call.batch.query_lens[request];
            let q = q.slice(s![rows.clone(), .., ..]);
            let k = gather(call, request, &cache.views.k, cache.format);
            let v = gather(call, request, &cache.views.v, cache.format);
            let problem = Request { q, k: k.view(), v: v.view() };
            let reference = self.reference(&problem, cache, config, call)?;
            let pick = |axis_rows: ndarray::ArrayView3<'_, f32>| axis_rows.select(Axis(0), &reference.rows);
            let got = pick(out.slice(s![rows.clone(), .., ..]));
            let comparison = compare(got.view(), &reference, presented)?;
            self.take(call, request, "out", &comparison);
            let got = lse.slice(s![rows, ..]).select(Axis(0), &reference.rows);
            let comparison = compare_lse(got.view(), &reference)?;
            self.take(call, request, "lse", &comparison);
            if reference.max_eta > MEANINGFUL_ETA {
                let words =
                    format!("request {request}: the bound means nothing (eta {:.2})", reference.max_eta);
                self.accuse(call, &words);
            }
        }
        Ok(())
    }

    fn reference(
        &self,
        problem: &Request<'_>,
        cache: &KvCache,
        config: &Config,
        call: &Call<'_>,
    ) -> Result<Reference, ModelError> {
        let [k_scale, v_scale] = cache.layers[call.layer].host_scales.clone();
        let scale = f64::from(1.0 / (config.head_dim as f32).sqrt());
        let options = AttentionOptions { k_scale, v_scale, ..AttentionOptions::causal(scale) };
        let model = BoundModel::new(p_format(call.launched, cache), KEY_TILE);
        let sample = spread(problem.q.dim().0, SAMPLED_ROWS);
        let rows = if self.checks == Checks::All { Rows::All } else { Rows::Sample(&sample) };
        Ok(attend(problem, &options, &model, rows)?)
    }

    fn take(&mut self, call: &Call<'_>, request: usize, output: &str, comparison: &Comparison) {
        let layer = &mut self.layers[call.layer];
        layer.elements += if output == "out" { comparison.elements } else { 0 };
        layer.worst_share = layer.worst_share.max(comparison.worst_share);
        if let Some(worst) = comparison.worst.filter(|_| !comparison.passes()) {
            let pattern = comparison.pattern.as_ref().map(|p| format!("; pattern: {p}")).unwrap_or_default();
            self.accuse(
                call,
                &format!(
                    "{output}: {} of {} elements, worst at request {request}, {worst}{pattern}",
                    comparison.mismatches, comparison.elements
                ),
            );
        }
    }

    fn accuse(&mut self, call: &Call<'_>, what: &str) {
        self.mismatches += 1;
        if self.told.len() < TOLD {
            let Call { launched, layer, batch, .. } = call;
            let lens = (&batch.query_lens, &batch.seq_lens);
            self.told.push(format!(
                "{}, step {}, layer {layer}, q={:?} kv={:?}: {what}",
                launched.arm, self.steps, lens.0, lens.1
            ));
        }
    }
}

/// The format in which a call's kernel keeps P. Written down here, apart from the kernels, so that one that starts to round
/// more coarsely fails.
fn p_format(launched: &Launched, cache: &KvCache) -> Format {
    let ran = |entry: &str| launched.kernels.contains(&entry);
    match cache.format {
        _ if ran("scalar_attention") => Format::F32,
        Format::E4m3 | Format::E5m2 if ran("decode_attention") => Format::F16,
        _ => cache.presents(),
    }
}

fn decoded(bytes: &[u8], format: Format, dim: (usize, usize, usize)) -> Array3<f32> {
    Array3::from_shape_vec(dim, format.decode_bytes(bytes)).expect("rows come back as long as they were sent")
}

/// Writes the codes of one row where a store should put them.
fn expect_row(
    expected: &mut [u8],
    view: &PagedView,
    format: Format,
    slot: usize,
    row: &[f32],
    scales: &[f32],
) {
    let size = format.size_bytes();
    for (head, values) in row.chunks_exact(view.dim).enumerate() {
        let scale = scales[head % scales.len()];
        let start = view.index(slot / view.page_size, slot % view.page_size, head, 0) * size;
        for (code, &value) in expected[start..].chunks_exact_mut(size).zip(values) {
            code.copy_from_slice(&store_code(format, value, scale).to_le_bytes()[..size]);
        }
    }
}

/// Keys or values of one request as they are stored, `[kv_len, num_kv_heads, head_dim]`, unscaled.
fn gather(call: &Call<'_>, request: usize, view: &PagedView, format: Format) -> Array3<f32> {
    let size = format.size_bytes();
    let len = call.batch.seq_lens[request];
    let mut values = Vec::with_capacity(len * view.heads * view.dim);
    for position in 0..len {
        let page = call.batch.pages[request][position / view.page_size] as usize;
        for head in 0..view.heads {
            let start = view.index(page, position % view.page_size, head, 0) * size;
            values.extend(format.decode_bytes(&call.stored[start..start + view.dim * size]));
        }
    }
    Array3::from_shape_vec((len, view.heads, view.dim), values).expect("as many values as were pushed")
}

/// The first byte that is not what it should be, owned by a token or not, in words.
fn first_difference(expected: &[u8], stored: &[u8], cache: &KvCache) -> Option<String> {
    let differing = expected.iter().zip(stored).filter(|(a, b)| a != b).count();
    let byte = expected.iter().zip(stored).position(|(a, b)| a != b)?;
    let element = byte / cache.format.size_bytes();
    let (name, view) =
        if element < cache.views.v.offset { ("K", &cache.views.k) } else { ("V", &cache.views.v) };
    let inside = element - view.offset;
    let (page, inside) = (inside / view.page_stride, inside % view.page_stride);
    let (slot, inside) = (inside / view.slot_stride, inside % view.slot_stride);
    let (head, dim) = (inside / view.head_stride, inside % view.head_stride);
    Some(format!(
        "{differing} bytes, first {name} page {page}, slot {slot}, head {head}, dim {dim}: \
         0x{:02x}, expected 0x{:02x}",
        stored[byte], expected[byte]
    ))
}

/// At most `most` of the rows `0..rows`, both ends included.
fn spread(rows: usize, most: usize) -> Vec<usize> {
    let count = rows.min(most);
    (0..count).map(|i| if count == 1 { rows - 1 } else { i * (rows - 1) / (count - 1) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_of_rows_has_both_ends_and_no_row_twice() {
        for rows in 1..40 {
            let sample = spread(rows, SAMPLED_ROWS);
            assert_eq!(sample.last(), Some(&(rows - 1)), "{rows}");
            assert!(sample.windows(2).all(|pair| pair[0] < pair[1]), "{rows}: {sample:?}");
            assert!(rows == 1 || sample[0] == 0);
            assert_eq!(sample.len(), rows.min(SAMPLED_ROWS));
        }
        assert!(spread(0, SAMPLED_ROWS).is_empty());
    }
}
