//! The uniform-q0 probe: with q = 0 every visible key has the same weight, so the output is a mean of integers. One lost or
//! foreign key among thousands shows, and the integers tell which.

use std::ops::Range;

use ndarray::{ArrayView1, ArrayView2, ArrayView3, Axis, s};
use oracle::Format;

use super::super::attention::request_rows;
use super::{kv_head, v_scale, visible_range};
use crate::case::{Case, Data};
use crate::inputs::Inputs;
use crate::problem::Sinks;
use crate::verdict::Failure;

/// Compares with the exact answer, where there is one.
pub(in crate::judge) fn exact(case: &Case, inputs: &Inputs, out: ArrayView3<'_, f32>) -> Option<Failure> {
    let problem = &case.problem;
    let plain =
        case.data == Data::UniformQ0 && !problem.options.alibi && problem.options.sinks == Sinks::Absent;
    if !plain {
        return None;
    }
    let mut found = Found::default();
    for request in 0..problem.num_requests() {
        let rows = request_rows(problem, out, request);
        for row in 0..problem.query_lens[request] {
            let visible = visible_range(problem, request, row);
            if visible.is_empty() {
                continue;
            }
            for head in 0..problem.num_q_heads {
                let values = inputs.values[request].slice(s![.., kv_head(problem, head), ..]);
                let means = Means::new(values, visible.clone(), v_scale(problem, head), problem.query_format);
                let got = rows.slice(s![row, head, ..]);
                found.check(&means, got, || {
                    let place = format!("request {request}, row {row}, head {head}");
                    let key = |key: usize| {
                        let (page, slot) = inputs.pages.locate(request, key);
                        format!("key {key} (page {page} slot {slot})")
                    };
                    (place, Box::new(key))
                });
            }
        }
    }
    found.failure()
}

/// The exact means of one output row.
struct Means<'a> {
    /// V of the row's KV head, `[kv_len, head_dim_v]`: integers.
    values: ArrayView2<'a, f32>,
    visible: Range<usize>,
    sums: Vec<f64>,
    scale: f32,
    format: Format,
}

impl<'a> Means<'a> {
    fn new(values: ArrayView2<'a, f32>, visible: Range<usize>, scale: f32, format: Format) -> Self {
        let columns = values.slice(s![visible.clone(), ..]);
        let sums =
            columns.axis_iter(Axis(1)).map(|column| column.iter().map(|v| f64::from(*v)).sum()).collect();
        Self { values, visible, sums, scale, format }
    }

    /// Whether an element is right; `None` where no exact answer can be told from its neighbours.
    fn is_right(&self, dim: usize, got: f32) -> Option<bool> {
        let keys = self.visible.len();
        let scale_is_exact = self.scale.to_bits() & 0x007f_ffff == 0;
        if keys.is_power_of_two() && scale_is_exact {
            let mean = self.sums[dim] / keys as f64 * f64::from(self.scale);
            return Some(f64::from(got) == self.format.round(mean));
        }
        (self.format == Format::F32).then(|| (self.sum_of(got) - self.sums[dim]).abs() < 0.5)
    }

    /// The sum over the visible keys that an element stands for.
    fn sum_of(&self, got: f32) -> f64 {
        f64::from(got) / f64::from(self.scale) * self.visible.len() as f64
    }

    /// The one key whose absence, or whose presence, explains the whole row.
    fn suspect(&self, got: ArrayView1<'_, f32>) -> Option<Suspect> {
        let lost = self.visible.clone().map(Suspect::Lost);
        let hidden = (0..self.values.nrows()).filter(|key| !self.visible.contains(key)).map(Suspect::Foreign);
        let mut fitting = lost.chain(hidden).filter(|suspect| self.explains(*suspect, got));
        let only = fitting.next()?;
        fitting.next().is_none().then_some(only)
    }

    fn explains(&self, suspect: Suspect, got: ArrayView1<'_, f32>) -> bool {
        let (key, sign) = match suspect {
            Suspect::Lost(key) => (key, -1.0),
            Suspect::Foreign(key) => (key, 1.0),
        };
        let keys = self.visible.len() as f64 + sign;
        keys > 0.0
            && got.iter().enumerate().all(|(dim, got)| {
                let sum = self.sums[dim] + sign * f64::from(self.values[[key, dim]]);
                let want = sum / keys * f64::from(self.scale);
                let slack = 2.0 * self.format.unit_roundoff().max(1e-6) * want.abs().max(1e-3);
                (f64::from(*got) - want).abs() <= slack
            })
    }
}

/// A key that a row of output speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Suspect {
    Lost(usize),
    Foreign(usize),
}

#[derive(Default)]
struct Found {
    wrong: usize,
    of: usize,
    first: Option<String>,
}

/// Where a row is, and how to say where one of its keys lies.
type Names<'a> = (String, Box<dyn Fn(usize) -> String + 'a>);

impl Found {
    fn check<'a>(&mut self, means: &Means<'_>, got: ArrayView1<'_, f32>, names: impl FnOnce() -> Names<'a>) {
        let judged = got.iter().enumerate().filter_map(|(dim, x)| Some((dim, means.is_right(dim, *x)?)));
        let mut first_wrong = None;
        for (dim, right) in judged {
            self.of += 1;
            if !right {
                self.wrong += 1;
                first_wrong.get_or_insert(dim);
            }
        }
        if let Some(dim) = first_wrong
            && self.first.is_none()
        {
            let (place, key) = names();
            let (keys, want, stands_for) = (means.visible.len(), means.sums[dim], means.sum_of(got[dim]));
            let cause = match means.suspect(got) {
                Some(Suspect::Lost(lost)) => format!("; as if {} were left out", key(lost)),
                Some(Suspect::Foreign(foreign)) => {
                    format!("; as if {} counted, which the row does not see", key(foreign))
                }
                None => String::new(),
            };
            self.first = Some(format!(
                "{place}, dim {dim}: V sums to {want} over {keys} visible keys, the output stands for \
                 {stands_for:.3}{cause}"
            ));
        }
    }

    fn failure(self) -> Option<Failure> {
        self.first.map(|message| Failure::Probe { message, wrong: self.wrong, of: self.of })
    }
}
