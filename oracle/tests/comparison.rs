//! What is accepted, what is not, and how far an element is from the edge.

use ndarray::{Array2, Array3};
use oracle::{Comparison, Format, OracleError, Reference, compare, compare_lse};
use proptest::prelude::*;
use rstest::rstest;

fn reference(want: f64, bound: f64) -> Reference {
    Reference {
        out: Array3::from_elem((1, 1, 1), want),
        lse: Array2::from_elem((1, 1), want),
        bound: Array3::from_elem((1, 1, 1), bound),
        lse_bound: Array2::from_elem((1, 1), bound),
        rows: vec![4],
        positions: vec![9],
        max_eta: 0.0,
    }
}

fn one(got: f32, want: f64, bound: f64, format: Format) -> Comparison {
    compare(Array3::from_elem((1, 1, 1), got).view(), &reference(want, bound), format).expect("valid")
}

/// bf16 steps by 2^-7 above 1: the midpoint to the next value is at 2^-8, and a tie goes to the even 1.
#[rstest]
#[case::exact(1.0, 1.0, 0.0, true)]
#[case::rounds_to_it(1.0, 1.003, 0.0, true)]
#[case::next_value_below_the_midpoint(1.0078125, 1.0, 0.003_906, false)]
#[case::tie(1.0078125, 1.0, 1.0 / 256.0, false)]
#[case::next_value_past_the_midpoint(1.0078125, 1.0, 0.003_907, true)]
#[case::one_further(1.015625, 1.0, 0.003_907, false)]
#[case::tie_to_even_downwards(0.99609375, 1.0, 1.0 / 512.0, false)]
#[case::downwards(0.99609375, 1.0, 0.001_954, true)]
#[case::negative(-1.0078125, -1.0, 0.003_907, true)]
#[case::wrong_sign(-1.0, 1.0, 0.5, false)]
#[case::minus_zero(-0.0, 0.0, 0.0, true)]
#[case::zero_for_subnormal(0.0, 1e-42, 0.0, true)]
#[case::no_bound_no_excuse(1e-38, 0.0, 0.0, false)]
fn acceptance_in_bf16(#[case] got: f32, #[case] want: f64, #[case] bound: f64, #[case] accepted: bool) {
    let got = Format::Bf16.decode(Format::Bf16.encode(got));
    let comparison = one(got, want, bound, Format::Bf16);
    assert_eq!(comparison.passes(), accepted, "{:?}", comparison.worst);
    assert_eq!(comparison.mismatches, usize::from(!accepted));
    assert_eq!(comparison.worst_share <= 1.0, accepted);
    assert_eq!(comparison.first.is_some(), !accepted);
}

const INF: f64 = f64::INFINITY;

#[rstest]
#[case::nan(f64::NAN, f64::NAN, true)]
#[case::nan_expected(f64::NAN, 0.0, false)]
#[case::nan_for_infinity(INF, f64::NAN, false)]
#[case::nan_given(0.0, f64::NAN, false)]
#[case::infinity(INF, INF, true)]
#[case::minus_infinity(-INF, -INF, true)]
#[case::opposite_infinity(INF, -INF, false)]
#[case::infinity_expected(-INF, -3.0e38, false)]
#[case::infinity_given(1.0, INF, false)]
#[case::overflow_of_the_format(1.0e39, INF, true)]
fn classes_are_compared(#[case] want: f64, #[case] got: f64, #[case] accepted: bool) {
    // A bound cannot excuse a wrong class.
    for bound in [0.0, 1.0, f64::NAN] {
        let comparison = one(got as f32, want, bound, Format::F32);
        assert_eq!(comparison.passes(), accepted, "bound {bound}: {:?}", comparison.worst);
        assert_eq!(comparison.worst_share == 0.0, accepted);
        assert_eq!(comparison.worst_share > 1.0, !accepted);
        let overflows = want.is_finite() && got.is_infinite();
        if !accepted && !overflows {
            assert_eq!(comparison.worst_share, INF, "no bound is wide enough");
        }
        let lse = Array2::from_elem((1, 1), got as f32);
        assert_eq!(compare_lse(lse.view(), &reference(want, bound)).expect("valid").passes(), accepted);
    }
}

#[test]
fn overflow_is_a_matter_of_half_a_step_beyond_the_largest_value() {
    // In f16 everything from 65520 on rounds to infinity.
    assert!(one(f32::INFINITY, 65_510.0, 10.0, Format::F16).passes());
    assert!(!one(f32::INFINITY, 65_510.0, 9.99, Format::F16).passes());
    assert!(one(f32::NEG_INFINITY, -65_510.0, 10.0, Format::F16).passes());
    assert!(one(65_504.0, 65_530.0, 10.1, Format::F16).passes());
    assert!(!one(65_504.0, 65_530.0, 9.9, Format::F16).passes());
}

#[test]
fn a_share_is_where_the_rounded_interval_begins_to_hold_the_value() {
    // f16 steps by 2^-10 above 1: 1 + 2^-10 is reached at 1 + 2^-11.
    let comparison = one(1.0 + 1.0 / 1024.0, 1.0, 1.0 / 512.0, Format::F16);
    assert_eq!(comparison.worst_share, 0.25);
    let worst = comparison.worst.expect("one element");
    assert_eq!((worst.row, worst.head, worst.dim), (4, 0, 0));
    assert_eq!((worst.error, worst.allowed, worst.want), (1.0 / 1024.0, 1.0 / 512.0, 1.0));
    assert_eq!(one(1.0 + 3.0 / 1024.0, 1.0, 1.0 / 4096.0, Format::F16).worst_share, 10.0);
}

