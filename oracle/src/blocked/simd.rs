//! One body, compiled for the instruction sets that matter, and chosen when it runs.
//!
//! The loops in this module tree are plain loops over fixed-size arrays. Inlined into a function with the right
//! target features they become vector code; there are no intrinsics.

/// Keys or dims of one panel: rows of the register tile that [`accumulate`] keeps.
pub(super) const PANEL: usize = 6;

/// A computation whose body profits from wider vectors.
pub(super) trait Vectorised {
    type Output;

    /// The body; every function that it calls on the way to its inner loops must be `#[inline(always)]`, or it
    /// is compiled without the features.
    ///
    /// `FMA` tells whether fused multiply-add is an instruction; without, it would be a library call.
    fn run<const FMA: bool>(self) -> Self::Output;
}

/// Runs the body with the widest vectors of this machine.
pub(super) fn dispatch<V: Vectorised>(work: V) -> V::Output {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: both features were just detected.
        return unsafe { with_avx2(work) };
    }
    // Every aarch64 machine has fused multiply-add on vectors.
    work.run::<{ cfg!(target_arch = "aarch64") }>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn with_avx2<V: Vectorised>(work: V) -> V::Output {
    work.run::<true>()
}

/// Adds the product aᵀ·b to a tile of registers: `tile[i][lane] += Σ_step a[step][i]·b[step][lane]`.
///
/// The shorter of `a` and `b` limits the steps.
#[inline(always)]
pub(super) fn accumulate<R: Real, const N: usize, const FMA: bool>(
    tile: &mut [[R; N]; PANEL],
    a: &[[R; PANEL]],
    b: &[[R; N]],
) {
    // A local copy: the optimiser keeps it in registers, which it cannot do behind a reference.
    let mut sums = *tile;
    for (a, b) in a.iter().zip(b) {
        for i in 0..PANEL {
            for lane in 0..N {
                sums[i][lane] = R::fma::<FMA>(a[i], b[lane], sums[i][lane]);
            }
        }
    }
    *tile = sums;
}

/// The two floating-point types, as far as the blocked paths need them.
pub(super) trait Real:
    Copy
    + PartialOrd
    + Send
    + Sync
    + Default
    + num_traits::Float
    + std::ops::AddAssign
    + std::ops::MulAssign
    + 'static
{
    /// From `f32`, exactly.
    fn widen(x: f32) -> Self;

    /// From `f64`, rounded.
    fn narrow(x: f64) -> Self;

    /// a·b + c.
    #[inline(always)]
    fn fma<const FMA: bool>(a: Self, b: Self, c: Self) -> Self {
        if FMA { a.mul_add(b, c) } else { a * b + c }
    }

    /// e^x for x ≤ 0, within a few units in the last place; 0 where the result would be subnormal.
    fn exp_of_nonpositive<const FMA: bool>(x: Self) -> Self;
}

/// Writes `exp_of_nonpositive` for one type: x = n·ln 2 + r with |r| ≤ ln 2 / 2, a polynomial in r, times 2^n.
macro_rules! exponential {
    ($float:ty, $bits:ty, $fraction_bits:expr, $bias:expr, $ln2:expr, $lowest:expr, $inverse_factorials:expr) => {
        #[inline(always)]
        fn exp_of_nonpositive<const FMA: bool>(x: Self) -> Self {
            // Adding 1.5·2^fraction_bits rounds to an integer and leaves it in the low bits.
            const ROUNDER: $float = ((3 as $bits) << ($fraction_bits - 1)) as $float;
            const LN2: [$float; 2] = $ln2;
            let shifted = Self::fma::<FMA>(x, std::f64::consts::LOG2_E as $float, ROUNDER);
            let n = shifted - ROUNDER;
            let r = Self::fma::<FMA>(n, -LN2[1], Self::fma::<FMA>(n, -LN2[0], x));
            let mut sum = $inverse_factorials[0];
            for &term in &$inverse_factorials[1..] {
                sum = Self::fma::<FMA>(sum, r, term);
            }
            let power = <$float>::from_bits(
                (shifted.to_bits() << $fraction_bits).wrapping_add($bias << $fraction_bits),
            );
            // A mask and not a branch: with a branch the loops around this do not become vector code.
            let keep = <$bits>::from(x < $lowest).wrapping_sub(1);
            <$float>::from_bits((sum * power).to_bits() & keep)
        }
    };
}

impl Real for f32 {
    #[inline(always)]
    fn widen(x: f32) -> Self {
        x
    }

    #[inline(always)]
    fn narrow(x: f64) -> Self {
        x as f32
    }

