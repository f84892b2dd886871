//! Inputs of the store kernel, and the bytes that it must leave.

use ndarray::Array3;
use oracle::{CacheViews, Format, OracleError, Packing, PagedView, store_code};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;

use super::values::{below, normal};
use super::{PageMap, Stream, rng};
use crate::case::{Case, Data};
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
        let views = problem.cache_views(pages.num_pages)?;
        let slots = problem.slots.clone().unwrap_or_else(|| derived_slots(case, &pages));
        let new_rows = |stream, dim, scale: &Scale| {
            let mut rng = rng(case, stream);
            let rounded = |x: f32| problem.query_format.round(f64::from(x)) as f32;
            Array3::from_shape_fn((slots.len(), problem.num_kv_heads, dim), |(_, head, _)| match case.data {
                Data::Edges => rounded(edge(problem.cache_format, &mut rng) * scale.of_head(head)),
                _ => rounded(normal(&mut rng) * case.magnitude),
            })
        };
        let keys = new_rows(Stream::Keys, problem.head_dim, &problem.k_scale);
        let values = new_rows(Stream::Values, problem.head_dim_v, &problem.v_scale);
        let before = background(case, &views);
        let mut expected = before.clone();
        let v_buffer = expected.len() - 1;
        let format = problem.cache_format;
        write(&mut expected[0], &views.k, &keys, &slots, format, &problem.k_scale);
        write(&mut expected[v_buffer], &views.v, &values, &slots, format, &problem.v_scale);
        Ok(Self { keys, values, slots, views, before, expected })
    }
}

/// A value at which encoders differ: half-way between two codes or a little beside it, around the largest value, among
/// the subnormals, zero, infinity or NaN, of either sign.
fn edge(format: Format, rng: &mut ChaCha8Rng) -> f32 {
    let largest = format.max_finite() as f32;
    let step_at_largest = largest - format.next_down(largest);
    let around_largest = [-1.0, -0.5, 0.0, 0.25, 0.5, 0.75, 1.0, 2.0];
    let magnitude = match below(rng, 8) {
        0 => largest + step_at_largest * around_largest[below(rng, around_largest.len())],
        1 => [0.0, f32::INFINITY, f32::NAN][below(rng, 3)],
        kind => {
            // A subnormal or a normal number, and the next one.
            let code = if kind < 4 { below(rng, 9) } else { 8 + below(rng, 100) } as u32;
            let wide = code << (8 * format.size_bytes() - 8);
            let code = if format.size_bytes() == 1 { code } else { wide };
            let (low, high) = (format.decode(code), format.next_up(format.decode(code)));
            let middle = low + (high - low) / 2.0;
            let beside = middle + (high - low) / 4096.0;
            [low, middle, beside][below(rng, 3)]
        }
    };
    if below(rng, 2) == 0 { magnitude } else { -magnitude }
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
