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

/// A row of A, field by field.
#[derive(Clone, Copy)]
struct Row {
    significand: [i32; K],
    exponent: [i32; K],
    special: [Special; K],
    finite: bool,
}

impl Row {
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

/// B, field by field: eight columns side by side, so that the compiler works on all of them at once.
#[derive(Clone, Copy)]
struct Columns {
    significand: [[i32; N]; K],
    exponent: [[i32; N]; K],
    special: [[Special; N]; K],
    finite: bool,
}

impl Columns {
    const ZERO: Self = Self {
        significand: [[0; N]; K],
        exponent: [[ZERO_EXPONENT; N]; K],
        special: [[Special::Finite; N]; K],
        finite: true,
    };

    fn set(&mut self, k: usize, column: usize, operand: Operand) {
        self.significand[k][column] = operand.significand;
        self.exponent[k][column] = operand.exponent;
        self.special[k][column] = operand.special;
        self.finite &= operand.special == Special::Finite;
    }
}

/// Eight outputs: each the sum of sixteen products and its accumulator.
#[inline(always)]
fn multiply_row(a: &Row, b: &Columns, c: &[f32; N], layout: Layout) -> [f32; N] {
    let mut d = finite_row(a, b, c, layout);
    if !(a.finite && b.finite && c.iter().all(|c| c.is_finite())) {
        replace_specials(&mut d, a, b, c);
    }
    d
}

/// The same, where what is not finite counts as anything.
#[inline(always)]
fn finite_row(a: &Row, b: &Columns, c: &[f32; N], layout: Layout) -> [f32; N] {
    // Loops, not closures: those are compiled apart, without the instructions of the function that this goes into.
    let (mut c_magnitude, mut c_exponent) = ([0; N], [0; N]);
    for n in 0..N {
        (c_magnitude[n], c_exponent[n]) = decode_f32(c[n]);
    }
    let mut largest = c_exponent;
    for k in 0..K {
        for (largest, exponent) in largest.iter_mut().zip(&b.exponent[k]) {
            *largest = (*largest).max(a.exponent[k] + exponent);
        }
    }
    // A product has twice the format's fraction bits below its exponent.
    let headroom = KEPT_BITS - 2 * layout.fraction_bits as i32;
    // Sixteen products of the largest significands (255 and 2047) just fit.
    let mut sums = [0_i32; N];
    for k in 0..K {
        let significand = a.significand[k] << headroom;
        for n in 0..N {
            let product = significand * b.significand[k][n];
            let drop = (largest[n] - (a.exponent[k] + b.exponent[k][n])).min(31) as u32;
            let magnitude = (product.unsigned_abs() >> drop) as i32;
            sums[n] += if product < 0 { -magnitude } else { magnitude };
        }
    }
    let mut d = [0.0; N];
    for n in 0..N {
        let drop = (largest[n] - c_exponent[n]).min(31) as u32;
        let magnitude = ((c_magnitude[n] << (KEPT_BITS - 23)) >> drop) as i32;
        let addend = if c[n] < 0.0 { -magnitude } else { magnitude };
        let sum = f64::from(sums[n]) + f64::from(addend);
        d[n] = truncated(sum * power_of_two(largest[n] - KEPT_BITS));
    }
    d
}

/// 2^exponent; where no product and no accumulator has an exponent, anything.
#[inline(always)]
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent.max(-1000) + 1023) as u64) << 52)
}

/// Truncated toward zero to an f32, zero being positive. Exact in f64 up to here: sums have less than 34 bits, and f64 goes
/// far below the smallest product of two subnormals.
#[inline(always)]
fn truncated(value: f64) -> f32 {
    const SMALLEST_NORMAL: f64 = f32::MIN_POSITIVE as f64;
    let subnormal = (value * power_of_two(149)).trunc() * power_of_two(-149);
    let normal = f64::from_bits(value.to_bits() & !((1 << (52 - 23)) - 1));
    let kept = if value.abs() < SMALLEST_NORMAL { subnormal } else { normal };
    // A negative zero becomes a positive one.
    (kept + 0.0) as f32
}

/// Puts the results in that infinities and NaN decide.
#[cold]
fn replace_specials(d: &mut [f32; N], a: &Row, b: &Columns, c: &[f32; N]) {
    for (column, d) in d.iter_mut().enumerate() {
        if let Some(special) = special_result(a, b, column, c[column]) {
            *d = special;
        }
    }
}

