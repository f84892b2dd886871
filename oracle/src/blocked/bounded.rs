//! Two passes over the keys: logits and magnitudes first, then every sum of the bound as a matrix product.

use std::ops::Range;

use ndarray::{Array1, Array2, Array3, Zip, s};

use super::flash::{KEY_TILE, logits};
use super::lanes::LaneGroup;
use super::panels::HeadPanels;
use super::simd::{PANEL, Real, Vectorised, accumulate};
use crate::bound::{self, BoundModel, ElementSums, RowBound};
use crate::judge::RowAnswer;
use crate::request::Problem;

/// Output, lse and bound of one group of lanes.
pub(super) struct Bounded<'a, 'p, const N: usize> {
    pub problem: &'a Problem<'p>,
    pub model: &'a BoundModel,
    pub group: &'a LaneGroup<f64, N>,
    pub panels: &'a HeadPanels<f64>,
    pub magnitudes: &'a MagnitudeSums,
}

/// What the first pass leaves: one entry per key of the group's range, from a whole panel on.
struct Scores<const N: usize> {
    first_key: usize,
    logits: Vec<[f64; N]>,
    /// S_j, the sum of magnitudes.
    magnitudes: Vec<[f64; N]>,
    max: [f64; N],
    /// Largest |x| of a visible key.
    max_x: [f64; N],
}

/// Sums over keys, one column per lane. Weights are relative to the maximum, not yet divided by the denominator.
struct Sums<const N: usize> {
    denominator: [f64; N],
    /// Σ p·eta.
    eta: [f64; N],
    max_eta: [f64; N],
    elements: [Vec<[[f64; N]; PANEL]>; PRODUCTS],
}

/// The products that each output element needs.
const PRODUCTS: usize = 5;
/// Σ p·v.
const MEAN: usize = 0;
/// Σ p·|v|.
const WEIGHTED: usize = 1;
/// Σ p·eta·v.
const ETA_V: usize = 2;
/// Σ p·eta·v².
const ETA_V2: usize = 3;
/// Σ p²·v², which only the random-walk form of the bound needs.
const SQUARES: usize = 4;

/// Sums of |v| over ranges of keys, for the ends that visible ranges have.
pub(super) struct MagnitudeSums {
    /// First keys and one past the last keys, ascending.
    ends: Vec<usize>,
    /// Σ |v| over the keys before each end, `[ends, num_kv_heads, v_dim]`.
    before: Array3<f64>,
}

impl MagnitudeSums {
    pub fn new(problem: &Problem<'_>) -> Self {
        let ranges = problem.rows.iter().map(|&row| problem.mask.visible_keys(problem.mask.position(row)));
        let mut ends: Vec<usize> = ranges.flat_map(|keys| [keys.start, keys.end]).collect();
        ends.sort_unstable();
        ends.dedup();
        let v = problem.request.v;
        let (_, kv_heads, v_dim) = v.dim();
        let mut before = Array3::zeros((ends.len(), kv_heads, v_dim));
        let mut sum = Array2::zeros((kv_heads, v_dim));
        let mut next = 0;
        for (mut before, &end) in before.outer_iter_mut().zip(&ends) {
            for key in v.slice(s![next..end, .., ..]).outer_iter() {
                // NaN and infinity would spoil the sums of rows that do not see them; rows that do are the judge's.
                Zip::from(&mut sum)
                    .and(&key)
                    .for_each(|sum, v| *sum += if v.is_finite() { f64::from(v.abs()) } else { 0.0 });
            }
            next = end;
            before.assign(&sum);
        }
        Self { ends, before }
    }

    /// Σ |v| over a visible range, one per dim.
    fn over(&self, keys: &Range<usize>, kv_head: usize) -> Array1<f64> {
        let before = |end: usize| {
            let place = self.ends.partition_point(|&other| other < end);
            self.before.slice(s![place, kv_head, ..])
        };
        &before(keys.end) - &before(keys.start)
    }
}

impl<const N: usize> Vectorised for Bounded<'_, '_, N> {
    type Output = Vec<RowAnswer>;

    #[inline(always)]
    fn run<const FMA: bool>(self) -> Vec<RowAnswer> {
        let scores = self.score::<FMA>();
        let bounds: [Option<RowBound>; N] = std::array::from_fn(|n| {
            let lane = self.group.lanes.get(n)?;
            let visible = &self.group.visible[n];
            let position = self.problem.mask.position(lane.row);
            Some(self.model.row(&lane.head, self.problem.k_dim(), visible, position, scores.max_x[n]))
        });
        let sums = self.sum::<FMA>(&scores, &bounds);
        let lanes = bounds.iter().flatten().enumerate();
        lanes.map(|(n, bound)| self.answer(n, scores.max[n], bound, &sums)).collect()
    }
}

