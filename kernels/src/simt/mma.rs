//! mma.sync.aligned.m16n8k16 with f32 accumulators, bit for bit as measured on an H200.
//!
//! The products are exact. The largest exponent is taken over the sixteen products (exponent of a plus exponent of
//! b, not normalised, subnormals keeping the minimum exponent, zeros not counted) and the accumulator; with the quantum
//! 2^(that exponent − 25), each product and the accumulator are truncated toward zero to multiples of it and added
//! as integers; the sum is truncated toward zero to 24 bits, or to the f32 subnormals' quantum. A result of zero is
//! positive, one too large is infinite, NaN is 0x7fffffff.
//!
//! Held against 1,024,000 outputs of the card in the ten kinds of data that the recorded tiles of the tests stand for,
//! and against 2.56 million before: no difference.

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

/// Sixteen operands, field by field, so that the compiler can work on several at once.
#[derive(Clone, Copy)]
struct Vector {
    significand: [i32; K],
    exponent: [i32; K],
    special: [Special; K],
    finite: bool,
}

impl Vector {
    const ZERO: Self = Self {
        significand: [0; K],
        exponent: [ZERO_EXPONENT; K],
        special: [Special::Finite; K],
        finite: true,
    };

    fn set(&mut self, k: usize, operand: Operand) {
        self.significand[k] = operand.significand;
        self.exponent[k] = operand.exponent;
        self.special[k] = operand.special;
        self.finite &= operand.special == Special::Finite;
    }
}

/// One output: the sum of sixteen products and the accumulator.
#[inline(always)]
fn dot(a: &Vector, b: &Vector, c: f32, layout: Layout) -> f32 {
    if !(a.finite && b.finite && c.is_finite())
        && let Some(special) = special_result(a, b, c)
    {
        return special;
    }
    let (c_magnitude, c_exponent) = decode_f32(c);
    let exponents: [i32; K] = std::array::from_fn(|k| a.exponent[k] + b.exponent[k]);
    let largest = exponents.iter().fold(c_exponent, |largest, &e| largest.max(e));
    // A product has twice the format's fraction bits below its exponent.
    let headroom = KEPT_BITS - 2 * layout.fraction_bits as i32;
    // Eight magnitudes below 2^27 fit.
    let mut sums = [0_i32; 2];
    for k in 0..K {
        let product = a.significand[k] * b.significand[k];
        let drop = (largest - exponents[k]).min(31) as u32;
        let magnitude = ((product.unsigned_abs() << headroom) >> drop) as i32;
        sums[k / (K / 2)] += if product < 0 { -magnitude } else { magnitude };
    }
    let drop = (largest - c_exponent).min(31) as u32;
    let magnitude = i64::from((c_magnitude << (KEPT_BITS - 23)) >> drop);
    let addend = if c < 0.0 { -magnitude } else { magnitude };
    encode_truncated(i64::from(sums[0]) + i64::from(sums[1]) + addend, largest - KEPT_BITS)
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
    if kept == 0 {
        return 0.0;
    }
    let field = if value_exponent >= -126 { (value_exponent + 127) as u32 } else { 0 };
    let fraction = if field > 0 { kept & 0x7f_ffff } else { kept };
    f32::from_bits(sign | field << 23 | fraction)
}

