//! Query rows side by side: each lane of the vectors is one row of one head, and all share a KV head.

use std::ops::Range;

use super::panels::HeadPanels;
use super::simd::{PANEL, Real};
use crate::request::{Head, Problem};

/// One row of one head.
#[derive(Clone, Copy)]
pub(super) struct Lane {
    /// Row of the request.
    pub row: usize,
    pub head: Head,
}

/// Up to `N` lanes with everything that their logits depend on. Lanes beyond `used` see no key, and what they
/// compute is not looked at.
pub(super) struct LaneGroup<R, const N: usize> {
    pub lanes: Vec<Lane>,
    /// sigma·q, `[k_dim][N]`.
    pub q: Vec<[R; N]>,
    /// Keys that each lane sees.
    pub visible: [Range<usize>; N],
    /// From the first key that some lane sees to the last.
    pub keys: Range<usize>,
    /// Keys that every used lane sees.
    shared: Range<usize>,
    softcap: Option<R>,
    /// ALiBi slopes and the positions they count from.
    alibi: Option<([R; N], [i64; N])>,
    /// Sinks, −∞ where there is none.
    pub sinks: [R; N],
    pub v_scale: [R; N],
}

impl<R: Real, const N: usize> LaneGroup<R, N> {
    pub fn new(problem: &Problem<'_>, lanes: &[Lane]) -> Self {
        let k_dim = problem.k_dim();
        let positions: [i64; N] =
            std::array::from_fn(|n| lanes.get(n).map_or(0, |lane| problem.mask.position(lane.row)));
        let visible: [Range<usize>; N] = std::array::from_fn(|n| match n < lanes.len() {
            true => problem.mask.visible_keys(positions[n]),
            false => 0..0,
        });
        let seeing = || visible.iter().filter(|keys| !keys.is_empty());
        let start = seeing().map(|keys| keys.start).min().unwrap_or(0);
        let end = seeing().map(|keys| keys.end).max().unwrap_or(0);
        let used = &visible[..lanes.len()];
        let shared_start = used.iter().map(|keys| keys.start).max().unwrap_or(0);
        let shared_end = used.iter().map(|keys| keys.end).min().unwrap_or(0);

        let mut q = vec![[R::zero(); N]; k_dim];
        for (n, lane) in lanes.iter().enumerate() {
            let row = problem.request.q.slice(ndarray::s![lane.row, lane.head.index, ..]);
            for (step, &x) in q.iter_mut().zip(row) {
                step[n] = R::narrow(lane.head.sigma) * R::widen(x);
            }
        }
        let per_lane = |value: &dyn Fn(&Head) -> f64| {
            std::array::from_fn(|n| R::narrow(lanes.get(n).map_or(0.0, |lane| value(&lane.head))))
        };
        let has_alibi = lanes.iter().any(|lane| lane.head.slope.is_some());
        Self {
            q,
            keys: start..end,
            shared: shared_start..shared_end,
            visible,
            softcap: lanes.first().and_then(|lane| lane.head.softcap).map(R::narrow),
            alibi: has_alibi.then(|| (per_lane(&|head| head.slope.unwrap_or(0.0)), positions)),
            sinks: per_lane(&|head| head.sink.unwrap_or(f64::NEG_INFINITY)),
            v_scale: per_lane(&|head| head.v_scale),
            lanes: lanes.to_vec(),
        }
    }

    /// Whether nothing that the lanes read is NaN or infinite; only then may keys that a lane does not see be
    /// multiplied by a weight of 0.
    pub fn is_finite(&self, panels: &HeadPanels<R>) -> bool {
        let read = self.keys.start / PANEL * PANEL..self.keys.end;
        self.q.iter().flatten().all(|x| x.is_finite()) && !panels.any_not_finite(&read)
    }

    /// Turns scaled dot products of one key into logits: softcap, ALiBi, and −∞ for lanes that do not see it.
    #[inline(always)]
    pub fn finish_logits(&self, j: usize, logits: &mut [R; N]) {
        if let Some(cap) = self.softcap {
            logits.iter_mut().for_each(|logit| *logit = cap * (*logit / cap).tanh());
        }
        if let Some((slopes, positions)) = &self.alibi {
            for n in 0..N {
                logits[n] += slopes[n] * R::narrow((j as i64 - positions[n]) as f64);
            }
        }
        if !self.shared.contains(&j) {
            for n in 0..N {
                if !self.visible[n].contains(&j) {
                    logits[n] = R::neg_infinity();
                }
            }
        }
    }
}
