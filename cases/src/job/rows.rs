//! How far apart rows of q, out and lse lie: one after another, or with gaps, as slices of larger tensors do.

use std::ops::Range;

use kernels::tensor::DType;

use super::Builder;
use crate::executor::TensorSpec;

/// How rows of q, out and lse lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// One after another.
    Packed,
    /// Behind an offset and with gaps between heads and between rows, other ones for q, out and lse.
    Apart,
}

/// Gaps in elements between the heads of q, out and lse; twice as many more lie between rows.
pub(super) struct Gaps {
    pub q: usize,
    pub out: usize,
    pub lse: usize,
}

impl Rows {
    /// The gaps of a call on an arm. The scalar arm takes rows at any element; the others take multiples of 16 bytes only,
    /// and would be told to the scalar kernel otherwise.
    pub(super) fn gaps(self, arm: &str, element_bytes: usize) -> Gaps {
        let unit = if arm == kernels::arm::Arm::Scalar.name() { 1 } else { 16 / element_bytes };
        match self {
            Self::Packed => Gaps { q: 0, out: 0, lse: 0 },
            Self::Apart => Gaps { q: unit, out: 3 * unit, lse: 1 },
        }
    }
}

impl Builder {
    /// A tensor `[rows, heads, …]` of row-major elements, `gap` elements from head to head; `filler` stands in the gaps.
    pub(super) fn rows(
        &mut self,
        (name, dtype, shape): (&str, DType, &[usize]),
        elements: Vec<u8>,
        returned: bool,
        (gap, filler): (usize, &[u8]),
    ) -> TensorSpec {
        let mut spec = self.tensor(name, dtype, shape, elements, returned);
        if gap == 0 {
            return spec;
        }
        let head = shape[2..].iter().product::<usize>() + gap;
        let row = shape[1] * head + 2 * gap;
        (spec.strides[0], spec.strides[1]) = (row as i64, head as i64);
        spec.offset = (gap * filler.len()) as u64;
        let mut bytes = filler.repeat(gap + shape[0] * row);
        let mut elements = self.buffers[spec.buffer].bytes.as_slice();
        for run in runs(&spec) {
            let (first, rest) = elements.split_at(run.len());
            bytes[run].copy_from_slice(first);
            elements = rest;
        }
        self.buffers[spec.buffer].bytes = bytes;
        spec
    }
}

/// The bytes of a tensor's elements in its buffer, in the order of the elements, as stretches without gaps.
#[must_use]
pub fn runs(spec: &TensorSpec) -> Vec<Range<usize>> {
    let size = spec.dtype.size_bytes() as usize;
    let contiguous = spec.strides.last() == Some(&1);
    let outer = spec.shape.len() - usize::from(contiguous);
    let run = size * if contiguous { spec.shape[outer] as usize } else { 1 };
    let mut starts = vec![spec.offset as usize];
    for (extent, stride) in spec.shape.iter().zip(&spec.strides).take(outer) {
        let stride = stride.unsigned_abs() as usize * size;
        let places = |start: usize| (0..*extent as usize).map(move |index| start + index * stride);
        starts = starts.into_iter().flat_map(places).collect();
    }
    starts.into_iter().map(|start| start..start + run).collect()
}

/// A tensor's elements without the gaps.
#[must_use]
pub fn packed(spec: &TensorSpec, bytes: &[u8]) -> Vec<u8> {
    runs(spec).into_iter().flat_map(|run| bytes[run].iter().copied()).collect()
}

/// Places of a buffer outside a tensor's elements that differ between two contents.
pub(super) fn changed_gaps(spec: &TensorSpec, before: &[u8], after: &[u8]) -> Vec<usize> {
    let mut owned = vec![false; before.len()];
    for run in runs(spec) {
        owned[run].fill(true);
    }
    (0..before.len()).filter(|at| !owned[*at] && before[*at] != after[*at]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_apart_hold_the_same_elements_and_gaps_are_told_from_them() {
        let mut builder = Builder::default();
        let elements: Vec<u8> = (0..24).collect();
        let spec = builder.rows(("out", DType::Bf16, &[2, 3, 2]), elements.clone(), true, (1, &[0xee, 0xee]));
        assert_eq!((spec.offset, spec.strides.as_slice()), (2, [11_i64, 3, 1].as_slice()));
        let bytes = builder.buffers[spec.buffer].bytes.clone();
        assert_eq!(bytes.len(), 2 * (1 + 2 * 11));
        assert_eq!(packed(&spec, &bytes), elements);
        let mut after = bytes.clone();
        // An element, and the gap behind it.
        (after[2], after[6]) = (0xff, 0xff);
        assert_eq!(changed_gaps(&spec, &bytes, &after), [6]);
    }

    #[test]
    fn packed_rows_are_one_run_a_head_and_an_lse_apart_is_one_run_a_value() {
        let mut builder = Builder::default();
        let packed = builder.rows(("q", DType::F32, &[1, 2, 4]), vec![7; 32], false, (0, &[0; 4]));
        assert_eq!(runs(&packed), [0..16, 16..32]);
        let lse = builder.rows(("lse", DType::F32, &[2, 2]), vec![7; 16], true, (1, &[0; 4]));
        assert_eq!(runs(&lse), [4..8, 12..16, 28..32, 36..40]);
    }
}