impl<const N: usize> Bounded<'_, '_, N> {
    /// First pass: logits, their magnitudes and their extremes.
    #[inline(always)]
    fn score<const FMA: bool>(&self) -> Scores<N> {
        let keys = self.group.keys.clone();
        let first_key = keys.start / PANEL * PANEL;
        let absolute_q: Vec<[f64; N]> = self.group.q.iter().map(|step| step.map(f64::abs)).collect();
        let mut scores = Scores {
            first_key,
            logits: Vec::with_capacity(keys.end - first_key),
            magnitudes: Vec::with_capacity(keys.end - first_key),
            max: self.group.sinks,
            max_x: [0.0; N],
        };
        let mut tile = [[[0.0; N]; PANEL]; KEY_TILE / PANEL];
        let mut absolute_k = vec![[0.0; PANEL]; self.group.q.len()];
        let mut min = [f64::INFINITY; N];
        for start in (first_key..keys.end).step_by(KEY_TILE) {
            let end = (start + KEY_TILE).min(keys.end);
            for panel in start / PANEL..end.div_ceil(PANEL) {
                let mut magnitudes = [[0.0; N]; PANEL];
                map_panel(self.panels.keys(panel), &mut absolute_k, f64::abs);
                accumulate::<f64, N, FMA>(&mut magnitudes, &absolute_k, &absolute_q);
                scores.magnitudes.extend_from_slice(&magnitudes);
            }
            let logits = logits::<f64, N, FMA>(self.group, self.panels, start..end, &mut tile);
            for logits in logits.iter() {
                for n in 0..N {
                    let logit = logits[n];
                    scores.max[n] = if logit > scores.max[n] { logit } else { scores.max[n] };
                    // A key that the lane does not see has the logit −∞.
                    let low = if logit == f64::NEG_INFINITY { f64::INFINITY } else { logit };
                    min[n] = if low < min[n] { low } else { min[n] };
                }
            }
            scores.logits.extend_from_slice(logits);
        }
        scores.max_x = std::array::from_fn(|n| if min[n].is_finite() { scores.max[n] - min[n] } else { 0.0 });
        scores
    }

    /// Second pass: the weights, and what they are summed with.
    #[inline(always)]
    fn sum<const FMA: bool>(&self, scores: &Scores<N>, bounds: &[Option<RowBound>; N]) -> Sums<N> {
        let panels = self.problem.v_dim().div_ceil(PANEL);
        // A sink is a key whose V is 0.
        let sink_weights: [f64; N] = std::array::from_fn(|n| match self.group.sinks[n] {
            f64::NEG_INFINITY => 0.0,
            sink => (sink - scores.max[n]).exp(),
        });
        let mut sums = Sums {
            denominator: sink_weights,
            eta: std::array::from_fn(|n| match &bounds[n] {
                Some(bound) if sink_weights[n] > 0.0 => {
                    let sink = self.group.sinks[n];
                    sink_weights[n] * bound.sink_eta(sink, sink - scores.max[n])
                }
                _ => 0.0,
            }),
            max_eta: [0.0; N],
            elements: std::array::from_fn(|_| vec![[[0.0; N]; PANEL]; panels]),
        };
        let mut weights = Weights { plain: [[0.0; N]; KEY_TILE], eta: [[0.0; N]; KEY_TILE] };
        for from in (0..scores.logits.len()).step_by(KEY_TILE) {
            let to = (from + KEY_TILE).min(scores.logits.len());
            weights.fill::<FMA>(scores, from..to, bounds, &mut sums);
            let keys = scores.first_key + from..scores.first_key + to;
            self.add_products::<FMA>(&weights, keys, &mut sums.elements);
        }
        sums
    }

