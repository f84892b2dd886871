//! ex2.approx.ftz.f32, bit for bit as measured on an H200 (compute capability 9.0), for every argument.
//!
//! The unit has the shape published by Oberman and Siu ("A high-performance area-efficient multifunction
//! interpolator", 2005): a table indexed by six bits of the fraction and a quadratic in the other seventeen, with
//! coefficients of 26, 16 and 10 bits.
//!
//! 1. |x| is truncated to a multiple of 2^-23. A positive argument is then at most one step above its fixed-point
//!    value. The same is made true of negative arguments by taking the one's complement of the truncated magnitude
//!    instead of its negative; only if that magnitude is a whole number is it negated. The part before the binary
//!    point becomes the exponent, the 23 bits after it are the fraction f. So whole steps within one sign shift the
//!    result exactly, and a step from a negative to a positive argument need not.
//! 2. With k the upper 6 and u the lower 17 bits of f, the significand in units of 2^-23 is
//!    `floor(c0/2^2 + c1·u/2^15 + c2·square(u)/2^34 + 6114/2^15)`, where `square` drops every partial product of u²
//!    below 2^19. The constant makes up, on average, for what is dropped.
//! 3. Results below the smallest normal number are zero.
//!
//! The coefficients, the constant and the place where the square is cut were derived from the results for all 2^23
//! fractions of negative arguments, all of which they reproduce. The whole function was then compared with the
//! instruction for all 2^32 arguments, with no difference.

/// Bits of the fraction, of u, and of the part of u² that is not computed.
const FRACTION_BITS: u32 = 23;
const LOW_BITS: u32 = 17;
const SQUARE_DROPPED_BITS: u32 = 19;
/// The significand is computed in units of 2^-15 of its last place; `c0` counts quarters.
const SUM_BITS: u32 = 15;
const C0_SHIFT: u32 = SUM_BITS - 2;
const ROUNDING: u64 = 6114;

const HIDDEN_BIT: u32 = 1 << FRACTION_BITS;
const FRACTION_MASK: u32 = HIDDEN_BIT - 1;
const EXPONENT_BIAS: i32 = 127;
/// 128.0, the first magnitude with an infinite or zero result; infinity and NaN are above it.
const FAR: u32 = 0x4300_0000;
const INFINITY: u32 = 0x7f80_0000;
const NAN: u32 = 0x7fff_ffff;

/// Coefficients of one of the 64 segments of [0, 1).
#[derive(Clone, Copy)]
struct Segment {
    c0: u32,
    c1: u16,
    c2: u16,
}

/// 2^x as the GPU instruction `ex2.approx.ftz.f32` computes it.
///
/// The relative error of normal results is below 2^-22. Subnormal arguments count as zero, so their result is 1. From
/// 128 on the result is infinity, below -126 it is 0, and NaN gives the NaN with bits 0x7fffffff.
#[inline]
pub fn ex2_approx_ftz(x: f32) -> f32 {
    let bits = x.to_bits();
    let magnitude = bits & !(1 << 31);
    if magnitude >= FAR {
        return f32::from_bits(match (magnitude > INFINITY, x.is_sign_negative()) {
            (true, _) => NAN,
            (false, true) => 0,
            (false, false) => INFINITY,
        });
    }
    let fixed = fixed_point(bits);
    let exponent = (fixed >> FRACTION_BITS) + EXPONENT_BIAS;
    if exponent <= 0 {
        return 0.0;
    }
    let significand = significand(fixed as u32 & FRACTION_MASK);
    f32::from_bits(((exponent as u32) << FRACTION_BITS) + (significand - HIDDEN_BIT))
}

/// x in units of 2^-23, |x| < 128.
#[inline]
fn fixed_point(bits: u32) -> i32 {
    let exponent = (bits & INFINITY) >> FRACTION_BITS;
    let significand = u64::from(bits & FRACTION_MASK | HIDDEN_BIT);
    // Exponents below 128 are shifted left by up to 6 bits, so start 7 bits up and shift right only. Anything below
    // 2^-23, zero and subnormals included, is shifted out.
    let shift = (EXPONENT_BIAS as u32 + 7 - exponent).min(u64::BITS - 1);
    let magnitude = ((significand << 7) >> shift) as i32;
    let is_whole = magnitude & FRACTION_MASK as i32 == 0;
    let sign = bits as i32 >> 31;
    (magnitude ^ sign) - (sign & -i32::from(is_whole))
}

/// The 24-bit significand of 2^(fraction / 2^23), leading bit included.
#[inline]
fn significand(fraction: u32) -> u32 {
    let Segment { c0, c1, c2 } = SEGMENTS[(fraction >> LOW_BITS) as usize];
    let low = fraction & ((1 << LOW_BITS) - 1);
    let sum = (u64::from(c0) << C0_SHIFT)
        + u64::from(u32::from(c1)) * u64::from(low)
        + u64::from(u32::from(c2) * truncated_square(low))
        + ROUNDING;
    (sum >> SUM_BITS) as u32
}

