//! Output and lse of an attention case against the references of its requests.

use ndarray::{Array2, Array3, ArrayView2, ArrayView3, Axis, s};
use oracle::{Comparison, Deviation, Format, OracleError, Reference, compare, compare_lse, share};

use super::probe;
use crate::case::Case;
use crate::inputs::Inputs;
use crate::job::sentinel;
use crate::problem::Problem;
use crate::verdict::{ErrorMap, Failure, Place, RowKind, RowPlace, WrongElement};

/// What an attention kernel left in its output buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttentionOutput {
    /// Bytes of `[total_q, num_q_heads, head_dim_v]` in the query's format.
    pub out: Vec<u8>,
    /// Bytes of f32 `[total_q, num_q_heads]`.
    pub lse: Option<Vec<u8>>,
}

/// Judges one run. Returns the failed checks and the largest share of its bound that any element used.
///
/// # Errors
/// If an array does not have the shape of the reference.
pub fn judge_attention(
    case: &Case,
    inputs: &Inputs,
    references: &[Reference],
    output: &AttentionOutput,
) -> Result<(Vec<Failure>, f64), OracleError> {
    let problem = &case.problem;
    let rows = problem.total_query_rows();
    let mut failures = unwritten(problem, "out", &output.out);
    let out = problem.query_format.decode_bytes(&output.out);
    let out = shaped(out, (rows, problem.num_q_heads, problem.head_dim_v));
    let mut compared = Compared::default();
    for_each_request(problem, references, |request, range, reference| {
        let got = out.slice(s![range, .., ..]).select(Axis(0), &reference.rows);
        compared.add(request, compare(got.view(), reference, problem.query_format)?);
        Ok(())
    })?;
    let explain = |place: &Place| probe::explain(case, inputs, place, out.view());
    let map = || map_of_out(problem, references, out.view());
    failures.extend(compared.failure("out", explain, map));
    failures.extend(probe::exact(case, inputs, out.view()));
    let mut worst_share = compared.worst_share;
    if let Some(lse) = &output.lse {
        failures.extend(unwritten(problem, "lse", lse));
        let lse = shaped2(Format::F32.decode_bytes(lse), (rows, problem.num_q_heads));
        let mut compared = Compared::default();
        for_each_request(problem, references, |request, range, reference| {
            let got = lse.slice(s![range, ..]).select(Axis(0), &reference.rows);
            compared.add(request, compare_lse(got.view(), reference)?);
            Ok(())
        })?;
        let explain = |place: &Place| logarithm_base(lse.view(), problem, references, place);
        failures.extend(compared.failure("lse", explain, || map_of_lse(problem, references, lse.view())));
        worst_share = worst_share.max(compared.worst_share);
    }
    Ok((failures, worst_share))
}

fn shaped(values: Vec<f32>, dims: (usize, usize, usize)) -> Array3<f32> {
    Array3::from_shape_vec(dims, values).expect("a buffer comes back as long as it was sent")
}

fn shaped2(values: Vec<f32>, dims: (usize, usize)) -> Array2<f32> {
    Array2::from_shape_vec(dims, values).expect("a buffer comes back as long as it was sent")
}

fn for_each_request(
    problem: &Problem,
    references: &[Reference],
    mut each: impl FnMut(usize, std::ops::Range<usize>, &Reference) -> Result<(), OracleError>,
) -> Result<(), OracleError> {
    let mut first = 0;
    for (request, (q_len, reference)) in problem.query_lens.iter().zip(references).enumerate() {
        each(request, first..first + q_len, reference)?;
        first += q_len;
    }
    Ok(())
}

/// Comparisons of several requests, summed up.
#[derive(Default)]
struct Compared {
    elements: usize,
    wrong: usize,
    worst: Option<(usize, Deviation)>,
    first: Option<(usize, Deviation)>,
    worst_share: f64,
    patterns: Vec<(usize, String)>,
    requests: usize,
}

