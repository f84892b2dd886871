//! Kernels that look in the wrong place: tables, strides, page and head sizes, head groups.

use ndarray::{Axis, s};

use super::super::call::Side;
use super::super::recipe::{HONEST, Place, Recipe};
use super::super::{Impostor, Kind};
use super::{anywhere, attention, grouped, several_kv_heads, several_requests};
use crate::case::Case;
use oracle::{Packing, Padding};

pub(super) fn impostors() -> Vec<Impostor> {
    [tables(), strides(), sizes(), heads()].concat()
}

fn tables() -> Vec<Impostor> {
    vec![
        attention(
            "block-id-in-8-bits",
            Kind::Overflow,
            "keeps only the low 8 bits of a block id",
            |case| page_total(case) > 200,
            Recipe { page: |call, request, logical| call.entry(request, logical) & 0xff, ..HONEST },
        ),
        attention(
            "block-id-in-16-bits",
            Kind::Overflow,
            "keeps only the low 16 bits of a block id",
            |case| page_total(case) > 60_000,
            Recipe { page: |call, request, logical| call.entry(request, logical) & 0xffff, ..HONEST },
        ),
        attention(
            "offset-in-16-bits",
            Kind::Overflow,
            "keeps only the low 16 bits of an element's offset",
            |case| page_total(case) * page_elements(case) > 40_000,
            Recipe {
                k_code: |call, place| call.k.code(index(&call.k, place) & 0xffff),
                v_code: |call, place| call.v.code(index(&call.v, place) & 0xffff),
                ..HONEST
            },
        ),
        attention(
            "table-of-first-request",
            Kind::Table,
            "reads every request through the first one's table row",
            several_requests,
            Recipe { page: |call, _, logical| call.entry(0, logical), ..HONEST },
        ),
        attention(
            "table-without-padding",
            Kind::Table,
            "steps through the block table by the pages in use, not by its width",
            several_requests,
            Recipe {
                page: |call, request, logical| {
                    let longest = call.seq_lens.iter().max().copied().unwrap_or(0);
                    let at = request * longest.div_ceil(call.page_size) + logical;
                    call.entry(0, at)
                },
                ..HONEST
            },
        ),
        attention(
            "lengths-of-first-request",
            Kind::Table,
            "takes the first request's length for all",
            |case| case.problem.kv_lens.windows(2).any(|pair| pair[0] != pair[1]),
            Recipe { kv_len: |call, _| call.seq_lens[0], ..HONEST },
        ),
        attention(
            "table-last-page-lost",
            Kind::Table,
            "reads the page before the last in place of the last",
            |case| case.problem.kv_lens.iter().any(|len| *len > case.problem.page_size),
            Recipe {
                page: |call, request, logical| {
                    let last = call.seq_lens[request].saturating_sub(1) / call.page_size;
                    call.entry(request, if logical == last { logical.saturating_sub(1) } else { logical })
                },
                ..HONEST
            },
        ),
    ]
}

fn page_total(case: &Case) -> usize {
    let size = case.problem.page_size.max(1);
    case.problem.kv_lens.iter().map(|len| len.div_ceil(size)).sum::<usize>() + 2
}

fn page_elements(case: &Case) -> usize {
    let problem = &case.problem;
    problem.page_size * problem.num_kv_heads * problem.head_dim
}

fn index(side: &Side<'_>, place: Place) -> usize {
    side.index(place.page, place.slot, place.head, place.dim)
}

fn strides() -> Vec<Impostor> {
    let kind = Kind::Strides;
    fn padded(case: &Case) -> bool {
        case.problem.is_padded() || case.problem.packing == Packing::UnbindInner
    }
    vec![
        attention(
            "layout-swapped",
            kind,
            "takes NHD for HND and the other way round",
            |case| case.problem.page_size > 1 && case.problem.num_kv_heads > 1,
            Recipe {
                k_code: |call, place| call.k.code(swapped(&call.k, place)),
                v_code: |call, place| call.v.code(swapped(&call.v, place)),
                ..HONEST
            },
        ),
        attention(
            "page-stride-rebuilt",
            kind,
            "computes the stride of pages from the extents",
            padded,
            Recipe {
                k_code: |call, place| call.k.code(with_page_stride(&call.k, place)),
                v_code: |call, place| call.v.code(with_page_stride(&call.v, place)),
                ..HONEST
            },
        ),
        attention(
            "row-padding-ignored",
            kind,
            "computes the strides of slots and heads from the extents",
            |case| paddings(case).any(|padding| padding.row + padding.plane > 0),
            Recipe {
                k_code: |call, place| call.k.code(without_row_padding(&call.k, place)),
                v_code: |call, place| call.v.code(without_row_padding(&call.v, place)),
                ..HONEST
            },
        ),
        attention(
            "base-offset-ignored",
            kind,
            "starts at the buffer's first byte",
            |case| case.problem.padding.base > 0,
            Recipe { k_code: |call, place| call.k.code(index(&call.k, place) - call.k.offset), ..HONEST },
        ),
        attention(
            "v-read-from-k",
            kind,
            "reads V where K lies",
            anywhere,
            Recipe { v_code: |call, place| call.k.code(index(&call.k, place)), ..HONEST },
        ),
        attention(
            "v-with-strides-of-k",
            kind,
            "walks V with the strides of K",
            |case| case.problem.head_dim != case.problem.head_dim_v || case.problem.v_padding.is_some(),
            Recipe {
                v_code: |call, place| {
                    let side = &call.k;
                    let (page, slot) = (place.page * side.page_stride, place.slot * side.slot_stride);
                    call.v.code(call.v.offset + page + slot + place.head * side.head_stride + place.dim)
                },
                ..HONEST
            },
        ),
    ]
}