    #[inline(always)]
    fn add_products<const FMA: bool>(
        &self,
        weights: &Weights<N>,
        keys: Range<usize>,
        sums: &mut [Vec<[[f64; N]; PANEL]>; PRODUCTS],
    ) {
        let mut mapped = [[0.0; PANEL]; KEY_TILE];
        let mut squared_weights = weights.plain;
        squared_weights.as_flattened_mut().iter_mut().for_each(|weight| *weight *= *weight);
        for panel in 0..sums[MEAN].len() {
            let v = self.panels.values(panel, keys.clone());
            let mapped = &mut mapped[..v.len()];
            accumulate::<f64, N, FMA>(&mut sums[MEAN][panel], v, &weights.plain);
            accumulate::<f64, N, FMA>(&mut sums[ETA_V][panel], v, &weights.eta);
            map_panel(v, mapped, f64::abs);
            accumulate::<f64, N, FMA>(&mut sums[WEIGHTED][panel], mapped, &weights.plain);
            map_panel(v, mapped, |v| v * v);
            accumulate::<f64, N, FMA>(&mut sums[ETA_V2][panel], mapped, &weights.eta);
            if self.model.sign_symmetric_v {
                accumulate::<f64, N, FMA>(&mut sums[SQUARES][panel], mapped, &squared_weights);
            }
        }
    }

    /// Puts one lane's sums together.
    fn answer(&self, n: usize, max: f64, bound: &RowBound, sums: &Sums<N>) -> RowAnswer {
        let lane = &self.group.lanes[n];
        let visible = &self.group.visible[n];
        if visible.is_empty() && lane.head.sink.is_none() {
            return RowAnswer::of_nothing(self.problem.v_dim());
        }
        let denominator = sums.denominator[n];
        let lse = max + denominator.ln();
        let magnitudes = self.magnitudes.over(visible, lane.head.kv_index);
        let eta = sums.eta[n] / denominator;
        let element = |d: usize| {
            let sum = |product: usize| sums.elements[product][d / PANEL][d % PANEL][n] / denominator;
            let mean = sum(MEAN);
            let around_mean = sum(ETA_V2) - 2.0 * mean * sum(ETA_V) + mean * mean * eta;
            let terms = ElementSums {
                weighted: sum(WEIGHTED),
                squares: sum(SQUARES) / denominator,
                spread: (eta * around_mean.max(0.0)).sqrt(),
                lost: magnitudes[d] / denominator,
            };
            (mean * lane.head.v_scale, bound.out(&terms))
        };
        let (out, bounds): (Vec<f64>, Vec<f64>) = (0..self.problem.v_dim()).map(element).unzip();
        RowAnswer {
            out: out.into(),
            bound: bounds.into(),
            lse,
            lse_bound: bound.lse(eta, lse),
            max_eta: sums.max_eta[n],
        }
    }
}

/// The weights of one tile of keys.
struct Weights<const N: usize> {
    /// p = exp(s − m).
    plain: [[f64; N]; KEY_TILE],
    /// p·eta.
    eta: [[f64; N]; KEY_TILE],
}

impl<const N: usize> Weights<N> {
    #[inline(always)]
    fn fill<const FMA: bool>(
        &mut self,
        scores: &Scores<N>,
        tile: Range<usize>,
        bounds: &[Option<RowBound>; N],
        sums: &mut Sums<N>,
    ) {
        let per_magnitude: [f64; N] =
            std::array::from_fn(|n| bounds[n].as_ref().map_or(0.0, |bound| bound.per_magnitude));
        let common: [f64; N] = std::array::from_fn(|n| bounds[n].as_ref().map_or(0.0, |bound| bound.common));
        let logits = scores.logits[tile.clone()].iter().zip(&scores.magnitudes[tile]);
        for ((plain, with_eta), (logits, magnitudes)) in self.plain.iter_mut().zip(&mut self.eta).zip(logits)
        {
            for n in 0..N {
                let is_visible = logits[n] != f64::NEG_INFINITY;
                let x = if is_visible { logits[n] - scores.max[n] } else { 0.0 };
                let eta = bound::eta(per_magnitude[n], common[n], magnitudes[n], x);
                let p = f64::exp_of_nonpositive::<FMA>(x);
                plain[n] = if is_visible { p } else { 0.0 };
                with_eta[n] = plain[n] * eta;
                sums.denominator[n] += plain[n];
                sums.eta[n] += with_eta[n];
                let seen = if is_visible { eta } else { 0.0 };
                sums.max_eta[n] = if seen > sums.max_eta[n] { seen } else { sums.max_eta[n] };
            }
        }
    }
}

/// Applies `f` to every element of a panel.
#[inline(always)]
fn map_panel(from: &[[f64; PANEL]], to: &mut [[f64; PANEL]], f: impl Fn(f64) -> f64) {
    for (to, from) in to.as_flattened_mut().iter_mut().zip(from.as_flattened()) {
        *to = f(*from);
    }
}