impl Compared {
    fn add(&mut self, request: usize, comparison: Comparison) {
        self.requests += usize::from(comparison.elements > 0);
        self.elements += comparison.elements;
        self.wrong += comparison.mismatches;
        self.worst_share = self.worst_share.max(comparison.worst_share);
        if comparison.mismatches == 0 {
            return;
        }
        if let Some(worst) = comparison.worst
            && self.worst.as_ref().is_none_or(|(_, w)| worst.share > w.share)
        {
            self.worst = Some((request, worst));
        }
        if self.first.is_none() {
            self.first = comparison.first.map(|first| (request, first));
        }
        if let Some(pattern) = comparison.pattern {
            self.patterns.push((request, pattern));
        }
    }

    fn failure(
        &self,
        output: &str,
        explain: impl Fn(&Place) -> Option<String>,
        map: impl Fn() -> ErrorMap,
    ) -> Option<Failure> {
        let (worst, first) = (self.worst.as_ref()?, self.first.as_ref()?);
        let is_lse = output == "lse";
        let place = |(request, d): &(usize, Deviation)| Place {
            request: *request,
            row: d.row,
            head: d.head,
            dim: (!is_lse).then_some(d.dim),
        };
        let number = |x: f64| format!("{x:.6e}");
        let element = WrongElement {
            place: place(worst),
            got: number(worst.1.got),
            want: number(worst.1.want),
            error: format!("{:.1e}", worst.1.error),
            allowed: format!("{:.1e}", worst.1.allowed),
            share: format!("{:.1}", worst.1.share),
        };
        Some(Failure::Elements {
            output: output.to_owned(),
            wrong: self.wrong,
            of: self.elements,
            explanation: explain(&element.place),
            first: place(first),
            worst: element,
            pattern: self.pattern(),
            map: Some(Box::new(map())),
        })
    }

    /// One pattern for the batch: what its requests agree on, and which of them are affected.
    fn pattern(&self) -> Option<String> {
        let (first_request, first) = self.patterns.first()?;
        let same = self.patterns.iter().all(|(_, pattern)| pattern == first);
        let affected = self.patterns.len();
        Some(match (same, affected) {
            (true, n) if n == self.requests => first.clone(),
            (_, 1) => format!("only request {first_request}: {first}"),
            (true, n) => format!("{n} of {} requests: {first}", self.requests),
            (false, n) => format!("{n} of {} requests; request {first_request}: {first}", self.requests),
        })
    }
}

/// Index of a compared row in its request's reference, and its row in the batch.
fn compared_rows(problem: &Problem, references: &[Reference]) -> (Vec<RowPlace>, Vec<(usize, usize)>) {
    let mut places = Vec::new();
    let mut indices = Vec::new();
    let mut first = 0;
    for (request, (q_len, reference)) in problem.query_lens.iter().zip(references).enumerate() {
        for (index, (&row, &position)) in reference.rows.iter().zip(&reference.positions).enumerate() {
            places.push(RowPlace { request, row, position });
            indices.push((index, first + row));
        }
        first += q_len;
    }
    (places, indices)
}

fn map_of_out(problem: &Problem, references: &[Reference], out: ArrayView3<'_, f32>) -> ErrorMap {
    let (places, indices) = compared_rows(problem, references);
    let shape = (problem.num_q_heads, problem.head_dim_v);
    ErrorMap::new(RowKind::Query, &places, shape, |i, head, dim| {
        let (reference, (index, row)) = (&references[places[i].request], indices[i]);
        let at = [index, head, dim];
        share(out[[row, head, dim]], reference.out[at], reference.bound[at], problem.query_format)
    })
}

fn map_of_lse(problem: &Problem, references: &[Reference], lse: ArrayView2<'_, f32>) -> ErrorMap {
    let (places, indices) = compared_rows(problem, references);
    ErrorMap::new(RowKind::Query, &places, (problem.num_q_heads, 1), |i, head, _| {
        let (reference, (index, row)) = (&references[places[i].request], indices[i]);
        let at = [index, head];
        share(lse[[row, head]], reference.lse[at], reference.lse_bound[at], Format::F32)
    })
}

/// Recognises an lse in base 2.
fn logarithm_base(
    lse: ArrayView2<'_, f32>,
    problem: &Problem,
    references: &[Reference],
    place: &Place,
) -> Option<String> {
    let first: usize = problem.query_lens[..place.request].iter().sum();
    let reference = &references[place.request];
    let index = reference.rows.iter().position(|row| *row == place.row)?;
    let want = reference.lse[[index, place.head]];
    let got = f64::from(lse[[first + place.row, place.head]]);
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-4 * b.abs().max(1.0);
    near(got * std::f64::consts::LN_2, want).then(|| "the value is the base-2 logarithm".to_owned())
}

