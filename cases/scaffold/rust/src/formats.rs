//! Number formats: one element to f32 and back.

use crate::attest_kernel::{BF16, E4M3, E5M2, F16, F32, I64};

/// Bytes of one element.
pub fn size(dtype: u32) -> i64 {
    match dtype {
        E4M3 | E5M2 => 1,
        BF16 | F16 => 2,
        I64 => 8,
        _ => 4,
    }
}

fn decode_f16(code: u32) -> f32 {
    let (sign, exponent, mantissa) = ((code & 0x8000) << 16, code >> 10 & 31, code & 0x3ff);
    match exponent {
        31 => f32::from_bits(sign | 0x7f80_0000 | mantissa << 13),
        0 => f32::from_bits(sign | (mantissa as f32 / 16_777_216.0).to_bits()),
        _ => f32::from_bits(sign | (exponent + 112) << 23 | mantissa << 13),
    }
}

fn decode_e4m3(code: u32) -> f32 {
    let (sign, exponent, mantissa) = ((code & 0x80) << 24, code >> 3 & 15, code & 7);
    match exponent {
        15 if mantissa == 7 => f32::from_bits(sign | 0x7fc0_0000),
        0 => f32::from_bits(sign | (mantissa as f32 / 512.0).to_bits()),
        _ => f32::from_bits(sign | (exponent + 120) << 23 | mantissa << 20),
    }
}

/// Element `index` of memory of some type.
///
/// # Safety
/// The element exists.
pub unsafe fn load(dtype: u32, data: *const u8, index: i64) -> f32 {
    unsafe {
        match dtype {
            F32 => data.cast::<f32>().offset(index as isize).read(),
            BF16 => f32::from_bits(u32::from(data.cast::<u16>().offset(index as isize).read()) << 16),
            F16 => decode_f16(u32::from(data.cast::<u16>().offset(index as isize).read())),
            E4M3 => decode_e4m3(u32::from(data.offset(index as isize).read())),
            // The upper half of an f16.
            _ => decode_f16(u32::from(data.offset(index as isize).read()) << 8),
        }
    }
}

/// Rounds to nearest even. The result has no sign yet and may be past the largest finite code.
fn round(magnitude: f32, bias: u32, mantissa: u32) -> u32 {
    let (bits, shift) = (magnitude.to_bits(), 23 - mantissa);
    if bits < (128 - bias) << 23 {
        // Subnormal in the format: count the smallest steps.
        return (magnitude * f32::from_bits((126 + bias + mantissa) << 23)).round_ties_even() as u32;
    }
    let bits = bits + (1 << (shift - 1)) - 1 + (bits >> shift & 1);
    (bits >> shift) - ((127 - bias) << mantissa)
}

/// The code of a value. fp8 saturates.
pub fn encode(dtype: u32, x: f32) -> u32 {
    let sign = x.to_bits() >> 31;
    match dtype {
        BF16 if x.is_nan() => sign << 15 | 0x7fc0,
        BF16 => (x.to_bits() + 0x7fff + (x.to_bits() >> 16 & 1)) >> 16,
        F16 if x.is_nan() => sign << 15 | 0x7e00,
        F16 => sign << 15 | round(x.abs(), 15, 10).min(0x7c00),
        E4M3 | E5M2 if x.is_nan() => sign << 7 | 0x7f,
        E4M3 => sign << 7 | round(x.abs().min(448.0), 7, 3),
        E5M2 => sign << 7 | round(x.abs().min(57_344.0), 15, 2),
        _ => x.to_bits(),
    }
}

/// Writes element `index`.
///
/// # Safety
/// The element exists and may be written.
pub unsafe fn save(dtype: u32, data: *mut u8, index: i64, x: f32) {
    let code = encode(dtype, x);
    unsafe {
        match size(dtype) {
            1 => data.offset(index as isize).write(code as u8),
            2 => data.cast::<u16>().offset(index as isize).write(code as u16),
            _ => data.cast::<u32>().offset(index as isize).write(code),
        }
    }
}
