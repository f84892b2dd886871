//! mma.sync.aligned.m16n8k16 with f32 accumulators, bit for bit as measured on Hopper.
//!
//! The products are exact. The largest exponent is taken over the sixteen products (exponent of a plus exponent of
//! b, not normalised, subnormals keeping the minimum exponent) and the accumulator; with the quantum
//! 2^(that exponent − 25), each product and the accumulator are truncated toward zero to multiples of it and added
//! as integers; the sum is truncated toward zero to 24 bits.

use super::block::WARP;
use super::warp::{Lanes, Operation};

const M: usize = 16;
const N: usize = 8;
const K: usize = 16;
/// Bits of a product or the accumulator kept below the largest exponent.
const KEPT_BITS: i32 = 25;
/// Exponent given to zero: below that of every non-zero product, so that it never decides.
const ZERO_EXPONENT: i32 = -1000;

/// A finite 16-bit value as `significand · 2^(exponent − fraction bits)`, or not finite.
#[derive(Clone, Copy, Debug, Default)]
struct Operand {
    /// Signed; zero for zero, infinity and NaN.
    significand: i32,
    exponent: i32,
    special: Special,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Special {
    #[default]
    Finite,
    Infinite {
        negative: bool,
    },
    Nan,
}

/// Layout of a 16-bit format.
#[derive(Clone, Copy)]
struct Layout {
    fraction_bits: u32,
    bias: i32,
}

const BF16: Layout = Layout { fraction_bits: 7, bias: 127 };
const F16: Layout = Layout { fraction_bits: 10, bias: 15 };

impl Layout {
    fn decode(self, code: u16) -> Operand {
        let negative = code >> 15 == 1;
        let fraction = i32::from(code) & ((1 << self.fraction_bits) - 1);
        let exponent_bits = 15 - self.fraction_bits;
        let field = (i32::from(code) >> self.fraction_bits) & ((1 << exponent_bits) - 1);
        if field == (1 << exponent_bits) - 1 {
            let special = if fraction == 0 { Special::Infinite { negative } } else { Special::Nan };
            return Operand { significand: 0, exponent: ZERO_EXPONENT, special };
        }
        let magnitude = if field == 0 { fraction } else { fraction | 1 << self.fraction_bits };
        let exponent = if magnitude == 0 { ZERO_EXPONENT } else { field.max(1) - self.bias };
        Operand {
            significand: if negative { -magnitude } else { magnitude },
            exponent,
            special: Special::Finite,
        }
    }
}

/// One output: the sum of sixteen products and the accumulator.
fn dot(a: &[Operand; K], b: &[Operand; K], c: f32, layout: Layout) -> f32 {
    if let Some(special) = special_result(a, b, c) {
        return special;
    }
    let (c_magnitude, c_exponent) = decode_f32(c);
    let mut largest = c_exponent;
    let mut exponents = [0; K];
    let mut products = [0_i32; K];
    for k in 0..K {
        products[k] = a[k].significand * b[k].significand;
        exponents[k] = a[k].exponent + b[k].exponent;
        largest = largest.max(exponents[k]);
    }
    // A product has twice the format's fraction bits below its exponent.
    let headroom = KEPT_BITS - 2 * layout.fraction_bits as i32;
    let mut sum = 0_i64;
    for k in 0..K {
        let drop = (largest - exponents[k]).min(31) as u32;
        let magnitude = (products[k].unsigned_abs() << headroom) >> drop;
        sum += if products[k] < 0 { -i64::from(magnitude) } else { i64::from(magnitude) };
    }
    let drop = (largest - c_exponent).min(31) as u32;
    let magnitude = i64::from((c_magnitude << (KEPT_BITS - 23)) >> drop);
    sum += if c < 0.0 { -magnitude } else { magnitude };
    encode_truncated(sum, largest - KEPT_BITS)
}

/// Magnitude with 23 fraction bits, and exponent.
fn decode_f32(value: f32) -> (u32, i32) {
    let bits = value.to_bits() & 0x7fff_ffff;
    let (field, fraction) = ((bits >> 23) as i32, bits & 0x7f_ffff);
    match (field, fraction) {
        (0, 0) => (0, ZERO_EXPONENT),
        (0, _) => (fraction, -126),
        _ => (fraction | 1 << 23, field - 127),
    }
}

/// `sum · 2^exponent`, truncated toward zero to an f32.
fn encode_truncated(sum: i64, exponent: i32) -> f32 {
    if sum == 0 {
        return 0.0;
    }
    let magnitude = sum.unsigned_abs();
    let sign = u32::from(sum < 0) << 31;
    let top = 63 - magnitude.leading_zeros() as i32;
    let value_exponent = top + exponent;
    if value_exponent > 127 {
        return f32::from_bits(sign | 0x7f80_0000);
    }
    // Quantum of the result: 24 bits for normal numbers, the fixed one for subnormals.
    let quantum = (value_exponent - 23).max(-149);
    let shift = quantum - exponent;
    let kept = match shift {
        s if s >= 64 => 0,
        s if s >= 0 => magnitude >> s,
        s => magnitude << -s,
    } as u32;
    let field = if value_exponent >= -126 { (value_exponent + 127) as u32 } else { 0 };
    let fraction = if field > 0 { kept & 0x7f_ffff } else { kept };
    f32::from_bits(sign | field << 23 | fraction)
}

/// The result if an operand is not finite.
fn special_result(a: &[Operand; K], b: &[Operand; K], c: f32) -> Option<f32> {
    const NAN: f32 = f32::from_bits(0x7fff_ffff);
    let (mut positive, mut negative) = (c == f32::INFINITY, c == f32::NEG_INFINITY);
    let mut nan = c.is_nan();
    for (x, y) in a.iter().zip(b) {
        let infinite = match (x.special, y.special) {
            (Special::Finite, Special::Finite) => continue,
            (Special::Nan, _) | (_, Special::Nan) => None,
            (Special::Infinite { negative: n }, Special::Infinite { negative: m }) => Some(n != m),
            (Special::Infinite { negative: n }, Special::Finite) => {
                (y.significand != 0).then_some(n != (y.significand < 0))
            }
            (Special::Finite, Special::Infinite { negative: n }) => {
                (x.significand != 0).then_some(n != (x.significand < 0))
            }
        };
        match infinite {
            None => nan = true,
            Some(true) => negative = true,
            Some(false) => positive = true,
        }
    }
    match (nan || (positive && negative), positive, negative) {
        (true, ..) => Some(NAN),
        (_, true, _) => Some(f32::INFINITY),
        (_, _, true) => Some(f32::NEG_INFINITY),
        _ => None,
    }
}

/// Row and column of element `i` of a lane's A fragment.
fn a_place(lane: usize, i: usize) -> (usize, usize) {
    (lane / 4 + 8 * ((i >> 1) & 1), 2 * (lane % 4) + (i & 1) + 8 * (i >> 2))
}

/// Row (k) and column (n) of element `i` of a lane's B fragment.
fn b_place(lane: usize, i: usize) -> (usize, usize) {
    (2 * (lane % 4) + (i & 1) + 8 * (i >> 1), lane / 4)
}

/// Row and column of element `i` of a lane's C and D fragments.
fn c_place(lane: usize, i: usize) -> (usize, usize) {
    (lane / 4 + 8 * (i >> 1), 2 * (lane % 4) + (i & 1))
}

fn half(registers: &[u32], i: usize) -> u16 {
    (registers[i / 2] >> (16 * (i % 2))) as u16
}

/// D = A·B + C for a whole warp.
pub(super) fn multiply(lanes: &Lanes, f16: bool) {
    let layout = if f16 { F16 } else { BF16 };
    let mut a = [[Operand::default(); K]; M];
    let mut b = [[Operand::default(); K]; N];
    let mut c = [[0.0_f32; N]; M];
    for lane in 0..WARP {
        let Operation::Mma { a: pa, b: pb, c: pc, .. } = lanes.get(lane).wait.operation else { continue };
        // SAFETY: the kernel passes arrays of 4, 2 and 4 elements on the lane's stack, which stays put while the
        // lane is suspended.
        let (ra, rb, rc) =
            unsafe { (*pa.cast::<[u32; 4]>(), *pb.cast::<[u32; 2]>(), *pc.cast::<[f32; 4]>()) };
        for i in 0..8 {
            let (row, k) = a_place(lane, i);
            a[row][k] = layout.decode(half(&ra, i));
        }
        for (i, &value) in rc.iter().enumerate() {
            let (k, column) = b_place(lane, i);
            b[column][k] = layout.decode(half(&rb, i));
            let (row, column) = c_place(lane, i);
            c[row][column] = value;
        }
    }
    for lane in 0..WARP {
        let Operation::Mma { d, .. } = lanes.get(lane).wait.operation else { continue };
        for i in 0..4 {
            let (row, column) = c_place(lane, i);
            // SAFETY: `d` is an array of 4 on the lane's stack; it may be `c`, which has been read.
            unsafe { d.add(i).write(dot(&a[row], &b[column], c[row][column], layout)) };
        }
    }
}