fn paddings(case: &Case) -> impl Iterator<Item = Padding> {
    [Some(case.problem.padding), case.problem.v_padding].into_iter().flatten()
}

fn swapped(side: &Side<'_>, place: Place) -> usize {
    // The other order of slots and heads over the same extents.
    let row = side.slot_stride.min(side.head_stride);
    let (slot, head) = match side.slot_stride < side.head_stride {
        true => (row * side.heads, row),
        false => (row, row * side.page_size),
    };
    side.offset + place.page * side.page_stride + place.slot * slot + place.head * head + place.dim
}

fn with_page_stride(side: &Side<'_>, place: Place) -> usize {
    let stride = side.page_size * side.heads * side.dim;
    index(side, place) - place.page * side.page_stride + place.page * stride
}

fn without_row_padding(side: &Side<'_>, place: Place) -> usize {
    let (slot, head) = match side.slot_stride < side.head_stride {
        true => (side.dim, side.dim * side.page_size),
        false => (side.dim * side.heads, side.dim),
    };
    side.offset + place.page * side.page_stride + place.slot * slot + place.head * head + place.dim
}

fn sizes() -> Vec<Impostor> {
    vec![
        attention(
            "page-by-shift",
            Kind::Sizes,
            "finds the page by a shift, as if the page size were a power of two",
            |case| !case.problem.page_size.is_power_of_two(),
            Recipe {
                locate: |call, key| {
                    let shift = call.page_size.ilog2();
                    (key >> shift, key & ((1 << shift) - 1))
                },
                ..HONEST
            },
        ),
        attention(
            "k-dims-rounded-down",
            Kind::Sizes,
            "leaves out the dims of K past the last multiple of 16",
            |case| !case.problem.head_dim.is_multiple_of(16),
            Recipe { dims: |call| call.k.dim & !15, ..HONEST },
        ),
        attention(
            "v-dims-rounded-down",
            Kind::Sizes,
            "writes zeros to the dims of V past the last multiple of 16",
            |case| !case.problem.head_dim_v.is_multiple_of(16),
            Recipe {
                finish: |call, answer| answer.out.slice_mut(s![.., .., call.v.dim & !15..]).fill(0.0),
                ..HONEST
            },
        ),
        attention(
            "upper-half-of-head",
            Kind::Sizes,
            "covers only the first 64 dims of K",
            |case| case.problem.head_dim > 64,
            Recipe { dims: |call| call.k.dim.min(64), ..HONEST },
        ),
        attention(
            "v-dims-shifted",
            Kind::Sizes,
            "writes every output 8 dims too far on, the last ones to the start",
            |case| case.problem.head_dim_v > 8,
            Recipe {
                finish: |call, answer| {
                    let dims: Vec<usize> =
                        (0..call.v.dim).map(|dim| (dim + call.v.dim - 8) % call.v.dim).collect();
                    answer.out = answer.out.select(Axis(2), &dims);
                },
                ..HONEST
            },
        ),
    ]
}

fn heads() -> Vec<Impostor> {
    let kind = Kind::Heads;
    vec![
        attention(
            "kv-head-modulo",
            kind,
            "takes query head % num_kv_heads for the KV head",
            |case| grouped(case) && several_kv_heads(case),
            Recipe { kv_head: |call, head| head % call.num_kv_heads, ..HONEST },
        ),
        attention(
            "head-tile-of-16",
            kind,
            "gives all query heads of a tile of 16 the first one's KV head",
            // Where a whole number of tiles belongs to each KV head, the first head's is everyone's.
            |case| {
                several_kv_heads(case)
                    && !(case.problem.num_q_heads / case.problem.num_kv_heads).is_multiple_of(16)
            },
            Recipe { kv_head: |call, head| head / 16 * 16 / call.group(), ..HONEST },
        ),
        attention(
            "group-above-8",
            kind,
            "gives query heads past the eighth of a group the eighth's answer",
            |case| case.problem.num_q_heads / case.problem.num_kv_heads.max(1) > 8,
            Recipe {
                finish: |call, answer| {
                    let eighth = |head: usize| head - (head % call.group()).saturating_sub(7);
                    let heads: Vec<usize> = (0..call.num_q_heads).map(eighth).collect();
                    answer.out = answer.out.select(Axis(1), &heads);
                },
                ..HONEST
            },
        ),
        attention(
            "first-kv-head-for-all",
            kind,
            "reads KV head 0 for every query head",
            several_kv_heads,
            Recipe { kv_head: |_, _| 0, ..HONEST },
        ),
        attention(
            "group-rounded-up",
            kind,
            "rounds query heads per KV head up to a power of two",
            |case| {
                several_kv_heads(case)
                    && !(case.problem.num_q_heads / case.problem.num_kv_heads).is_power_of_two()
            },
            Recipe { kv_head: |call, head| head / call.group().next_power_of_two(), ..HONEST },
        ),
        attention(
            "last-head-lost",
            kind,
            "gives the last query head the answer of the one before",
            |case| case.problem.num_q_heads > 1,
            Recipe {
                finish: |call, answer| {
                    let last = call.num_q_heads - 1;
                    let before = answer.out.index_axis(Axis(1), last - 1).to_owned();
                    answer.out.index_axis_mut(Axis(1), last).assign(&before);
                },
                ..HONEST
            },
        ),
    ]
}