proptest! {
    /// The share is the smallest t for which the definition accepts, whatever the numbers.
    #[test]
    fn the_share_is_the_smallest_that_is_accepted(
        want in prop_oneof![-4.0..4.0_f64, -1e-40..1e-40_f64, -7e4..7e4_f64],
        steps in -40..40_i32,
        bound in prop_oneof![1e-9..1.0_f64, 1e-46..1e-40_f64, 1.0..100.0_f64],
        format in prop_oneof![Just(Format::F32), Just(Format::Bf16), Just(Format::F16)],
    ) {
        let mut got = format.round(want) as f32;
        for _ in 0..steps.abs() {
            got = if steps > 0 { format.next_up(got) } else { format.next_down(got) };
        }
        let accepts = |t: f64| {
            let (low, high) = (format.round(want - t * bound), format.round(want + t * bound));
            low <= f64::from(got) && f64::from(got) <= high
        };
        let comparison = one(got, want, bound, format);
        let share = comparison.worst_share;
        prop_assert_eq!(comparison.passes(), accepts(1.0));
        prop_assert_eq!(share <= 1.0, accepts(1.0));
        // t·E is added to a number that may dwarf it, so allow for the rounding of that sum.
        let slack = 1e-9 * share + 4.0 * f64::EPSILON * want.abs() / bound;
        prop_assert!(accepts(share + slack), "not accepted at {share}");
        prop_assert!(share == 0.0 || share <= slack || !accepts(share - slack), "accepted below {share}");
    }
}

#[test]
fn worst_and_first_are_told_apart() {
    let mut got = Array3::zeros((2, 3, 4));
    got[[0, 1, 2]] = 2.0;
    got[[1, 2, 3]] = -8.0;
    got[[1, 0, 0]] = 0.5;
    let reference = Reference {
        out: Array3::zeros((2, 3, 4)),
        lse: Array2::zeros((2, 3)),
        bound: Array3::ones((2, 3, 4)),
        lse_bound: Array2::from_elem((2, 3), 1e-3),
        rows: vec![7, 70],
        positions: vec![10, 73],
        max_eta: 0.0,
    };
    let comparison = compare(got.view(), &reference, Format::F32).expect("valid");
    assert_eq!((comparison.elements, comparison.mismatches), (24, 2));
    let (first, worst) = (comparison.first.expect("two"), comparison.worst.expect("two"));
    assert_eq!((first.row, first.head, first.dim, first.got), (7, 1, 2, 2.0));
    assert_eq!((worst.row, worst.head, worst.dim, worst.got, worst.error), (70, 2, 3, -8.0, 8.0));
    assert!((comparison.worst_share - 8.0).abs() < 1e-6);
    assert_eq!(
        worst.to_string(),
        "row 70, head 2, dim 3: got -8e0, want 0e0, error 8.0e0, allowed 1.0e0 (8.0x)"
    );
    let mut lse = Array2::zeros((2, 3));
    lse.column_mut(1).fill(1.0);
    let comparison = compare_lse(lse.view(), &reference).expect("valid");
    assert_eq!((comparison.elements, comparison.mismatches), (6, 2));
    assert_eq!(comparison.pattern.as_deref(), Some("only head 1"));
}

#[test]
fn arguments_are_checked() {
    let error = compare(Array3::zeros((1, 2, 1)).view(), &reference(0.0, 0.0), Format::F32);
    assert!(matches!(error, Err(OracleError::Shape { argument: "got", .. })), "{error:?}");
    let error = compare_lse(Array2::zeros((2, 1)).view(), &reference(0.0, 0.0));
    assert!(matches!(error, Err(OracleError::Shape { argument: "got", .. })), "{error:?}");
    let error = compare(Array3::from_elem((1, 1, 1), 1.001).view(), &reference(1.0, 0.0), Format::Bf16);
    assert_eq!(error.expect_err("no bf16").to_string(), "got is 1.001; accepted: values of bf16");
}

#[test]
fn nothing_compared_passes_and_says_so() {
    let empty = Reference {
        out: Array3::zeros((0, 2, 4)),
        lse: Array2::zeros((0, 2)),
        bound: Array3::zeros((0, 2, 4)),
        lse_bound: Array2::zeros((0, 2)),
        rows: vec![],
        positions: vec![],
        max_eta: 0.0,
    };
    let comparison = compare(Array3::zeros((0, 2, 4)).view(), &empty, Format::F16).expect("valid");
    assert_eq!((comparison.elements, comparison.worst, comparison.worst_share), (0, None, 0.0));
    assert!(comparison.passes() && comparison.pattern.is_none());
}

/// Half a step beyond the largest finite f16, 65504, lies 65520: 520 from what was wanted.
#[test]
fn an_overflow_uses_what_it_takes_to_round_to_infinity() {
    for sign in [1.0, -1.0] {
        let share = oracle::share(sign as f32 * f32::INFINITY, sign * 65_000.0, 1040.0, Format::F16);
        assert_eq!(share, 0.5);
    }
}

#[test]
fn of_two_elements_that_are_equally_wrong_the_first_is_named() {
    let mut expected = reference(1.0, 1.0);
    expected.out = Array3::from_elem((1, 1, 3), 1.0);
    expected.bound = Array3::from_elem((1, 1, 3), 1.0);
    let got = Array3::from_shape_vec((1, 1, 3), vec![1.0, 3.0, 3.0]).expect("three");
    let comparison = compare(got.view(), &expected, Format::F32).expect("valid");
    assert_eq!(comparison.worst.expect("an element").dim, 1);
}
