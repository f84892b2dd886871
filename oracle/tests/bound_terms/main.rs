//! No term of the bound is idle: for each there is an input on which a legal kernel makes at least a tenth of the error that
//! the term allows. For most, the kernel would be condemned without the term.

#[path = "../common/mod.rs"]
mod common;
mod legal;
mod terms;

use std::f32::consts::LN_2;

use common::{Inputs, Rng};
use legal::{Anchor, LOG2_E, Legal, Sum, exp2_flushing, exp2_low, exp2_uneven};
use ndarray::{Array3, s};
use oracle::{AttentionOptions, BoundModel, Format, Rows, attend_f64, compare};
use rstest::rstest;
use terms::{SECOND_ORDER, Term};

/// What a term is worth on its input.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Worth {
    /// Without it the kernel would be condemned.
    Needed,
    /// No other term is larger.
    Largest,
    /// The kernel makes the error, and a larger term would cover it.
    Reached,
}

/// Row 0 of one head on one input, and the kernel that answers it.
struct Scene {
    inputs: Inputs,
    options: AttentionOptions,
    model: BoundModel,
    kernel: Legal,
}

impl Scene {
    /// One dim of q and k: logits are whatever is asked for, and no option changes them.
    fn new(kernel: Legal, logits: &[f32], values: &[f32]) -> Self {
        let column = |values: &[f32]| Array3::from_shape_fn((values.len(), 1, 1), |(j, ..)| values[j]);
        Self {
            inputs: Inputs { q: Array3::ones((1, 1, 1)), k: column(logits), v: column(values) },
            options: AttentionOptions::new(1.0),
            model: BoundModel::new(kernel.p_format, kernel.key_tile),
            kernel,
        }
    }

    /// Error of the output, or of the lse; its bound; and the bound's terms.
    fn measure(&self, of_lse: bool) -> (f64, f64, Vec<(Term, f64)>) {
        let request = self.inputs.request();
        let reference = attend_f64(&request, &self.options, &self.model, Rows::Sample(&[0])).unwrap();
        assert!(reference.max_eta < 0.1, "eta {}", reference.max_eta);
        let (out, lse) = self.kernel.run(&self.inputs, &self.options);
        if of_lse {
            let terms = terms::of_lse(&self.inputs, &self.options, &self.model);
            return ((f64::from(lse) - reference.lse[[0, 0]]).abs(), reference.lse_bound[[0, 0]], terms);
        }
        let answer = Array3::from_shape_vec((1, 1, out.len()), out.clone()).unwrap();
        let verdict = compare(answer.view(), &reference, Format::F32).unwrap();
        assert!(verdict.passes(), "a legal kernel is condemned: share {}", verdict.worst_share);
        let terms = terms::of_out(&self.inputs, &self.options, &self.model, 0);
        ((f64::from(out[0]) - reference.out[[0, 0, 0]]).abs(), reference.bound[[0, 0, 0]], terms)
    }

    #[track_caller]
    fn check(&self, of_lse: bool, term: Term, worth: Worth) {
        let (error, bound, terms) = self.measure(of_lse);
        let sum: f64 = terms.iter().map(|(_, value)| value).sum::<f64>() * SECOND_ORDER;
        assert!(
            (sum - bound).abs() <= 1e-9 * bound,
            "the terms make {sum:e}, the bound is {bound:e}: {terms:?}"
        );
        assert!(error <= bound, "error {error:e}, bound {bound:e}");
        let own = terms.iter().find(|(name, _)| *name == term).unwrap().1;
        assert!(own > 0.0 && error >= own / 10.0, "error {error:e}, {term:?} {own:e}");
        let without = bound - own * SECOND_ORDER;
        let largest = terms.iter().all(|(_, value)| *value <= own);
        let seen = match (error > without, largest) {
            (true, _) => Worth::Needed,
            (false, true) => Worth::Largest,
            (false, false) => Worth::Reached,
        };
        assert_eq!(seen, worth, "error {error:e}, without {term:?} {without:e} is allowed: {terms:?}");
    }
}

