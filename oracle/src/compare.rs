//! Which elements of an answer lie outside their bound, and by how much.

use std::fmt;

use ndarray::{ArrayView2, ArrayView3, Axis};
use rayon::prelude::*;

use crate::pattern::{self, Place};
use crate::{Format, OracleError, Reference};

/// One element of the answer against the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Deviation {
    /// Query row in the request.
    pub row: usize,
    /// Query head.
    pub head: usize,
    /// Element of the output row; 0 for an lse.
    pub dim: usize,
    /// What the device gave.
    pub got: f64,
    /// The reference before rounding.
    pub want: f64,
    /// |got − want|.
    pub error: f64,
    /// The bound E. An element may be off by this much and by the rounding to the output format.
    pub allowed: f64,
    /// Smallest t with got in [round(want − t·E), round(want + t·E)]: at most 1 if accepted, infinite where no t
    /// would do, as when one of them is NaN or the bound is 0.
    pub share: f64,
}

/// The result of comparing one array.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Elements compared.
    pub elements: usize,
    /// Elements outside their bound.
    pub mismatches: usize,
    /// The element with the greatest share, accepted or not; the first of them on a tie. `None` if there is no
    /// element.
    pub worst: Option<Deviation>,
    /// The first element outside, in the order row, head, dim.
    pub first: Option<Deviation>,
    /// Share of the worst element, 0 if there is none.
    pub worst_share: f64,
    /// What the elements outside have in common, such as `only rows with position % 64 == 63`.
    pub pattern: Option<String>,
}

impl Comparison {
    /// Whether every element is within its bound.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.mismatches == 0
    }
}

impl fmt::Display for Deviation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { row, head, dim, got, want, error, allowed, share } = self;
        write!(f, "row {row}, head {head}, dim {dim}: got {got:e}, want {want:e}, ")?;
        write!(f, "error {error:.1e}, allowed {allowed:.1e} ({share:.1}x)")
    }
}

/// Compares an output with the reference.
///
/// `got` is `[rows, num_q_heads, v_dim]`, decoded from `out_format`. An element passes iff it lies in
/// [round(ref − E), round(ref + E)], rounded to `out_format`; where the reference is NaN or infinite, iff it is
/// NaN, or the same infinity.
///
/// # Errors
/// If the shape is not that of the reference, or a value is none of `out_format`.
pub fn compare(
    got: ArrayView3<'_, f32>,
    reference: &Reference,
    out_format: Format,
) -> Result<Comparison, OracleError> {
    let arrays =
        Arrays { got, want: reference.out.view(), allowed: reference.bound.view(), format: out_format };
    arrays.check()?;
    Ok(arrays.compare(reference))
}

/// Compares an lse, `[rows, num_q_heads]` in f32, with the reference, by the rule of [`compare`].
///
/// # Errors
/// If the shape is not that of the reference.
pub fn compare_lse(got: ArrayView2<'_, f32>, reference: &Reference) -> Result<Comparison, OracleError> {
    let arrays = Arrays {
        got: got.insert_axis(Axis(2)),
        want: reference.lse.view().insert_axis(Axis(2)),
        allowed: reference.lse_bound.view().insert_axis(Axis(2)),
        format: Format::F32,
    };
    arrays.check()?;
    Ok(arrays.compare(reference))
}

/// The arrays of one comparison, each `[rows, num_q_heads, dims]`.
struct Arrays<'a> {
    got: ArrayView3<'a, f32>,
    want: ArrayView3<'a, f64>,
    allowed: ArrayView3<'a, f64>,
    format: Format,
}

/// What one row of the arrays comes to.
struct RowTally {
    worst: Option<Deviation>,
    first: Option<Deviation>,
    /// Head and dim of each element outside.
    outside: Vec<(usize, usize)>,
}

impl Arrays<'_> {
    fn check(&self) -> Result<(), OracleError> {
        if self.got.dim() != self.want.dim() {
            return Err(OracleError::shape("got", self.got.shape(), format!("{:?}", self.want.shape())));
        }
        let strange = |&&x: &&f32| !x.is_nan() && self.format.round(f64::from(x)) != f64::from(x);
        match self.got.iter().find(strange) {
            Some(x) => Err(OracleError::value("got", x, format!("values of {}", self.format))),
            None => Ok(()),
        }
    }

    fn compare(&self, reference: &Reference) -> Comparison {
        let tally = |index| self.tally(index, reference.rows[index]);
        let tallies: Vec<RowTally> = (0..self.got.dim().0).into_par_iter().map(tally).collect();
        let worst = tallies.iter().filter_map(|tally| tally.worst).reduce(worse);
        let places: Vec<Place> = tallies
            .iter()
            .enumerate()
            .flat_map(|(index, tally)| {
                tally.outside.iter().map(move |&(head, dim)| Place { index, head, dim })
            })
            .collect();
        Comparison {
            elements: self.got.len(),
            mismatches: places.len(),
            worst,
            first: tallies.iter().find_map(|tally| tally.first),
            worst_share: worst.map_or(0.0, |worst| worst.share),
            pattern: pattern::describe(&places, self.got.dim(), &reference.rows, &reference.positions),
        }
    }

    fn tally(&self, index: usize, row: usize) -> RowTally {
        let mut tally = RowTally { worst: None, first: None, outside: Vec::new() };
        for ((head, dim), &got) in self.got.index_axis(Axis(0), index).indexed_iter() {
            let (want, allowed) = (self.want[[index, head, dim]], self.allowed[[index, head, dim]]);
            let share = share(got, want, allowed, self.format);
            let got = f64::from(got);
            let deviation =
                Deviation { row, head, dim, got, want, error: (got - want).abs(), allowed, share };
            tally.worst = Some(tally.worst.map_or(deviation, |worst| worse(worst, deviation)));
            if share > 1.0 {
                tally.first.get_or_insert(deviation);
                tally.outside.push((head, dim));
            }
        }
        tally
    }
}

/// The one with the greater share, the earlier one on a tie.
fn worse(a: Deviation, b: Deviation) -> Deviation {
    if b.share > a.share { b } else { a }
}

/// Share of the bound that one element used: the smallest t with `got` in [round(want − t·E), round(want + t·E)], E being
/// `allowed` and `got` a value of `format`. At most 1 exactly when it is so for t = 1; infinite where no t would do.
#[must_use]
pub fn share(got: f32, want: f64, allowed: f64, format: Format) -> f64 {
    let value = f64::from(got);
    let nearest = format.round(want);
    if value == nearest || (value.is_nan() && want.is_nan()) {
        return 0.0;
    }
    if value.is_nan() || !want.is_finite() {
        return f64::INFINITY;
    }
    // round(y) reaches `got` as soon as y passes the midpoint between `got` and its neighbour on the near side.
    let inward = if value > nearest { format.next_down(got) } else { format.next_up(got) };
    let outermost = format.max_finite();
    let midpoint = match value.is_infinite() {
        // What rounds to infinity begins half a step beyond the largest finite value.
        true => {
            let below = f64::from(format.next_down(outermost as f32));
            (outermost + (outermost - below) / 2.0).copysign(value)
        }
        false => (value + f64::from(inward)) / 2.0,
    };
    let share = (midpoint - want).abs() / allowed;
    let accepted = format.round(want - allowed) <= value && value <= format.round(want + allowed);
    // The division rounds, and a tie may go either way: the test itself decides which side of 1 the share is on.
    match accepted {
        true => share.min(1.0),
        false if share > 1.0 => share,
        false => 1.0_f64.next_up(),
    }
}
