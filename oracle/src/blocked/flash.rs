//! One pass over the keys with a running maximum and sum: output and lse, without a bound.

use super::lanes::LaneGroup;
use super::panels::HeadPanels;
use super::simd::{PANEL, Real, Vectorised, accumulate};

/// Keys between two rescalings: a tile of logits and the queries stay in the first-level cache.
pub(super) const KEY_TILE: usize = 16 * PANEL;

/// The attention of one group of lanes.
pub(super) struct Flash<'a, R, const N: usize> {
    pub group: &'a LaneGroup<R, N>,
    pub panels: &'a HeadPanels<R>,
    /// Receives the output, `[used lanes][v_dim]`.
    pub out: &'a mut [R],
    /// Receives the lse, one per used lane.
    pub lse: &'a mut [R],
}

/// Running state, one column per lane.
struct Running<R, const N: usize> {
    max: [R; N],
    sum: [R; N],
    /// Unnormalised output, `[v_dim in whole panels][N]`.
    acc: Vec<[[R; N]; PANEL]>,
}

impl<R: Real, const N: usize> Vectorised for Flash<'_, R, N> {
    type Output = ();

    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let v_dim = self.out.len() / self.lse.len();
        let sinks = self.group.sinks;
        let mut state = Running {
            max: sinks,
            sum: sinks.map(|sink| if sink == R::neg_infinity() { R::zero() } else { R::one() }),
            acc: vec![[[R::zero(); N]; PANEL]; v_dim.div_ceil(PANEL)],
        };
        let mut tile = [[[R::zero(); N]; PANEL]; KEY_TILE / PANEL];
        let keys = self.group.keys.clone();
        // Tiles start at whole panels; keys before the first visible one are masked.
        let mut start = keys.start / PANEL * PANEL;
        while start < keys.end {
            let end = (start + KEY_TILE).min(keys.end);
            let logits = logits::<R, N, FMA>(self.group, self.panels, start..end, &mut tile);
            state.weigh::<FMA>(logits);
            for (panel, acc) in state.acc.iter_mut().enumerate() {
                accumulate::<R, N, FMA>(acc, self.panels.values(panel, start..end), logits);
            }
            start = end;
        }
        self.write(&state);
    }
}

/// The logits of a range of keys that starts at a panel, `[keys][N]`, in the given tile.
#[inline(always)]
pub(super) fn logits<'t, R: Real, const N: usize, const FMA: bool>(
    group: &LaneGroup<R, N>,
    panels: &HeadPanels<R>,
    keys: std::ops::Range<usize>,
    tile: &'t mut [[[R; N]; PANEL]],
) -> &'t mut [[R; N]] {
    for (panel, products) in tile.iter_mut().enumerate().take(keys.len().div_ceil(PANEL)) {
        *products = [[R::zero(); N]; PANEL];
        accumulate::<R, N, FMA>(products, panels.keys(keys.start / PANEL + panel), &group.q);
    }
    let logits = &mut tile.as_flattened_mut()[..keys.len()];
    for (j, logits) in keys.zip(logits.iter_mut()) {
        group.finish_logits(j, logits);
    }
    logits
}

impl<R: Real, const N: usize> Running<R, N> {
    /// Moves the state to the maximum that includes these logits, and turns them into weights relative to it.
    #[inline(always)]
    fn weigh<const FMA: bool>(&mut self, logits: &mut [[R; N]]) {
        let mut max = self.max;
        for logits in logits.iter() {
            for n in 0..N {
                max[n] = if logits[n] > max[n] { logits[n] } else { max[n] };
            }
        }
        // A lane that has seen no key yet keeps −∞; 0 in its place gives weights of 0 and not ∞ − ∞.
        let finite = max.map(|max| if max == R::neg_infinity() { R::zero() } else { max });
        let mut rescale = [R::zero(); N];
        for n in 0..N {
            rescale[n] = R::exp_of_nonpositive::<FMA>(self.max[n] - finite[n]);
            self.sum[n] *= rescale[n];
        }
        self.max = max;
        if rescale.iter().any(|&factor| factor != R::one()) {
            for acc in self.acc.as_flattened_mut() {
                for n in 0..N {
                    acc[n] *= rescale[n];
                }
            }
        }
        for logits in logits.iter_mut() {
            for n in 0..N {
                logits[n] = R::exp_of_nonpositive::<FMA>(logits[n] - finite[n]);
                self.sum[n] += logits[n];
            }
        }
    }
}

impl<R: Real, const N: usize> Flash<'_, R, N> {
    #[inline(always)]
    fn write(self, state: &Running<R, N>) {
        let v_dim = self.out.len() / self.lse.len();
        for (n, (out, lse)) in self.out.chunks_exact_mut(v_dim).zip(self.lse).enumerate() {
            // Without a key and without a sink the sum is 0; out is then 0 and lse −∞.
            let nothing = state.sum[n] == R::zero();
            let factor = if nothing { R::zero() } else { self.group.v_scale[n] / state.sum[n] };
            for (out, acc) in out.iter_mut().zip(state.acc.as_flattened()) {
                *out = acc[n] * factor;
            }
            *lse = if nothing { R::neg_infinity() } else { state.max[n] + state.sum[n].ln() };
        }
    }
}