/// Elements that still hold the sentinel.
fn unwritten(problem: &Problem, output: &str, bytes: &[u8]) -> Vec<Failure> {
    let (format, dim) = match output {
        "lse" => (Format::F32, 1),
        _ => (problem.query_format, problem.head_dim_v),
    };
    let sentinel = sentinel(format);
    let untouched =
        || bytes.chunks_exact(sentinel.len()).enumerate().filter(|(_, e)| *e == sentinel.as_slice());
    let Some((first, _)) = untouched().next() else { return Vec::new() };
    vec![Failure::Unwritten {
        output: output.to_owned(),
        elements: untouched().count(),
        of: bytes.len() / sentinel.len(),
        first: place(problem, first, dim, output == "lse"),
    }]
}

/// The place of a flat element index of `out` (`dim` elements per row and head) or `lse` (one).
fn place(problem: &Problem, index: usize, dim: usize, is_lse: bool) -> Place {
    let per_row = problem.num_q_heads * dim;
    let (mut row, rest) = (index / per_row, index % per_row);
    let mut request = 0;
    while request + 1 < problem.query_lens.len() && row >= problem.query_lens[request] {
        row -= problem.query_lens[request];
        request += 1;
    }
    Place { request, row, head: rest / dim, dim: (!is_lse).then_some(rest % dim) }
}

/// Elements in which two runs differ that must be equal bit for bit. NaNs of any payload are equal.
#[must_use]
pub fn differences(
    problem: &Problem,
    on: &str,
    main: &AttentionOutput,
    other: &AttentionOutput,
) -> Vec<Failure> {
    let mut failures = Vec::new();
    let mut check = |output: &str, format: Format, dim: usize, a: &[u8], b: &[u8]| {
        let size = format.size_bytes();
        let pairs = a.chunks_exact(size).zip(b.chunks_exact(size)).enumerate();
        let both_nan =
            |a: &[u8], b: &[u8]| format.decode_bytes(a)[0].is_nan() && format.decode_bytes(b)[0].is_nan();
        let differing: Vec<usize> =
            pairs.filter(|(_, (a, b))| a != b && !both_nan(a, b)).map(|(index, _)| index).collect();
        if let Some(first) = differing.first() {
            let map = map_of_differences(problem, dim, &differing);
            failures.push(Failure::Depends {
                map: Some(Box::new(map)),
                on: on.to_owned(),
                output: output.to_owned(),
                elements: differing.len(),
                of: a.len() / size,
                first: place(problem, *first, dim, output == "lse"),
            });
        }
    };
    check("out", problem.query_format, problem.head_dim_v, &main.out, &other.out);
    if let (Some(a), Some(b)) = (&main.lse, &other.lse) {
        check("lse", Format::F32, 1, a, b);
    }
    failures
}

/// Elements of `[total_q, num_q_heads, dim]` that should be equal and are not, by flat index, ascending.
fn map_of_differences(problem: &Problem, dim: usize, differing: &[usize]) -> ErrorMap {
    let rows = problem.query_lens.iter().zip(&problem.kv_lens).enumerate();
    let places: Vec<RowPlace> = rows
        .flat_map(|(request, (&q_len, &kv_len))| {
            let position = move |row| kv_len as i64 - q_len as i64 + row as i64;
            (0..q_len).map(move |row| RowPlace { request, row, position: position(row) })
        })
        .collect();
    let heads = problem.num_q_heads;
    ErrorMap::new(RowKind::Query, &places, (heads, dim), |row, head, d| {
        let index = (row * heads + head) * dim + d;
        if differing.binary_search(&index).is_ok() { f64::INFINITY } else { 0.0 }
    })
}

/// A view of one request's rows.
pub(super) fn request_rows<'a>(
    problem: &Problem,
    out: ArrayView3<'a, f32>,
    request: usize,
) -> ArrayView3<'a, f32> {
    let first: usize = problem.query_lens[..request].iter().sum();
    out.slice_move(s![first..first + problem.query_lens[request], .., ..])
}