/// Of some inputs the two whose errors differ most: the one with the error furthest up, and the one furthest down.
fn extremes(candidates: impl Iterator<Item = f32>, error: impl Fn(f32) -> f64) -> [f32; 2] {
    let all: Vec<f32> = candidates.collect();
    let by_error = |a: &&f32, b: &&f32| error(**a).total_cmp(&error(**b));
    [*all.iter().max_by(by_error).unwrap(), *all.iter().min_by(by_error).unwrap()]
}

/// 256 products of which all but the first are a little more, or a little less, than half a unit in the last place of
/// their sum.
fn dot() -> Scene {
    let half = 0.5f32.powi(24);
    let mut scene = Scene::new(Legal::new(2), &[0.0; 2], &[1.0, -1.0]);
    scene.inputs.q = Array3::ones((1, 1, 256));
    scene.inputs.k = Array3::from_shape_fn((2, 1, 256), |(j, _, d)| match (j, d) {
        (_, 0) => 1.0,
        (0, _) => half * (1.0 + 0.5f32.powi(10)),
        _ => half * (1.0 - 0.5f32.powi(10)),
    });
    scene
}

/// Exact dot products on a grid whose scaled logits are rounded in opposite directions. They lie just above a power of two,
/// where units in the last place are largest.
fn scaling() -> Scene {
    let scaled = |dot: f32| f64::from(dot * (0.25 * LOG2_E)) * std::f64::consts::LN_2 - f64::from(dot) * 0.25;
    let dots = extremes((2840..2848).map(|dot| dot as f32), scaled);
    let mut scene = Scene::new(Legal::new(2), &dots, &[1.0, -1.0]);
    scene.options.softmax_scale = 0.25;
    scene.model.grid_inputs = true;
    scene
}

/// tanh through the exponential has an error relative to 1, however small its value.
fn softcap() -> Scene {
    let kernel = Legal { exp2: exp2_uneven, ..Legal::new(2) };
    let options = AttentionOptions { softcap: Some(1000.0), ..AttentionOptions::new(1.0) };
    let error = |dot: f32| {
        let alone = Scene::new(kernel, &[dot], &[1.0]).inputs;
        let exact = 1000.0 * (f64::from(dot) / 1000.0).tanh();
        f64::from(kernel.score(&alone, &options, 0)) * std::f64::consts::LN_2 - exact
    };
    let logits = extremes((0..64).map(|n| n as f32 / 64.0), error);
    Scene { options, ..Scene::new(kernel, &logits, &[1.0, -1.0]) }
}

/// Two keys 900 positions from the row: each score is rounded to the place of the bias.
fn alibi() -> Scene {
    let options = AttentionOptions { alibi_slopes: Some(vec![1.0]), ..AttentionOptions::new(1.0) };
    let far = |logits: &[f32]| {
        let mut inputs = Scene::new(Legal::new(2), logits, &[1.0, -1.0]).inputs;
        inputs.q = Array3::ones((900, 1, 1));
        inputs
    };
    let error = |dot: f32| {
        let exact = f64::from(dot) + 898.0;
        let score = Legal::new(2).score(&far(&[dot, dot]), &options, 0);
        f64::from(score) * std::f64::consts::LN_2 - exact
    };
    // The second key's bias is larger by one: its logit is chosen such that both rounded sums are of the same kind.
    let [up, down] = extremes((0..512).map(|n| n as f32 / 4096.0), error);
    let inputs = far(&[up, down - 1.0]);
    Scene { inputs, options, ..Scene::new(Legal::new(2), &[0.0; 2], &[1.0, -1.0]) }
}

/// Logits whose distance from one `depth` away, in base 2, is rounded as far up and as far down as can be.
fn unevenly_far(depth: f32) -> [f32; 2] {
    let far = -depth * LN_2;
    let error = |logit: f32| {
        let seen = f64::from((logit * LOG2_E) - far * LOG2_E) * std::f64::consts::LN_2;
        seen - (f64::from(logit) - f64::from(far))
    };
    extremes((0..256).map(|n| n as f32 / 8192.0), error)
}

/// Two keys far below the maximum whose V, of either sign, makes up for it.
fn exponent() -> Scene {
    let [up, down] = unevenly_far(-65.0);
    let v = 2.0f32.powi(65);
    Scene::new(Legal::new(3), &[65.0 * LN_2, up, down], &[0.0, v, -v])
}