/// Magnitude with 23 fraction bits, and exponent.
#[inline(always)]
fn decode_f32(value: f32) -> (u32, i32) {
    let bits = value.to_bits() & 0x7fff_ffff;
    let (field, fraction) = ((bits >> 23) as i32, bits & 0x7f_ffff);
    match (field, fraction) {
        (0, 0) => (0, ZERO_EXPONENT),
        (0, _) => (fraction, -126),
        _ => (fraction | 1 << 23, field - 127),
    }
}

/// The result if an operand is not finite.
fn special_result(a: &Row, b: &Columns, column: usize, c: f32) -> Option<f32> {
    const NAN: f32 = f32::from_bits(0x7fff_ffff);
    let (mut positive, mut negative) = (c == f32::INFINITY, c == f32::NEG_INFINITY);
    let mut nan = c.is_nan();
    for k in 0..K {
        let (x, y) = (a.significand[k], b.significand[k][column]);
        let infinite = match (a.special[k], b.special[k][column]) {
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

/// Operands of a whole warp.
struct Operands {
    a: [Row; M],
    b: Columns,
    c: [[f32; N]; M],
}

type Product = [[f32; N]; M];

#[inline(always)]
fn product(operands: &Operands, layout: Layout) -> Product {
    let mut d = [[0.0; N]; M];
    for (d, (a, c)) in d.iter_mut().zip(operands.a.iter().zip(&operands.c)) {
        *d = multiply_row(a, &operands.b, c, layout);
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
    let mut operands = Operands { a: [Row::ZERO; M], b: Columns::ZERO, c: [[0.0; N]; M] };
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
            operands.b.set(k, column, layout.decode(half(&b, i)));
            let (row, column) = c_place(lane, i);
            operands.c[row][column] = value;
        }
    }
    operands
}

#[cfg(test)]
mod tests {
    use rand::{RngExt as _, SeedableRng as _};

    use super::*;

    type Codes = [u16; K];

    fn bf16(values: [f32; K]) -> Codes {
        values.map(|value| (value.to_bits() >> 16) as u16)
    }

    /// The outputs of a row of A and as many columns of B as there are.
    fn multiplied(a: &Codes, b: &[Codes; N], c: &[f32; N], layout: Layout) -> [f32; N] {
        let (mut row, mut columns) = (Row::ZERO, Columns::ZERO);
        for k in 0..K {
            row.set(k, layout.decode(a[k]));
            b.iter().enumerate().for_each(|(n, b)| columns.set(k, n, layout.decode(b[k])));
        }
        multiply_row(&row, &columns, c, layout)
    }

    fn dot(a: [f32; K], b: [f32; K], c: f32) -> f32 {
        let d = multiplied(&bf16(a), &[bf16(b); N], &[c; N], BF16);
        assert!(d.iter().all(|other| other.to_bits() == d[0].to_bits()), "{d:?}");
        d[0]
    }

    #[test]
    fn integers_are_exact() {
        let a = std::array::from_fn(|k| k as f32 - 8.0);
        let b = std::array::from_fn(|k| 3.0 * k as f32);
        let want: i32 = (0..16).map(|k| (k - 8) * 3 * k).sum();
        assert_eq!(dot(a, b, 1000.0), 1000.0 + want as f32);
    }

    #[test]
    fn sixteen_products_of_the_largest_significands_do_not_overflow() {
        assert_eq!(dot([255.0; K], [-255.0; K], -1.0), -(16.0 * 255.0 * 255.0 + 1.0));
        // 2047, whose sixteen squares have 26 bits, so that one more is lost.
        let largest = [0x67ff; K];
        assert_eq!(multiplied(&largest, &[largest; N], &[1.0; N], F16), [16.0 * 2047.0 * 2047.0; N]);
    }

    #[test]
    fn small_terms_are_truncated_against_the_largest_exponent() {
        let mut a = [0.0; K];
        (a[0], a[1]) = (1.0, 1.0);
        let mut b = [0.0; K];
        // 25 bits below the largest exponent still count, and 24 bits of the sum are kept.
        (b[0], b[1]) = (1.0, -f32::exp2(-25.0));
        let one_less = f32::from_bits(1.0_f32.to_bits() - 1);
        assert_eq!(dot(a, b, 0.0), one_less);
        b[1] = -f32::exp2(-26.0);
        assert_eq!(dot(a, b, 0.0), 1.0);
    }

    #[test]
    fn infinities_and_nan_follow_the_rules_of_sums() {
        let row = |first: f32, second: f32| {
            let mut values = [0.0; K];
            (values[0], values[1]) = (first, second);
            values
        };
        let inf = f32::INFINITY;
        assert_eq!(dot(row(inf, 1.0), row(2.0, 1.0), 5.0), inf);
        assert_eq!(dot(row(inf, 1.0), row(-2.0, 1.0), 5.0), -inf);
        assert!(dot(row(inf, 1.0), row(0.0, 1.0), 5.0).is_nan());
        assert!(dot(row(inf, inf), row(1.0, -1.0), 5.0).is_nan());
        assert!(dot(row(inf, 1.0), row(1.0, 1.0), -inf).is_nan());
        assert!(dot(row(1.0, 1.0), row(1.0, 1.0), f32::NAN).is_nan());
    }

    /// `significand · 2^(exponent − fraction bits)` cut toward zero to a multiple of 2^quantum: that multiple.
    fn cut(significand: i64, exponent: i32, fraction_bits: i32, quantum: i32) -> i64 {
        let shift = exponent - fraction_bits - quantum;
        let magnitude = significand.unsigned_abs();
        let kept =
            if shift >= 0 { magnitude << shift } else { magnitude.checked_shr((-shift) as u32).unwrap_or(0) };
        significand.signum() * kept as i64
    }

    /// The module's rules for one output of finite operands, term by term in integers.
    fn by_integers(a: &Codes, b: &Codes, c: f32, layout: Layout) -> f32 {
        let (c_magnitude, c_exponent) = decode_f32(c);
        let mut terms = vec![(i64::from(c_magnitude) * if c < 0.0 { -1 } else { 1 }, c_exponent, 23)];
        for (a, b) in a.iter().zip(b).map(|(a, b)| (layout.decode(*a), layout.decode(*b))) {
            let significand = i64::from(a.significand) * i64::from(b.significand);
            terms.push((significand, a.exponent + b.exponent, 2 * layout.fraction_bits as i32));
        }
        terms.retain(|(significand, ..)| *significand != 0);
        let Some(largest) = terms.iter().map(|(_, exponent, _)| *exponent).max() else { return 0.0 };
        let quantum = largest - KEPT_BITS;
        let sum: i64 = terms
            .iter()
            .map(|(significand, exponent, bits)| cut(*significand, *exponent, *bits, quantum))
            .sum();
        // The result's own quantum: 24 bits, or the subnormals'.
        let top = 63 - sum.unsigned_abs().leading_zeros() as i32 + quantum;
        let last = (top - 23).max(-149);
        let kept = cut(sum, quantum, 0, last);
        match (kept, top) {
            (0, _) => 0.0,
            (_, 128..) => f32::INFINITY.copysign(sum as f32),
            _ => (kept as f64 * f64::exp2(f64::from(last))) as f32,
        }
    }

    /// Codes of finite values whose exponents lie within `spread` of the largest; now and then a zero or a subnormal.
    fn finite_code(rng: &mut impl rand::Rng, layout: Layout, top: i32, spread: i32) -> u16 {
        let field = match rng.random_range(0..12) {
            0 => 0,
            _ => (top - rng.random_range(0..=spread)).max(0) as u16,
        };
        let fraction =
            if rng.random_range(0..8) == 0 { 0 } else { rng.random_range(0..1_u16 << layout.fraction_bits) };
        u16::from(rng.random::<bool>()) << 15 | field << layout.fraction_bits | fraction
    }

    #[test]
    fn random_rows_come_out_as_term_by_term_in_integers() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(1);
        for round in 0..20_000 {
            let layout = if round % 2 == 0 { BF16 } else { F16 };
            let fields = (1 << (15 - layout.fraction_bits)) - 1;
            let (top, spread) = (rng.random_range(1..fields), rng.random_range(0..fields));
            let a: Codes = std::array::from_fn(|_| finite_code(&mut rng, layout, top, spread));
            let top = rng.random_range(1..fields);
            let b: [Codes; N] =
                std::array::from_fn(|_| std::array::from_fn(|_| finite_code(&mut rng, layout, top, spread)));
            // As large as a product may be, give or take, or anything finite.
            let scale = f32::exp2(rng.random_range(-150.0..127.0));
            let c: [f32; N] =
                std::array::from_fn(|n| if n == 0 { 0.0 } else { scale * rng.random_range(-1.0..1.0) });
            let got = multiplied(&a, &b, &c, layout);
            for n in 0..N {
                let want = by_integers(&a, &b[n], c[n], layout);
                assert_eq!(
                    got[n].to_bits(),
                    want.to_bits(),
                    "{a:04x?} {:04x?} {} gave {}, not {want}",
                    b[n],
                    c[n],
                    got[n]
                );
            }
        }
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
