//! Store kernels that are wrong.

use oracle::{Format, store_code};

use super::super::storing::{HONEST_STORE, Part, StoreRecipe, address};
use super::super::{Behaviour, Impostor, Kind};
use super::{anywhere, has_fp8, per_head, scaled, several_kv_heads};
use crate::case::{Case, Data};

fn storing(
    name: &'static str,
    kind: Kind,
    wrong: &'static str,
    applies: fn(&Case) -> bool,
    recipe: StoreRecipe,
) -> Impostor {
    Impostor { name, kind, wrong, blunt: false, applies, behaviour: Behaviour::Store(recipe) }
}

pub(super) fn impostors() -> Vec<Impostor> {
    [places(), codes()].concat()
}

fn is_scaled(case: &Case) -> bool {
    scaled(&case.problem.k_scale) || scaled(&case.problem.v_scale)
}

fn places() -> Vec<Impostor> {
    let kind = Kind::Slots;
    vec![
        storing(
            "stores-nothing",
            kind,
            "writes nothing",
            anywhere,
            StoreRecipe { rows: |_| 0, ..HONEST_STORE },
        )
        .blunt(),
        storing(
            "skip-hits-last-slot",
            kind,
            "writes a skipped row to the last slot of the pool",
            anywhere,
            StoreRecipe {
                slot: |slot, slots| usize::try_from(slot.rem_euclid(slots.max(1) as i64)).ok(),
                ..HONEST_STORE
            },
        ),
        storing(
            "skip-hits-first-slot",
            kind,
            "writes a skipped row to slot 0",
            anywhere,
            StoreRecipe { slot: |slot, _| usize::try_from(slot.max(0)).ok(), ..HONEST_STORE },
        ),
        storing(
            "last-row-not-stored",
            kind,
            "leaves the last row out",
            anywhere,
            StoreRecipe { rows: |rows| rows.saturating_sub(1), ..HONEST_STORE },
        ),
        storing(
            "next-slot",
            kind,
            "writes one slot too far on",
            anywhere,
            StoreRecipe {
                slot: |slot, slots| usize::try_from(slot).ok().map(|slot| (slot + 1) % slots.max(1)),
                ..HONEST_STORE
            },
        ),
        storing(
            "store-layout-swapped",
            Kind::Strides,
            "takes NHD for HND and the other way round",
            |case| case.problem.page_size > 1 && case.problem.num_kv_heads > 1,
            StoreRecipe {
                index: |t, slot, head, dim| {
                    let row = t.slot_stride.min(t.head_stride);
                    let (slot_stride, head_stride) = match t.slot_stride < t.head_stride {
                        true => (row * t.heads, row),
                        false => (row, row * t.page_size),
                    };
                    let target = super::super::storing::Target { slot_stride, head_stride, ..*t };
                    address(&target, slot / t.page_size, slot % t.page_size, head, dim)
                },
                ..HONEST_STORE
            },
        ),
        storing(
            "store-page-stride-rebuilt",
            Kind::Strides,
            "computes the stride of pages from the extents",
            |case| case.problem.is_padded() || case.problem.packing == oracle::Packing::UnbindInner,
            StoreRecipe {
                index: |t, slot, head, dim| {
                    let target =
                        super::super::storing::Target { page_stride: t.page_size * t.heads * t.dim, ..*t };
                    address(&target, slot / t.page_size, slot % t.page_size, head, dim)
                },
                ..HONEST_STORE
            },
        ),
        storing(
            "store-head-reversed",
            Kind::Heads,
            "stores the heads in reverse order",
            several_kv_heads,
            StoreRecipe { source_head: |head, heads| heads - 1 - head, ..HONEST_STORE },
        ),
        storing(
            "store-dims-rounded-down",
            Kind::Sizes,
            "leaves out the dims past the last multiple of 16",
            |case| !case.problem.head_dim.is_multiple_of(16) || !case.problem.head_dim_v.is_multiple_of(16),
            StoreRecipe { dims: |dims| dims & !15, ..HONEST_STORE },
        ),
        storing(
            "store-k-into-v",
            Kind::Strides,
            "stores K's rows in V as well",
            anywhere,
            StoreRecipe { source: |_| Part::K, ..HONEST_STORE },
        ),
    ]
}

fn codes() -> Vec<Impostor> {
    let kind = Kind::Fp8;
    vec![
        storing(
            "store-scale-dropped",
            kind,
            "leaves the scale out",
            is_scaled,
            StoreRecipe { code: |format, x, _| format.encode(x), ..HONEST_STORE },
        ),
        storing(
            "store-scale-multiplied",
            kind,
            "multiplies by the scale instead of dividing",
            is_scaled,
            StoreRecipe { code: |format, x, scale| format.encode(x * scale), ..HONEST_STORE },
        ),
        storing(
            "store-by-reciprocal",
            kind,
            "multiplies by the reciprocal of the scale",
            |case| has_fp8(case) && is_scaled(case),
            StoreRecipe { code: |format, x, scale| format.encode(x * (1.0 / scale)), ..HONEST_STORE },
        ),
        storing(
            "store-k-scale-for-v",
            kind,
            "takes k_scale for V",
            |case| case.problem.k_scale != case.problem.v_scale,
            StoreRecipe { scale_of: |_| Part::K, ..HONEST_STORE },
        ),
        storing(
            "store-scale-of-first-head",
            kind,
            "takes the first head's scale for all",
            per_head,
            StoreRecipe { scale_head: |_| 0, ..HONEST_STORE },
        ),
        storing(
            "store-truncates",
            kind,
            "rounds towards zero",
            |case| case.problem.query_format != case.problem.cache_format,
            StoreRecipe {
                code: |format, x, scale| {
                    let value = x / scale;
                    let code = store_code(format, x, scale);
                    // One code towards zero where rounding went away from it.
                    if format.decode(code).abs() > value.abs() { code - 1 } else { code }
                },
                ..HONEST_STORE
            },
        ),
        storing(
            "store-overflows-to-nan",
            kind,
            "stores NaN where the value is too large",
            has_fp8,
            StoreRecipe {
                code: |format, x, scale| {
                    let code = store_code(format, x, scale);
                    let too_large = f64::from((x / scale).abs()) > format.max_finite();
                    if too_large { code | 0x7f } else { code }
                },
                ..HONEST_STORE
            },
        ),
        storing(
            "store-nan-saturates",
            kind,
            "stores NaN as the largest value",
            |case| has_fp8(case) && case.data == Data::Edges,
            StoreRecipe {
                code: |format, x, scale| {
                    if x.is_nan() {
                        format.encode(f32::INFINITY.copysign(x))
                    } else {
                        store_code(format, x, scale)
                    }
                },
                ..HONEST_STORE
            },
        ),
        storing(
            "store-flushes-subnormals",
            kind,
            "stores values below the smallest normal code as zero",
            has_fp8,
            StoreRecipe {
                code: |format, x, scale| {
                    let code = store_code(format, x, scale);
                    let exponent = match format {
                        Format::E4m3 => 0x78,
                        Format::E5m2 => 0x7c,
                        _ => return code,
                    };
                    if code & exponent != 0 { code } else { code & 0x80 }
                },
                ..HONEST_STORE
            },
        ),
        storing(
            "store-through-f16",
            kind,
            "rounds to f16 on the way to the code",
            has_fp8,
            StoreRecipe {
                code: |format, x, scale| format.encode(Format::F16.round(f64::from(x / scale)) as f32),
                ..HONEST_STORE
            },
        ),
    ]
}