    exponential!(
        f32,
        u32,
        23,
        127_u32,
        [355.0 / 512.0, -2.121_944_4e-4],
        -87.3,
        [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0_f32]
    );
}

impl Real for f64 {
    #[inline(always)]
    fn widen(x: f32) -> Self {
        f64::from(x)
    }

    #[inline(always)]
    fn narrow(x: f64) -> Self {
        x
    }

    exponential!(
        f64,
        u64,
        52,
        1023_u64,
        [6.931_471_803_691_238e-1, 1.908_214_929_270_587_7e-10],
        -708.3,
        [
            1.0 / 6_227_020_800.0,
            1.0 / 479_001_600.0,
            1.0 / 39_916_800.0,
            1.0 / 3_628_800.0,
            1.0 / 362_880.0,
            1.0 / 40_320.0,
            1.0 / 5040.0,
            1.0 / 720.0,
            1.0 / 120.0,
            1.0 / 24.0,
            1.0 / 6.0,
            0.5,
            1.0,
            1.0_f64,
        ]
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Exponentials<R>(Vec<R>);

    impl<R: Real> Vectorised for Exponentials<R> {
        type Output = Vec<R>;

        fn run<const FMA: bool>(self) -> Vec<R> {
            self.0.iter().map(|&x| R::exp_of_nonpositive::<FMA>(x)).collect()
        }
    }

    fn both_ways<R: Real>(x: Vec<R>) -> [Vec<R>; 2] {
        [dispatch(Exponentials(x.clone())), Exponentials(x).run::<false>()]
    }

    #[test]
    fn exp_in_f64_is_within_two_units_in_the_last_place() {
        let x: Vec<f64> = (0..2_000_000).map(|i| -f64::from(i) * 3.541e-4).collect();
        for got in both_ways(x.clone()) {
            for (x, got) in x.iter().zip(got) {
                let want = x.exp();
                assert!(
                    (got - want).abs() <= 2.0 * f64::EPSILON * want,
                    "exp({x:e}) = {got:e}, want {want:e}"
                );
            }
        }
    }

    #[test]
    fn exp_in_f32_is_within_two_units_in_the_last_place() {
        let x: Vec<f32> = (0..2_000_000).map(|i| (-f64::from(i) * 4.36e-5) as f32).collect();
        for got in both_ways(x.clone()) {
            for (&x, got) in x.iter().zip(got) {
                let want = f64::from(x).exp();
                let error = (f64::from(got) - want).abs();
                assert!(error <= 2.0 * f64::from(f32::EPSILON) * want, "exp({x:e}) = {got:e}, want {want:e}");
            }
        }
    }

    #[test]
    fn exp_at_the_ends() {
        for got in both_ways(vec![0.0, -0.0, f64::NEG_INFINITY, -709.0, -1e300, f64::NAN]) {
            assert_eq!(got[..5], [1.0, 1.0, 0.0, 0.0, 0.0]);
            assert!(got[5].is_nan());
        }
        for got in both_ways(vec![0.0, -0.0, f32::NEG_INFINITY, -88.0, -1e30, f32::NAN]) {
            assert_eq!(got[..5], [1.0, 1.0, 0.0, 0.0, 0.0]);
            assert!(got[5].is_nan());
        }
    }

    #[test]
    fn exp_below_the_normal_range_is_zero() {
        for got in both_ways((0..1000).map(|i| -708.5 - f64::from(i) * 0.37).collect()) {
            assert!(got.iter().all(|&x| x == 0.0));
        }
        for got in both_ways((0..1000).map(|i| -87.4 - i as f32 * 0.37).collect()) {
            assert!(got.iter().all(|&x| x == 0.0));
        }
    }

    #[test]
    fn accumulate_is_a_matrix_product() {
        let a: Vec<[f64; PANEL]> = (0..9).map(|k| std::array::from_fn(|i| (k * 7 + i) as f64)).collect();
        let b: Vec<[f64; 8]> =
            (0..9).map(|k| std::array::from_fn(|lane| (k + 3 * lane) as f64 - 5.0)).collect();
        let mut tile = [[1.0; 8]; PANEL];
        accumulate::<f64, 8, false>(&mut tile, &a, &b);
        for (i, row) in tile.iter().enumerate() {
            for (lane, &got) in row.iter().enumerate() {
                let want = 1.0 + a.iter().zip(&b).map(|(a, b)| a[i] * b[lane]).sum::<f64>();
                assert_eq!(got, want, "row {i}, lane {lane}");
            }
        }
    }
}
