//! Inputs of the store kernel, and the bytes that it must leave.

use ndarray::Array3;
use oracle::{CacheShape, CacheViews, Format, OracleError, Packing, PagedView, store_code};
use rand_chacha::rand_core::Rng;

use super::values::{below, normal};
use super::{PageMap, Stream, rng};
use crate::case::Case;
use crate::problem::Scale;

/// The inputs of one store case.
#[derive(Clone, Debug)]
pub struct StoreInputs {
    /// New K rows, `[rows, num_kv_heads, head_dim]`, rounded to the source format.
    pub keys: Array3<f32>,
    /// New V rows, `[rows, num_kv_heads, head_dim_v]`.
    pub values: Array3<f32>,
    /// Slot of each row: page · page_size + slot, or −1 for a row to skip.
    pub slots: Vec<i64>,
    /// Views of K and V and the size of their buffers.
    pub views: CacheViews,
    /// The cache buffers before the store: seeded bytes.
    pub before: Vec<Vec<u8>>,
    /// The cache buffers that a correct store leaves.
    pub expected: Vec<Vec<u8>>,
}

impl StoreInputs {
    /// Makes the inputs of a store case.
    ///
    /// # Errors
    /// If the cache of the case cannot be laid out.
    pub fn generate(case: &Case) -> Result<Self, OracleError> {
        let problem = &case.problem;
        let pages = PageMap::place(case, &mut rng(case, Stream::Pages));
        let shape = CacheShape {
            pages: pages.num_pages,
            page_size: problem.page_size,
            heads: problem.num_kv_heads,
            k_dim: problem.head_dim,
            v_dim: problem.head_dim_v,
        };
        let views = CacheViews::new(problem.layout, problem.packing, shape, problem.padding)?;
        let slots = problem.slots.clone().unwrap_or_else(|| derived_slots(case, &pages));
        let new_rows = |stream, dim| {
            let mut rng = rng(case, stream);
            let next = || problem.query_format.round(f64::from(normal(&mut rng) * case.magnitude)) as f32;
            Array3::from_shape_simple_fn((slots.len(), problem.num_kv_heads, dim), next)
        };
        let keys = new_rows(Stream::Keys, problem.head_dim);
        let values = new_rows(Stream::Values, problem.head_dim_v);
        let before = background(case, &views);
        let mut expected = before.clone();
        let v_buffer = expected.len() - 1;
        let format = problem.cache_format;
        write(&mut expected[0], &views.k, &keys, &slots, format, &problem.k_scale);
        write(&mut expected[v_buffer], &views.v, &values, &slots, format, &problem.v_scale);
        Ok(Self { keys, values, slots, views, before, expected })
    }
}

/// The last rows of every request, with about every eighth skipped.
fn derived_slots(case: &Case, pages: &PageMap) -> Vec<i64> {
    let mut rng = rng(case, Stream::Slots);
    let mut slots = Vec::new();
    for (request, (new, kv_len)) in case.problem.query_lens.iter().zip(&case.problem.kv_lens).enumerate() {
        for position in kv_len.saturating_sub(*new)..*kv_len {
            let (page, slot) = pages.locate(request, position);
            let skipped = below(&mut rng, 8) == 0;
            slots.push(if skipped { -1 } else { (page * pages.page_size + slot) as i64 });
        }
    }
    slots
}

/// Seeded bytes in every buffer, so that a byte written by mistake differs from what was there.
fn background(case: &Case, views: &CacheViews) -> Vec<Vec<u8>> {
    let mut rng = rng(case, Stream::Background);
    let size = case.problem.cache_format.size_bytes();
    let sizes = match case.problem.packing {
        Packing::Separate => vec![views.k_elements * size, views.v_elements * size],
        Packing::UnbindInner | Packing::UnbindOuter => vec![views.k_elements * size],
    };
    let mut filled = |bytes| {
        let mut buffer = vec![0; bytes];
        rng.fill_bytes(&mut buffer);
        buffer
    };
    sizes.into_iter().map(&mut filled).collect()
}

fn write(
    buffer: &mut [u8],
    view: &PagedView,
    rows: &Array3<f32>,
    slots: &[i64],
    format: Format,
    scale: &Scale,
) {
    let size = format.size_bytes();
    for ((row, head, dim), x) in rows.indexed_iter() {
        let Ok(slot) = usize::try_from(slots[row]) else { continue };
        let (page, slot) = (slot / view.page_size, slot % view.page_size);
        if page >= view.pages {
            continue;
        }
        let start = view.index(page, slot, head, dim) * size;
        let code = store_code(format, *x, scale.of_head(head));
        buffer[start..start + size].copy_from_slice(&code.to_le_bytes()[..size]);
    }
}
