//! Number formats: what each code means, and which code a value is rounded to.

use std::fmt;
use std::str::FromStr;

use crate::OracleError;

/// A storage format of queries, caches or outputs.
///
/// Codes are passed as the low [`size_bytes`](Self::size_bytes)·8 bits of a `u32`; higher bits are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Format {
    /// IEEE binary32.
    F32,
    /// bfloat16: the upper half of binary32.
    Bf16,
    /// IEEE binary16.
    F16,
    /// OCP fp8 E4M3 ("fn"): bias 7, no infinity, `0x7f` and `0xff` are NaN, largest finite value 448.
    E4m3,
    /// OCP fp8 E5M2: the upper half of binary16, largest finite value 57344.
    E5m2,
}

/// Parameters of a binary floating-point format.
struct Grid {
    /// Bits of the significand, the hidden one included.
    precision: i32,
    /// Exponent of the smallest normal number.
    min_exponent: i32,
    /// Largest finite value.
    max: f64,
    /// Whether values above `max` become `max` rather than infinity.
    saturates: bool,
}

impl Format {
    /// Every format, widest first.
    pub const ALL: [Self; 5] = [Self::F32, Self::Bf16, Self::F16, Self::E4m3, Self::E5m2];

    /// The name used in case lines and reports: `f32`, `bf16`, `f16`, `e4m3` or `e5m2`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::E4m3 => "e4m3",
            Self::E5m2 => "e5m2",
        }
    }

    /// Bytes of one code.
    #[must_use]
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
            Self::E4m3 | Self::E5m2 => 1,
        }
    }

    /// Half the distance between 1 and the next value up: the largest relative error of one rounding.
    #[must_use]
    pub const fn unit_roundoff(self) -> f64 {
        match self {
            Self::F32 => 1.0 / 16_777_216.0,
            Self::Bf16 => 1.0 / 256.0,
            Self::F16 => 1.0 / 2048.0,
            Self::E4m3 => 1.0 / 16.0,
            Self::E5m2 => 1.0 / 8.0,
        }
    }

    /// Largest finite value.
    #[must_use]
    pub fn max_finite(self) -> f64 {
        self.grid().max
    }

    fn grid(self) -> Grid {
        match self {
            Self::F32 => {
                Grid { precision: 24, min_exponent: -126, max: f64::from(f32::MAX), saturates: false }
            }
            Self::Bf16 => Grid {
                precision: 8,
                min_exponent: -126,
                max: f64::from(f32::from_bits(0x7f7f_0000)),
                saturates: false,
            },
            Self::F16 => Grid { precision: 11, min_exponent: -14, max: 65504.0, saturates: false },
            Self::E4m3 => Grid { precision: 4, min_exponent: -6, max: 448.0, saturates: true },
            Self::E5m2 => Grid { precision: 3, min_exponent: -14, max: 57344.0, saturates: true },
        }
    }

    /// The value of a code. Exact: every finite value of every format is an `f32`.
    #[must_use]
    pub fn decode(self, bits: u32) -> f32 {
        match self {
            Self::F32 => f32::from_bits(bits),
            Self::Bf16 => f32::from_bits(bits << 16),
            Self::F16 => half::f16::from_bits(bits as u16).to_f32(),
            Self::E4m3 => decode_e4m3(bits as u8),
            Self::E5m2 => half::f16::from_bits((bits as u16) << 8).to_f32(),
        }
    }

    /// The code nearest to `x`, ties to even.
    ///
    /// The fp8 formats saturate: anything beyond the largest finite value, infinity included, takes its code. In
    /// the wider formats it becomes infinity. NaN keeps its sign and becomes a quiet NaN (`0x7f` in fp8).
    #[must_use]
    pub fn encode(self, x: f32) -> u32 {
        match self {
            Self::F32 => x.to_bits(),
            Self::Bf16 => u32::from(half::bf16::from_f32(x).to_bits()),
            Self::F16 => u32::from(half::f16::from_f32(x).to_bits()),
            Self::E4m3 => encode_fp8::<3, 7, 0x7e>(x),
            Self::E5m2 => encode_fp8::<2, 15, 0x7b>(x),
        }
    }

    /// Rounds straight from `f64`, ties to even, with the overflow rule of [`encode`](Self::encode).
    ///
    /// There is no stop at `f32` on the way, so no double rounding.
    #[must_use]
    pub fn round(self, x: f64) -> f64 {
        let grid = self.grid();
        if x.is_nan() || x == 0.0 || (x.is_infinite() && !grid.saturates) {
            return x;
        }
        if x.is_infinite() {
            return grid.max.copysign(x);
        }
        let exponent = ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023;
        // Distance between neighbouring values around x. Subnormal f64 count as the lowest exponent, which is
        // below every format's own.
        let quantum = exponent.max(grid.min_exponent) - (grid.precision - 1);
        // Scaling by a power of two is exact, so the only rounding is the one to an integer.
        let rounded = (x * power_of_two(-quantum)).round_ties_even() * power_of_two(quantum);
        match rounded.abs() > grid.max {
            true if grid.saturates => grid.max.copysign(x),
            true => f64::INFINITY.copysign(x),
            false => rounded,
        }
    }

    /// The neighbour of `x` towards +∞; `x` must be a value of the format. The largest value stays; NaN stays.
    ///
    /// From the largest finite value the step is to infinity in the formats that have it as a rounding result.
    #[must_use]
    pub fn next_up(self, x: f32) -> f32 {
        if x.is_nan() || x == f32::INFINITY || (self.grid().saturates && f64::from(x) >= self.grid().max) {
            return x;
        }
        let sign = 1u32 << (self.size_bytes() * 8 - 1);
        let code = self.encode(x);
        self.decode(match (x == 0.0, x > 0.0) {
            (true, _) => 1,
            (_, true) => code + 1,
            // One step towards zero; the smallest negative value steps to −0.
            (_, false) => sign | ((code & (sign - 1)) - 1),
        })
    }

    /// The neighbour of `x` towards −∞; see [`next_up`](Self::next_up).
    #[must_use]
    pub fn next_down(self, x: f32) -> f32 {
        -self.next_up(-x)
    }

    /// Decodes little-endian codes. A trailing part of a code is ignored.
    #[must_use]
    pub fn decode_bytes(self, bytes: &[u8]) -> Vec<f32> {
        match self {
            Self::F32 => bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
            Self::Bf16 | Self::F16 => {
                let codes = bytes.as_chunks().0.iter().map(|&b| u32::from(u16::from_le_bytes(b)));
                codes.map(|code| self.decode(code)).collect()
            }
            Self::E4m3 | Self::E5m2 => {
                let table: [f32; 256] = std::array::from_fn(|code| self.decode(code as u32));
                bytes.iter().map(|&b| table[usize::from(b)]).collect()
            }
        }
    }

    /// Encodes every value, little-endian.
    #[must_use]
    pub fn encode_to_bytes(self, values: &[f32]) -> Vec<u8> {
        let size = self.size_bytes();
        let mut bytes = Vec::with_capacity(values.len() * size);
        for &x in values {
            bytes.extend_from_slice(&self.encode(x).to_le_bytes()[..size]);
        }
        bytes
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Format {
    type Err = OracleError;

    /// Accepts the names that [`Format::name`] gives, and `e4m3fn`. The fnuz variants are refused by name.
    fn from_str(name: &str) -> Result<Self, OracleError> {
        match name {
            "f32" => Ok(Self::F32),
            "bf16" => Ok(Self::Bf16),
            "f16" => Ok(Self::F16),
            "e4m3" | "e4m3fn" => Ok(Self::E4m3),
            "e5m2" => Ok(Self::E5m2),
            _ if name.contains("fnuz") => Err(OracleError::FnuzFormat { name: name.to_owned() }),
            _ => Err(OracleError::UnknownFormat { name: name.to_owned() }),
        }
    }
}

/// The code that storing `x` into a cache with this scale writes.
///
/// The quotient is one IEEE `f32` division. Multiplying by the reciprocal rounds twice and gives another code for
/// some inputs, so kernels that do so are wrong in those bytes.
#[must_use]
pub fn store_code(format: Format, x: f32, scale: f32) -> u32 {
    format.encode(x / scale)
}

fn decode_e4m3(code: u8) -> f32 {
    let exponent = i32::from(code >> 3 & 0xf);
    let mantissa = f32::from(code & 7);
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 512.0,
        _ => (1.0 + mantissa / 8.0) * (exponent as f32 - 7.0).exp2(),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Rounds to a format of one sign bit, `MANTISSA` fraction bits and the given exponent bias; `MAX` is the code of
/// the largest finite value.
fn encode_fp8<const MANTISSA: u32, const BIAS: u32, const MAX: u32>(x: f32) -> u32 {
    let sign = x.to_bits() >> 24 & 0x80;
    let magnitude = x.to_bits() & 0x7fff_ffff;
    if x.is_nan() {
        return sign | 0x7f;
    }
    let drop = 23 - MANTISSA;
    let smallest_normal = (128 - BIAS) << 23;
    if magnitude < smallest_normal {
        // Adding a constant whose last place is the smallest subnormal lets the addition itself round, to even;
        // the sum's low bits then count those steps, and a carry gives the code of the smallest normal.
        let constant = f32::from_bits((128 - BIAS + drop) << 23);
        return sign | ((f32::from_bits(magnitude) + constant).to_bits() - constant.to_bits());
    }
    // Round to even on the integer: half a step less one, plus the parity of what is kept. A carry moves into the
    // exponent, as it should.
    let rounded = magnitude + (1 << (drop - 1)) - 1 + (magnitude >> drop & 1);
    let code = (rounded >> drop) - ((127 - BIAS) << MANTISSA);
    sign | code.min(MAX)
}

/// 2^n for −1022 ≤ n ≤ 1023.
fn power_of_two(n: i32) -> f64 {
    f64::from_bits(((1023 + n) as u64) << 52)
}