/// Two keys at the maximum, measured from a first key far below.
fn anchor() -> Scene {
    let [up, down] = unevenly_far(65.0);
    let kernel = Legal { anchor: Anchor::FirstKey, ..Legal::new(3) };
    Scene::new(kernel, &[-65.0 * LN_2, up, down], &[0.0, 1.0, -1.0])
}

/// Every tile has a slightly larger maximum, and the first key's share is rescaled each time. The last key has nearly all the
/// weight, so that the denominator does not make the same error.
fn rescaling() -> Scene {
    let kernel = Legal { exp2: exp2_low, ..Legal::new(1) };
    let logits: Vec<f32> = (0..64).map(|j| if j == 63 { 8.0 } else { j as f32 / 128.0 }).collect();
    let values: Vec<f32> = (0..64).map(|j| if j == 0 { 1.0 } else { 0.0 }).collect();
    Scene::new(kernel, &logits, &values)
}

/// One weight of two, a little above a half, is 2 units in the last place too low.
fn exponential() -> Scene {
    let kernel = Legal { exp2: exp2_low, ..Legal::new(2) };
    Scene::new(kernel, &[0.0, -0.98 * LN_2], &[1.0, -1.0])
}

/// All weights but one lie a little above the middle between two values of bf16, and none of V hides it.
fn rounding_p(p_format: Format) -> Scene {
    let unit = p_format.unit_roundoff() as f32;
    let p = 0.5 + unit / 2.0 * 1.01;
    let logits: Vec<f32> = (0..1024).map(|j| if j == 0 { 0.0 } else { p.ln() }).collect();
    Scene::new(Legal { p_format, ..Legal::new(64) }, &logits, &[1.0; 1024])
}

/// After a first weight of 1 every other is a little more than half a unit in the last place of the sum.
fn halves_of_units(key_tile: usize) -> Scene {
    let half = 0.5f32.powi(24) * (1.0 + 0.5f32.powi(10));
    let logits: Vec<f32> = (0..4096).map(|j| if j == 0 { 0.0 } else { half.ln() }).collect();
    Scene::new(Legal::new(key_tile), &logits, &[1.0; 4096])
}

fn products() -> Scene {
    let mut scene = halves_of_units(64);
    scene.kernel.values = Sum::InOrder;
    scene
}

fn sums() -> Scene {
    let mut scene = halves_of_units(4096);
    scene.kernel.denominator = Sum::InOrder;
    scene
}

/// f16 has no number between 0 and 2^-24: 63 weights of nearly half of that are lost.
fn underflow_of_f16() -> Scene {
    let kernel = Legal { p_format: Format::F16, ..Legal::new(64) };
    let logits: Vec<f32> = (0..64).map(|j| if j == 5 { 0.0 } else { -25.01 * LN_2 }).collect();
    let values: Vec<f32> = (0..64).map(|j| if j == 5 { 0.0 } else { 1.0 }).collect();
    Scene::new(kernel, &logits, &values)
}

/// A weight just below the smallest normal f32 is flushed to 0, and its V is as large as f32 allows.
fn underflow_of_f32() -> Scene {
    let kernel = Legal { exp2: exp2_flushing, ..Legal::new(2) };
    Scene::new(kernel, &[0.0, -126.01 * LN_2], &[0.0, 1e38])
}

/// A large sink that has nearly all the weight: taken to base 2 and back, it is rounded twice.
fn sink() -> Scene {
    let there_and_back = |sink: f32| f64::from(sink * LOG2_E * LN_2) - f64::from(sink);
    let [up, down] = extremes((0..512).map(|n| 16384.0 * LN_2 + n as f32 / 512.0), there_and_back);
    let sink = if there_and_back(up) > -there_and_back(down) { up } else { down };
    let options = AttentionOptions { sinks: Some(vec![sink]), ..AttentionOptions::new(1.0) };
    Scene { options, ..Scene::new(Legal::new(2), &[sink - 10.0, sink - 10.5], &[1.0, -1.0]) }
}

/// Uniform weights: lse is the logarithm of their number, and is rounded.
fn lse() -> Scene {
    Scene::new(Legal::new(64), &[0.0; 4000], &[1.0; 4000])
}

