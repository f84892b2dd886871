//! Joining partial attention states: what split-KV decode and chunked prefill must come to.

use ndarray::{Array2, Array3, ArrayView2, ArrayView3, Zip};

use crate::OracleError;

/// Attention over a part of the keys.
#[derive(Clone, Copy, Debug)]
pub struct PartialState<'a> {
    /// Normalised output over that part, `[rows, num_q_heads, v_dim]`.
    pub out: ArrayView3<'a, f64>,
    /// Natural logarithm of that part's denominator, `[rows, num_q_heads]`; −∞ for a part with no key.
    pub lse: ArrayView2<'a, f64>,
}

/// Attention over the union of the parts.
#[derive(Clone, Debug)]
pub struct MergedState {
    /// `[rows, num_q_heads, v_dim]`.
    pub out: Array3<f64>,
    /// `[rows, num_q_heads]`.
    pub lse: Array2<f64>,
}

/// Joins states over disjoint sets of keys. The order of the parts does not matter.
///
/// A part with lse −∞ has no key and contributes nothing, whatever its `out` holds, NaN included. Where every
/// part is empty, out is 0 and lse −∞. At most one part may have counted a sink.
///
/// # Errors
/// If there is no part, or the shapes differ.
pub fn merge_states(parts: &[PartialState<'_>]) -> Result<MergedState, OracleError> {
    let Some(first) = parts.first() else {
        return Err(OracleError::value("parts", "empty", "at least one part"));
    };
    let (rows, heads, dim) = first.out.dim();
    for part in parts {
        if part.out.dim() != (rows, heads, dim) {
            let accepted = format!("[{rows}, {heads}, {dim}], as the first part");
            return Err(OracleError::shape("out", part.out.shape(), accepted));
        }
        if part.lse.dim() != (rows, heads) {
            let accepted = format!("[{rows}, {heads}], as out has it");
            return Err(OracleError::shape("lse", part.lse.shape(), accepted));
        }
    }
    let mut merged = MergedState {
        out: Array3::zeros((rows, heads, dim)),
        lse: Array2::from_elem((rows, heads), f64::NEG_INFINITY),
    };
    for row in 0..rows {
        for head in 0..heads {
            merge_place(parts, row, head, &mut merged);
        }
    }
    Ok(merged)
}

fn merge_place(parts: &[PartialState<'_>], row: usize, head: usize, merged: &mut MergedState) {
    let inhabited = || parts.iter().filter(|part| part.lse[[row, head]] != f64::NEG_INFINITY);
    let max = inhabited().map(|part| part.lse[[row, head]]).fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = inhabited().map(|part| (part.lse[[row, head]] - max).exp()).sum();
    let mut out = merged.out.slice_mut(ndarray::s![row, head, ..]);
    for part in inhabited() {
        let share = (part.lse[[row, head]] - max).exp() / total;
        Zip::from(&mut out)
            .and(part.out.slice(ndarray::s![row, head, ..]))
            .for_each(|sum, &value| *sum += share * value);
    }
    if inhabited().next().is_some() {
        merged.lse[[row, head]] = max + total.ln();
    }
}
