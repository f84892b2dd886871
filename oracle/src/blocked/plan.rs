//! How the rows and heads of a problem are dealt out to groups of lanes, and how the answers come back.

use ndarray::{Array2, Array3, Axis};
use rayon::prelude::*;

use super::GroupValues;
use super::lanes::Lane;
use super::panels::HeadPanels;
use super::simd::Real;
use crate::request::{Attention, Problem};

/// Packed keys and values that may exist at a time, in bytes.
const PACKED_BYTES: usize = 1 << 29;

/// The order of the lanes: KV head by KV head, its rows by position, the query heads of a row together.
///
/// Neighbouring lanes thus see nearly the same keys, whatever the order of a sample.
pub(super) struct Plan {
    kv_heads: usize,
    /// Query heads per KV head.
    heads_per_kv: usize,
    /// Indices into the problem's rows, by row.
    order: Vec<usize>,
    /// Place of each of those indices in `order`.
    rank: Vec<usize>,
    lanes_per_group: usize,
}

impl Plan {
    pub fn new(problem: &Problem<'_>, lanes_per_group: usize) -> Self {
        let kv_heads = problem.request.k.dim().1;
        let mut order: Vec<usize> = (0..problem.rows.len()).collect();
        order.sort_by_key(|&index| problem.rows[index]);
        let mut rank = vec![0; order.len()];
        order.iter().enumerate().for_each(|(place, &index)| rank[index] = place);
        Self { kv_heads, heads_per_kv: problem.heads.len() / kv_heads, order, rank, lanes_per_group }
    }

    /// Runs every group on all cores; the answers are in the order that [`place`](Self::place) speaks of.
    pub fn run<R: Real, A: Send>(
        &self,
        problem: &Problem<'_>,
        work: impl Fn(&HeadPanels<R>, &[Lane]) -> A + Sync,
    ) -> Vec<A> {
        let (kv_len, _, k_dim) = problem.request.k.dim();
        let head_bytes = (kv_len * (k_dim + problem.v_dim()) * size_of::<R>()).max(1);
        let batch = (PACKED_BYTES / head_bytes).max(1);
        let mut answers = Vec::new();
        for first in (0..self.kv_heads).step_by(batch) {
            let heads = first..(first + batch).min(self.kv_heads);
            let packed: Vec<HeadPanels<R>> = heads
                .clone()
                .into_par_iter()
                .map(|head| HeadPanels::new(problem.request.k, problem.request.v, head))
                .collect();
            let lanes: Vec<Vec<Lane>> = heads.map(|head| self.lanes(problem, head)).collect();
            let groups: Vec<(&HeadPanels<R>, &[Lane])> = packed
                .iter()
                .zip(&lanes)
                .flat_map(|(panels, lanes)| {
                    lanes.chunks(self.lanes_per_group).map(move |group| (panels, group))
                })
                .collect();
            // Groups differ in cost by their position, so they are handed out one by one.
            answers.par_extend(groups.par_iter().with_max_len(1).map(|(panels, lanes)| work(panels, lanes)));
        }
        answers
    }

    /// The lanes of one KV head.
    fn lanes(&self, problem: &Problem<'_>, kv_head: usize) -> Vec<Lane> {
        let heads = &problem.heads[kv_head * self.heads_per_kv..][..self.heads_per_kv];
        self.order
            .iter()
            .flat_map(|&index| heads.iter().map(move |&head| Lane { row: problem.rows[index], head }))
            .collect()
    }

    /// Which answer, and which lane of it, belongs to a row (by index) and a query head.
    pub fn place(&self, index: usize, head: usize) -> (usize, usize) {
        let groups_per_kv = (self.order.len() * self.heads_per_kv).div_ceil(self.lanes_per_group);
        let lane = self.rank[index] * self.heads_per_kv + head % self.heads_per_kv;
        (head / self.heads_per_kv * groups_per_kv + lane / self.lanes_per_group, lane % self.lanes_per_group)
    }

    /// Puts the answers into arrays.
    pub fn gather<R: Real>(&self, problem: &Problem<'_>, answers: &[GroupValues<R>]) -> Attention<R> {
        let (rows, heads, v_dim) = (problem.rows.len(), problem.heads.len(), problem.v_dim());
        let mut out = Array3::zeros((rows, heads, v_dim));
        let mut lse = Array2::zeros((rows, heads));
        out.axis_iter_mut(Axis(0)).into_par_iter().enumerate().for_each(|(index, mut out)| {
            for (head, mut out) in out.outer_iter_mut().enumerate() {
                let (group, lane) = self.place(index, head);
                let values = &answers[group].out[lane * v_dim..][..v_dim];
                out.iter_mut().zip(values).for_each(|(to, &from)| *to = from);
            }
        });
        for ((index, head), lse) in lse.indexed_iter_mut() {
            let (group, lane) = self.place(index, head);
            *lse = answers[group].lse[lane];
        }
        Attention { out, lse, rows: problem.rows.clone() }
    }
}