/// The partial products u_i·2^2i and u_i·u_j·2^(i+j+1), j < i, of at least 2^19, in units of 2^19.
///
/// What is left has a bit from 10 on in every product; bits 0 and 1 are in none. So the sum can be looked up in two
/// parts: the products of bits 6 to 16, and those of bits 2 to 5 with bits 10 to 16.
#[inline]
fn truncated_square(u: u32) -> u32 {
    let lower = (u >> HIGH_SHIFT << LOWER_BITS) | (u >> LOWER_SHIFT & LOWER_MASK);
    u32::from(SQUARES.upper[(u >> UPPER_SHIFT) as usize]) + u32::from(SQUARES.lower[lower as usize])
}

const HIGH_SHIFT: u32 = 10;
const UPPER_SHIFT: u32 = 6;
const LOWER_SHIFT: u32 = 2;
const LOWER_BITS: u32 = UPPER_SHIFT - LOWER_SHIFT;
const LOWER_MASK: u32 = (1 << LOWER_BITS) - 1;
const UPPER_ENTRIES: usize = 1 << (LOW_BITS - UPPER_SHIFT);
const LOWER_ENTRIES: usize = 1 << (LOW_BITS - HIGH_SHIFT + LOWER_BITS);

struct Squares {
    upper: [u16; UPPER_ENTRIES],
    lower: [u16; LOWER_ENTRIES],
}

static SQUARES: Squares = {
    let mut squares = Squares { upper: [0; UPPER_ENTRIES], lower: [0; LOWER_ENTRIES] };
    let mut i = 0;
    while i < UPPER_ENTRIES {
        squares.upper[i] = sum_of_products((i as u32) << UPPER_SHIFT);
        i += 1;
    }
    i = 0;
    while i < LOWER_ENTRIES {
        let high = i as u32 >> LOWER_BITS << HIGH_SHIFT;
        let low = (i as u32 & LOWER_MASK) << LOWER_SHIFT;
        squares.lower[i] = sum_of_products(high | low) - sum_of_products(high);
        i += 1;
    }
    squares
};

/// [`truncated_square`], bit by bit.
const fn sum_of_products(u: u32) -> u16 {
    let mut sum = 0;
    let mut i = SQUARE_DROPPED_BITS.div_ceil(2);
    while i < LOW_BITS {
        if (u >> i) & 1 == 1 {
            let below = u & ((1 << i) - 1);
            sum += (1 << (2 * i - SQUARE_DROPPED_BITS)) + (below >> (SQUARE_DROPPED_BITS - 1 - i));
        }
        i += 1;
    }
    sum as u16
}

const fn segment(c0: u32, c1: u16, c2: u16) -> Segment {
    Segment { c0, c1, c2 }
}

