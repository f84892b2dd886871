//! K and V of one KV head, rearranged so that the register tile reads memory in order.

use ndarray::{ArrayView2, ArrayView3, Axis};

use super::simd::{PANEL, Real};

/// Keys and values of one KV head in panels, padded with zeros to whole panels.
pub(super) struct HeadPanels<R> {
    /// `[key panel][k_dim][PANEL keys]`.
    k: Vec<[R; PANEL]>,
    /// `[dim panel][kv_len][PANEL dims]`.
    v: Vec<[R; PANEL]>,
    k_dim: usize,
    kv_len: usize,
    /// Keys whose K or V holds NaN or infinity, ascending. A product with weight 0 would spread those to rows
    /// that do not see the key, so tiles that meet one are left to the judge.
    not_finite: Vec<usize>,
}

impl<R: Real> HeadPanels<R> {
    /// Packs one head of K `[kv_len, num_kv_heads, k_dim]` and V.
    pub fn new(k: ArrayView3<'_, f32>, v: ArrayView3<'_, f32>, kv_head: usize) -> Self {
        let (k, v) = (k.index_axis(Axis(1), kv_head), v.index_axis(Axis(1), kv_head));
        let is_finite = |row: ArrayView2<'_, f32>, j: usize| row.row(j).iter().all(|x| x.is_finite());
        Self {
            k: pack_keys(k),
            v: pack_values(v),
            k_dim: k.ncols(),
            kv_len: k.nrows(),
            not_finite: (0..k.nrows()).filter(|&j| !is_finite(k, j) || !is_finite(v, j)).collect(),
        }
    }

    /// The panel of keys `PANEL·panel ..`, one step per dim.
    pub fn keys(&self, panel: usize) -> &[[R; PANEL]] {
        &self.k[panel * self.k_dim..][..self.k_dim]
    }

    /// The panel of dims `PANEL·panel ..`, one step per key of the range.
    pub fn values(&self, panel: usize, keys: std::ops::Range<usize>) -> &[[R; PANEL]] {
        &self.v[panel * self.kv_len..][keys]
    }

    /// Whether a key of the range holds NaN or infinity.
    pub fn any_not_finite(&self, keys: &std::ops::Range<usize>) -> bool {
        let next = self.not_finite.partition_point(|&j| j < keys.start);
        self.not_finite.get(next).is_some_and(|&j| j < keys.end)
    }
}

fn pack_keys<R: Real>(k: ArrayView2<'_, f32>) -> Vec<[R; PANEL]> {
    let k_dim = k.ncols();
    let mut panels = vec![[R::zero(); PANEL]; k.nrows().div_ceil(PANEL) * k_dim];
    for (j, key) in k.outer_iter().enumerate() {
        let panel = &mut panels[j / PANEL * k_dim..][..k_dim];
        for (step, &x) in panel.iter_mut().zip(key) {
            step[j % PANEL] = R::widen(x);
        }
    }
    panels
}

fn pack_values<R: Real>(v: ArrayView2<'_, f32>) -> Vec<[R; PANEL]> {
    let (kv_len, v_dim) = v.dim();
    let mut panels = vec![[R::zero(); PANEL]; v_dim.div_ceil(PANEL) * kv_len];
    for (j, value) in v.outer_iter().enumerate() {
        let value: &[f32] = &value.to_vec();
        for (panel, dims) in value.chunks(PANEL).enumerate() {
            for (to, &x) in panels[panel * kv_len + j].iter_mut().zip(dims) {
                *to = R::widen(x);
            }
        }
    }
    panels
}