#[rstest]
#[case::dot(Term::Dot, Worth::Needed, dot())]
#[case::scaling(Term::Scaling, Worth::Needed, scaling())]
#[case::softcap(Term::Softcap, Worth::Needed, softcap())]
#[case::alibi(Term::Alibi, Worth::Needed, alibi())]
// u |x_j| never exceeds u max|x|, so the latter stands beside it wherever it counts.
#[case::exponent(Term::Exponent, Worth::Reached, exponent())]
#[case::anchor(Term::Anchor, Worth::Needed, anchor())]
#[case::rescaling(Term::Rescaling, Worth::Largest, rescaling())]
// One exponential is never alone: T (u + e) is at least as much.
#[case::exponential(Term::Exponential, Worth::Reached, exponential())]
#[case::rounding_p_to_bf16(Term::RoundingP, Worth::Needed, rounding_p(Format::Bf16))]
#[case::rounding_p_to_f16(Term::RoundingP, Worth::Needed, rounding_p(Format::F16))]
#[case::products(Term::Products, Worth::Needed, products())]
// L 2^-23 is at least twice as much.
#[case::sums(Term::Sums, Worth::Reached, sums())]
#[case::underflow_of_f16(Term::Underflow, Worth::Needed, underflow_of_f16())]
#[case::underflow_of_f32(Term::Underflow, Worth::Needed, underflow_of_f32())]
fn a_term_of_the_output_s_bound_is_reached(#[case] term: Term, #[case] worth: Worth, #[case] scene: Scene) {
    scene.check(false, term, worth);
}

#[rstest]
#[case::sink(Term::SinkScaling, Worth::Needed, sink())]
// A logarithm of many weights brings their sums' errors along; one of few is small, unless the logits are large.
#[case::lse(Term::Lse, Worth::Reached, lse())]
fn a_term_of_the_bound_of_lse_is_reached(#[case] term: Term, #[case] worth: Worth, #[case] scene: Scene) {
    scene.check(true, term, worth);
}

/// Sinks of all sizes, as a kernel takes them to base 2 and back: none is condemned for it.
#[test]
fn no_sink_is_condemned_for_its_size() {
    let mut rng = Rng(11);
    for exponent in -6..15 {
        for _ in 0..256 {
            let sink = 2.0f32.powi(exponent) * (1.0 + rng.unit() as f32);
            let options = AttentionOptions { sinks: Some(vec![sink]), ..AttentionOptions::new(1.0) };
            let scene = Scene { options, ..Scene::new(Legal::new(1), &[sink - 10.0], &[1.0]) };
            let request = scene.inputs.request();
            let reference = attend_f64(&request, &scene.options, &scene.model, Rows::All).unwrap();
            let (_, lse) = scene.kernel.run(&scene.inputs, &scene.options);
            let error = (f64::from(lse) - reference.lse[[0, 0]]).abs();
            assert!(error <= reference.lse_bound[[0, 0]], "sink {sink}: {error:e}");
        }
    }
}

/// The form of the rounding of P for V of symmetric sign: over many outputs the worst comes within ten times of it.
#[rstest]
fn the_random_walk_of_p_is_reached(#[values(Format::Bf16, Format::F16)] p_format: Format) {
    let mut rng = Rng(9);
    let logits: Vec<f32> = (0..256).map(|_| rng.normal() as f32).collect();
    let mut scene = Scene::new(Legal { p_format, ..Legal::new(64) }, &logits, &[0.0; 256]);
    scene.inputs.v = Array3::from_shape_simple_fn((256, 1, 256), || rng.normal() as f32);
    scene.model.sign_symmetric_v = true;
    let request = scene.inputs.request();
    let reference = attend_f64(&request, &scene.options, &scene.model, Rows::All).unwrap();
    let strict = BoundModel { p_unit_roundoff: 0.0, ..scene.model };
    let without = attend_f64(&request, &scene.options, &strict, Rows::All).unwrap();
    let (out, _) = scene.kernel.run(&scene.inputs, &scene.options);
    let errors = out.iter().zip(&reference.out).map(|(out, exact)| (f64::from(*out) - exact).abs());
    let row = [&reference, &without].map(|r| r.bound.slice(s![0, 0, ..]).to_owned());
    let shares: Vec<f64> = errors.enumerate().map(|(d, error)| error / (row[0][d] - row[1][d])).collect();
    let worst = shares.iter().copied().fold(0.0, f64::max);
    assert!((0.1..1.0).contains(&worst), "{worst}");
}