#[rustfmt::skip]
const SEGMENTS: [Segment; 64] = [
    segment(33554435, 22713, 494), segment(33919818, 22960, 501), segment(34289182, 23210, 506),
    segment(34662565, 23463, 511), segment(35040018, 23718, 518), segment(35421577, 23977, 521),
    segment(35807292, 24238, 527), segment(36197209, 24502, 532), segment(36591372, 24768, 541),
    segment(36989825, 25038, 546), segment(37392616, 25311, 551), segment(37799797, 25586, 559),
    segment(38211409, 25865, 564), segment(38627504, 26147, 568), segment(39048131, 26431, 577),
    segment(39473337, 26719, 583), segment(39903173, 27010, 589), segment(40337690, 27304, 596),
    segment(40776937, 27602, 600), segment(41220970, 27902, 609), segment(41669836, 28206, 615),
    segment(42123592, 28513, 622), segment(42582286, 28824, 627), segment(43045977, 29138, 633),
    segment(43514717, 29455, 641), segment(43988561, 29776, 647), segment(44467565, 30100, 655),
    segment(44951786, 30428, 661), segment(45441278, 30759, 670), segment(45936101, 31094, 677),
    segment(46436314, 31432, 686), segment(46941971, 31775, 691), segment(47453135, 32121, 699),
    segment(47969867, 32471, 705), segment(48492225, 32824, 715), segment(49020269, 33182, 721),
    segment(49554065, 33543, 730), segment(50093674, 33908, 739), segment(50639159, 34277, 748),
    segment(51190582, 34651, 753), segment(51748011, 35028, 763), segment(52311510, 35409, 773),
    segment(52881146, 35795, 779), segment(53456983, 36185, 787), segment(54039091, 36579, 796),
    segment(54627538, 36977, 806), segment(55222393, 37380, 813), segment(55823725, 37787, 822),
    segment(56431607, 38198, 833), segment(57046106, 38614, 842), segment(57667297, 39035, 849),
    segment(58295254, 39460, 858), segment(58930048, 39889, 870), segment(59571754, 40324, 877),
    segment(60220447, 40763, 887), segment(60876205, 41207, 896), segment(61539104, 41655, 909),
    segment(62209220, 42109, 917), segment(62886634, 42568, 925), segment(63571424, 43031, 938),
    segment(64263672, 43500, 946), segment(64963458, 43973, 959), segment(65670863, 44452, 969),
    segment(66385972, 44936, 980),
];

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    /// SHA-256, as hexadecimal digits, over the little-endian bits of the results.
    fn digest(arguments: impl Iterator<Item = f32>) -> String {
        let mut hash = Sha256::new();
        for x in arguments {
            hash.update(ex2_approx_ftz(x).to_bits().to_le_bytes());
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    // The digests are of results that an H200 gave for the same arguments.

    #[test]
    fn all_negative_fractions_equal_the_measurement() {
        let arguments = (1..=HIDDEN_BIT).map(|n| -(n as f32) / HIDDEN_BIT as f32);
        assert_eq!(digest(arguments), "03de499379c053bb9ff6a7bc7d394639dc7636f204eeff8dd9777657b30b9888");
    }

    #[test]
    fn all_positive_fractions_equal_the_measurement() {
        let arguments = (0..HIDDEN_BIT).map(|n| n as f32 / HIDDEN_BIT as f32);
        assert_eq!(digest(arguments), "b2a42c4a626469c986e33e43f16f41bde9d84de94347cd9ceaa1bd68d36bcdf0");
    }

    #[test]
    fn arguments_spread_over_all_bit_patterns_equal_the_measurement() {
        // An odd multiplier visits signs, exponents, subnormals and NaN alike.
        let arguments = (0..1_u32 << 20).map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b1)));
        assert_eq!(digest(arguments), "94ac857ea9844913533d76c2238a880b609c40fc35f7d267ed7ce538d824692c");
    }

    #[test]
    fn special_values() {
        let below_minus_126 = (-126.0_f32).next_down();
        for (x, want) in [
            (0.0, 1.0),
            (-0.0, 1.0),
            (f32::from_bits(1), 1.0),
            (-f32::MIN_POSITIVE, 1.0),
            (1.0, 2.0),
            (-1.0, 0.5),
            // Truncation is toward zero, so the two sides of 0 differ.
            (3e-7, 1.000_000_2),
            (-1e-7, 1.0),
            (127.0, f32::from_bits(0x7f00_0000)),
            (128.0, f32::INFINITY),
            (f32::MAX, f32::INFINITY),
            (f32::INFINITY, f32::INFINITY),
            (-126.0, f32::MIN_POSITIVE),
            (below_minus_126, 0.0),
            (-126.5, 0.0),
            (-128.0, 0.0),
            (f32::MIN, 0.0),
            (f32::NEG_INFINITY, 0.0),
        ] {
            assert_eq!(ex2_approx_ftz(x).to_bits(), f32::to_bits(want), "2^{x:e}");
        }
        for bits in [0x7f80_0001, 0x7fc0_0000, 0xff80_0001, 0xffff_ffff] {
            assert_eq!(ex2_approx_ftz(f32::from_bits(bits)).to_bits(), NAN, "2^NaN {bits:#x}");
        }
    }

    #[test]
    fn whole_numbers_shift_the_result_exactly() {
        for n in (1..HIDDEN_BIT).step_by(4099) {
            let fraction = n as f32 / HIDDEN_BIT as f32;
            for (x, whole) in [(fraction, 1), (fraction, 100), (-fraction, -1), (-fraction, -100)] {
                // A sum that is rounded has another fraction.
                let shifted = f64::from(x) + f64::from(whole);
                if f64::from(shifted as f32) != shifted {
                    continue;
                }
                let want = f64::from(ex2_approx_ftz(x)) * 2_f64.powi(whole);
                assert_eq!(f64::from(ex2_approx_ftz(shifted as f32)), want, "{x} and {whole}");
            }
        }
    }

    #[test]
    fn the_square_has_the_partial_products_from_the_cut_on() {
        let bit = |u: u32, i: u32| u64::from(u >> i & 1);
        for u in 0..1_u32 << LOW_BITS {
            let mut want = 0;
            for i in 0..LOW_BITS {
                let diagonal = std::iter::once((2 * i, bit(u, i)));
                let pairs = (0..i).map(|j| (i + j + 1, bit(u, i) * bit(u, j)));
                let kept = diagonal.chain(pairs).filter(|&(place, _)| place >= SQUARE_DROPPED_BITS);
                want += kept.map(|(place, product)| product << place).sum::<u64>();
            }
            assert_eq!(u64::from(truncated_square(u)) << SQUARE_DROPPED_BITS, want, "{u:#x}");
        }
    }

    #[test]
    fn the_relative_error_is_below_its_bound() {
        for n in (0..HIDDEN_BIT).step_by(61) {
            let x = n as f32 / HIDDEN_BIT as f32;
            for x in [x, -x] {
                let (got, want) = (f64::from(ex2_approx_ftz(x)), f64::from(x).exp2());
                assert!((got / want - 1.0).abs() < 2_f64.powi(-22), "2^{x:e}: {got:e}, not {want:e}");
            }
        }
    }
}
