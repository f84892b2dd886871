//! Kernels that get fp8 codes, scales per head or the width of an intermediate wrong.

use oracle::Format;

use super::super::call::scale_of;
use super::super::recipe::{HONEST, Recipe};
use super::super::{Impostor, Kind};
use super::{anywhere, attention, has_fp8, per_head};
use crate::case::Data;

pub(super) fn impostors() -> Vec<Impostor> {
    let kind = Kind::Fp8;
    vec![
        attention(
            "scale-of-first-head",
            kind,
            "takes the first KV head's scales for all",
            per_head,
            Recipe {
                sigma: |call, _| call.softmax_scale * call.k_scales[0],
                v_scale: |call, _| call.v_scales[0],
                ..HONEST
            },
        ),
        attention(
            "scale-by-query-head",
            kind,
            "takes the query head's number for the scale's",
            |case| per_head(case) && super::grouped(case),
            Recipe {
                sigma: |call, head| call.softmax_scale * scale_of(&call.k_scales, head),
                v_scale: |call, head| scale_of(&call.v_scales, head),
                ..HONEST
            },
        ),
        attention(
            "fnuz-codes",
            kind,
            "reads codes with the exponent bias of the fnuz formats",
            has_fp8,
            Recipe {
                decode: |format, code| match format {
                    Format::E4m3 | Format::E5m2 if code == 0x80 => f32::NAN,
                    Format::E4m3 | Format::E5m2 => format.decode(code) / 2.0,
                    other => other.decode(code),
                },
                ..HONEST
            },
        ),
        attention(
            "subnormal-codes-flushed",
            kind,
            "reads subnormal fp8 codes as zero",
            has_fp8,
            Recipe {
                decode: |format, code| {
                    let exponent = match format {
                        Format::E4m3 => code & 0x78,
                        Format::E5m2 => code & 0x7c,
                        _ => 1,
                    };
                    if exponent == 0 { 0.0 } else { format.decode(code) }
                },
                ..HONEST
            },
        ),
        attention(
            "nan-code-is-480",
            kind,
            "reads the NaN code of e4m3 as 480",
            |case| case.data == Data::NanKey && case.problem.cache_format == Format::E4m3,
            Recipe {
                decode: |format, code| match (format, code) {
                    (Format::E4m3, 0x7f) => 480.0,
                    (Format::E4m3, 0xff) => -480.0,
                    (format, code) => format.decode(code),
                },
                ..HONEST
            },
        ),
        attention(
            "sign-dropped",
            kind,
            "drops the sign of codes",
            anywhere,
            Recipe { decode: |format, code| format.decode(code).abs(), ..HONEST },
        ),
        attention(
            "codes-rounded-to-e4m3",
            kind,
            "reads a wider cache as if it had been stored in e4m3",
            |case| case.problem.cache_format != Format::E4m3,
            Recipe {
                decode: |format, code| Format::E4m3.decode(Format::E4m3.encode(format.decode(code))),
                ..HONEST
            },
        ),
        attention(
            "scores-in-f16",
            Kind::Masked,
            "keeps scores in f16, which ends at 65504",
            anywhere,
            Recipe {
                score: |call, row, key, scaled| Format::F16.round((HONEST.score)(call, row, key, scaled)),
                ..HONEST
            },
        ),
        attention(
            "scores-in-bf16",
            Kind::Masked,
            "keeps scores in bf16",
            anywhere,
            Recipe {
                score: |call, row, key, scaled| Format::Bf16.round((HONEST.score)(call, row, key, scaled)),
                ..HONEST
            },
        ),
    ]
}