/// The result if an operand is not finite.
#[cold]
fn special_result(a: &Vector, b: &Vector, c: f32) -> Option<f32> {
    const NAN: f32 = f32::from_bits(0x7fff_ffff);
    let (mut positive, mut negative) = (c == f32::INFINITY, c == f32::NEG_INFINITY);
    let mut nan = c.is_nan();
    for k in 0..K {
        let (x, y) = (a.significand[k], b.significand[k]);
        let infinite = match (a.special[k], b.special[k]) {
            (Special::Finite, Special::Finite) => continue,
            (Special::Nan, _) | (_, Special::Nan) => None,
            (Special::Infinite { negative: n }, Special::Infinite { negative: m }) => Some(n != m),
            (Special::Infinite { negative: n }, Special::Finite) => (y != 0).then_some(n != (y < 0)),
            (Special::Finite, Special::Infinite { negative: n }) => (x != 0).then_some(n != (x < 0)),
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

/// Operands of a whole warp: rows of A, columns of B, rows of C.
struct Operands {
    a: [Vector; M],
    b: [Vector; N],
    c: [[f32; N]; M],
}

type Product = [[f32; N]; M];

#[inline(always)]
fn product(operands: &Operands, layout: Layout) -> Product {
    let mut d = [[0.0; N]; M];
    for (row, (a, c)) in d.iter_mut().zip(operands.a.iter().zip(&operands.c)) {
        for (out, (b, &c)) in row.iter_mut().zip(operands.b.iter().zip(c)) {
            *out = dot(a, b, c, layout);
        }
    }
    d
}

/// The same code with eight lanes and per-lane shifts.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn product_avx2(operands: &Operands, layout: Layout) -> Product {
    product(operands, layout)
}

/// D = A·B + C for a whole warp.
pub(super) fn multiply(lanes: &Lanes, f16: bool) {
    let layout = if f16 { F16 } else { BF16 };
    let operands = gather(lanes, layout);
    #[cfg(target_arch = "x86_64")]
    let d = if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the feature.
        unsafe { product_avx2(&operands, layout) }
    } else {
        product(&operands, layout)
    };
    #[cfg(not(target_arch = "x86_64"))]
    let d = product(&operands, layout);
    for lane in 0..WARP {
        let Operation::Mma { d: out, .. } = lanes.get(lane).wait.operation else { continue };
        for i in 0..4 {
            let (row, column) = c_place(lane, i);
            // SAFETY: an array of 4 on the lane's stack; it may be the one of C, which has been read.
            unsafe { out.add(i).write(d[row][column]) };
        }
    }
}

fn gather(lanes: &Lanes, layout: Layout) -> Operands {
    let mut operands = Operands { a: [Vector::ZERO; M], b: [Vector::ZERO; N], c: [[0.0; N]; M] };
    for lane in 0..WARP {
        let Operation::Mma { a, b, c, .. } = lanes.get(lane).wait.operation else { continue };
        // SAFETY: the kernel passes arrays of 4, 2 and 4 elements on the lane's stack, which stays put while the
        // lane is suspended.
        let (a, b, c) = unsafe { (*a.cast::<[u32; 4]>(), *b.cast::<[u32; 2]>(), *c.cast::<[f32; 4]>()) };
        for i in 0..8 {
            let (row, k) = a_place(lane, i);
            operands.a[row].set(k, layout.decode(half(&a, i)));
        }
        for (i, &value) in c.iter().enumerate() {
            let (k, column) = b_place(lane, i);
            operands.b[column].set(k, layout.decode(half(&b, i)));
            let (row, column) = c_place(lane, i);
            operands.c[row][column] = value;
        }
    }
    operands
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bf16_row(values: [f32; K]) -> Vector {
        let mut row = Vector::ZERO;
        for (k, v) in values.into_iter().enumerate() {
            row.set(k, BF16.decode((v.to_bits() >> 16) as u16));
        }
        row
    }

    #[test]
    fn integers_are_exact() {
        let a = bf16_row(std::array::from_fn(|k| k as f32 - 8.0));
        let b = bf16_row(std::array::from_fn(|k| 3.0 * k as f32));
        let want: i32 = (0..16).map(|k| (k - 8) * 3 * k).sum();
        assert_eq!(dot(&a, &b, 1000.0, BF16), 1000.0 + want as f32);
    }

    #[test]
    fn small_terms_are_truncated_against_the_largest_exponent() {
        let mut a = [0.0; K];
        (a[0], a[1]) = (1.0, 1.0);
        let mut b = [0.0; K];
        // 25 bits below the largest exponent still count, and 24 bits of the sum are kept.
        (b[0], b[1]) = (1.0, -f32::exp2(-25.0));
        let one_less = f32::from_bits(1.0_f32.to_bits() - 1);
        assert_eq!(dot(&bf16_row(a), &bf16_row(b), 0.0, BF16), one_less);
        b[1] = -f32::exp2(-26.0);
        assert_eq!(dot(&bf16_row(a), &bf16_row(b), 0.0, BF16), 1.0);
    }

    #[test]
    fn infinities_and_nan_follow_the_rules_of_sums() {
        let row = |first: f32, second: f32| {
            let mut values = [0.0; K];
            (values[0], values[1]) = (first, second);
            bf16_row(values)
        };
        let inf = f32::INFINITY;
        assert_eq!(dot(&row(inf, 1.0), &row(2.0, 1.0), 5.0, BF16), inf);
        assert_eq!(dot(&row(inf, 1.0), &row(-2.0, 1.0), 5.0, BF16), -inf);
        assert!(dot(&row(inf, 1.0), &row(0.0, 1.0), 5.0, BF16).is_nan());
        assert!(dot(&row(inf, inf), &row(1.0, -1.0), 5.0, BF16).is_nan());
        assert!(dot(&row(inf, 1.0), &row(1.0, 1.0), -inf, BF16).is_nan());
        assert!(dot(&row(1.0, 1.0), &row(1.0, 1.0), f32::NAN, BF16).is_nan());
    }

    #[test]
    fn every_place_of_a_fragment_is_someones_once() {
        let mut counts = ([[0; K]; M], [[0; N]; K], [[0; N]; M]);
        for lane in 0..WARP {
            for i in 0..8 {
                let (row, k) = a_place(lane, i);
                counts.0[row][k] += 1;
            }
            for i in 0..4 {
                let ((k, n), (row, column)) = (b_place(lane, i), c_place(lane, i));
                counts.1[k][n] += 1;
                counts.2[row][column] += 1;
            }
        }
        assert_eq!(counts, ([[1; K]; M], [[1; N]; K], [[1; N]; M]));
    }
}
