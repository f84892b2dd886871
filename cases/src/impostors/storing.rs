//! Storing new rows into the paged cache as a list of decisions, as [`super::recipe`] does for attention.

use oracle::{Format, store_code};

use super::call::format;
use crate::executor::protocol::{ScaleSpec, StoreCall};
use crate::executor::{Job, TensorSpec};

/// Which tensor of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    K,
    V,
}

/// Where a row is to go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    /// First element of the view.
    pub offset: usize,
    pub page_stride: usize,
    pub slot_stride: usize,
    pub head_stride: usize,
    pub pages: usize,
    pub page_size: usize,
    pub heads: usize,
    pub dim: usize,
}

/// Every decision of a store kernel.
#[derive(Clone, Copy)]
pub(super) struct StoreRecipe {
    /// Rows that are stored, of as many as there are.
    pub rows: fn(usize) -> usize,
    /// The flat slot of a row, from its entry of the slot mapping and the number of slots; `None` stores nothing.
    pub slot: fn(i64, usize) -> Option<usize>,
    /// Index of an element in the buffer: view, flat slot, head, dim.
    pub index: fn(&Target, usize, usize, usize) -> usize,
    /// Head whose values a head gets, of as many as there are.
    pub source_head: fn(usize, usize) -> usize,
    /// Dims that are stored.
    pub dims: fn(usize) -> usize,
    /// Which of the two scales counts.
    pub scale_of: fn(Part) -> Part,
    /// KV head whose scale counts.
    pub scale_head: fn(usize) -> usize,
    /// Code of a value.
    pub code: fn(Format, f32, f32) -> u32,
    /// Which part's new rows are written to which part.
    pub source: fn(Part) -> Part,
}

/// The right way to do everything.
pub(super) const HONEST_STORE: StoreRecipe = StoreRecipe {
    rows: |rows| rows,
    slot: |slot, _| usize::try_from(slot).ok(),
    index: |t, slot, head, dim| address(t, slot / t.page_size, slot % t.page_size, head, dim),
    source_head: |head, _| head,
    dims: |dims| dims,
    scale_of: |part| part,
    scale_head: |head| head,
    code: store_code,
    source: |part| part,
};

/// Index of an element as the view says.
pub(super) fn address(t: &Target, page: usize, slot: usize, head: usize, dim: usize) -> usize {
    t.offset + page * t.page_stride + slot * t.slot_stride + head * t.head_stride + dim
}

/// Writes the new rows into copies of the job's buffers.
pub(super) fn store(recipe: &StoreRecipe, job: &Job, call: &StoreCall, buffers: &mut [Vec<u8>]) {
    let slots: Vec<i64> = job.buffers[call.slot_mapping.buffer]
        .bytes
        .as_chunks::<8>()
        .0
        .iter()
        .map(|word| i64::from_le_bytes(*word))
        .collect();
    for part in [Part::K, Part::V] {
        store_part(recipe, job, call, part, &slots, buffers);
    }
}

fn store_part(
    recipe: &StoreRecipe,
    job: &Job,
    call: &StoreCall,
    part: Part,
    slots: &[i64],
    buffers: &mut [Vec<u8>],
) {
    let (spec, rows_spec) = match part {
        Part::K => (&call.cache.k, &call.k),
        Part::V => (&call.cache.v, &call.v),
    };
    let source = match (recipe.source)(part) {
        Part::K => &call.k,
        Part::V => &call.v,
    };
    let scale = match (recipe.scale_of)(part) {
        Part::K => &call.cache.k_scale,
        Part::V => &call.cache.v_scale,
    };
    let scales = match scale {
        ScaleSpec::PerTensor(scale) => vec![scale.0],
        ScaleSpec::PerHead(spec) => Format::F32.decode_bytes(&job.buffers[spec.buffer].bytes),
    };
    let values = format(source.dtype).decode_bytes(&job.buffers[source.buffer].bytes);
    let source_dim = source.shape[2] as usize;
    let target = target(spec);
    let cache = format(spec.dtype);
    let size = cache.size_bytes();
    let buffer = &mut buffers[spec.buffer];
    let rows = (recipe.rows)(rows_spec.shape[0] as usize).min(slots.len());
    for (row, entry) in slots.iter().enumerate().take(rows) {
        let Some(slot) = (recipe.slot)(*entry, target.pages * target.page_size) else { continue };
        for head in 0..target.heads {
            let scale = scales[(recipe.scale_head)(head).min(scales.len() - 1)];
            let from = (row * target.heads + (recipe.source_head)(head, target.heads)) * source_dim;
            for dim in 0..(recipe.dims)(target.dim).min(source_dim) {
                let code = (recipe.code)(cache, values[from + dim], scale);
                let elements = buffer.len() / size;
                let at = (recipe.index)(&target, slot, head, dim) % elements.max(1) * size;
                buffer[at..at + size].copy_from_slice(&code.to_le_bytes()[..size]);
            }
        }
    }
}

fn target(spec: &TensorSpec) -> Target {
    let [pages, page_size, heads, dim] = [0, 1, 2, 3].map(|axis| spec.shape[axis] as usize);
    let [page_stride, slot_stride, head_stride] = [0, 1, 2].map(|axis| spec.strides[axis] as usize);
    let offset = spec.offset as usize / spec.dtype.size_bytes() as usize;
    Target { offset, page_stride, slot_stride, head_stride, pages, page_size, heads, dim }
}
