//! How much rounding error a correct kernel may make.
//!
//! With u = 2⁻²⁴, u_P the unit roundoff of the weights P as the kernel keeps them, D the head_dim of K, L the
//! visible keys, x_j = s_j − m, S_j = |sigma|·Σ_d |q_d c_kjd|, B = |v_scale|·Σ_j w_j |c_vj|, T key tiles of B_T keys
//! and e = 2⁻²² (hardware exp2), each weight carries a relative error of at most
//!
//! ```text
//! eta_j = (D·2⁻²³ + 4u)·S_j + [softcap c] c·2⁻²¹ + u·|x_j| + T·(u + e) + u·max|x| + e
//! ```
//!
//! and an output element, or the lse, an absolute error of at most
//!
//! ```text
//! E     = u_P·B + |v_scale|·Σ_j w_j·eta_j·|c_vj − mean_v| + (L·2⁻²³ + (min(B_T, L) + T + 4)·u)·B
//!         + tau·|v_scale|·Σ_j |c_vj| / l
//! E_lse = Σ_j w_j·eta_j + L·2⁻²³ + (min(B_T, L) + T + 4)·u + u·|lse|
//! ```
//!
//! with mean_v = Σ_j w_j c_vj, all times 1 + 2⁻⁷ for what first order leaves out. An error common to all weights
//! cancels in the quotient, which is why eta meets |c_vj − mean_v| and not |c_vj|. A sink is one more j in Σ_j w_j eta_j,
//! with S_j = |sink| without the term in D, with c_vj = 0, and without softcap and ALiBi.

use crate::request::Head;
use crate::{Format, OracleError};

/// 2⁻²⁴, the unit roundoff of f32.
const U: f64 = 1.0 / 16_777_216.0;
/// 2⁻²², the relative error of a hardware exp2 (within 2 ulp).
const EXP2_ERROR: f64 = 4.0 * U;
/// 2⁻²³, the error of one f32 multiply-add relative to the sum of magnitudes, in any order and on tensor cores.
const ACCUMULATE: f64 = 2.0 * U;
/// 2⁻²¹, the error of tanh relative to the cap, in the form with an exponential.
const TANH_ERROR: f64 = 8.0 * U;
/// 4u, the error of a logit's factors: of the scale, of log2 e and of the products with them.
const SCALING: f64 = 4.0 * U;
/// What first order leaves out.
const SECOND_ORDER: f64 = 1.0 + 1.0 / 128.0;

/// How the kernel under judgement rounds: the parameters of the error bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BoundModel {
    /// Unit roundoff of P as the kernel keeps it between the two products: 2⁻⁸ for bf16, 2⁻¹¹ for f16, 0 for
    /// f32. A kernel that sums the *rounded* P for the denominator is allowed twice that.
    pub p_unit_roundoff: f64,
    /// Largest weight (relative to the row's largest) that rounding P may lose altogether: 2⁻²⁵ for f16,
    /// 2⁻¹²⁶ otherwise.
    pub p_underflow: f64,
    /// Keys that the kernel handles between two rescalings of its running maximum.
    pub key_tile: usize,
    /// The inputs lie on an integer grid with a power-of-two scale, so that q·k is exact in f32 and its rounding
    /// term is dropped.
    pub grid_inputs: bool,
    /// V is random with symmetric signs and independent of q and k, so that rounding errors of P add up like a
    /// random walk: u_P·B becomes 8·u_P·|v_scale|·sqrt(Σ (w_j c_vj)²) where that is less.
    pub sign_symmetric_v: bool,
}

impl BoundModel {
    /// The model of a kernel that keeps P in `p_format` and sums the unrounded P, for arbitrary inputs.
    #[must_use]
    pub fn new(p_format: Format, key_tile: usize) -> Self {
        Self {
            p_unit_roundoff: if p_format == Format::F32 { 0.0 } else { p_format.unit_roundoff() },
            p_underflow: if p_format == Format::F16 { 0.5_f64.powi(25) } else { 0.5_f64.powi(126) },
            key_tile,
            grid_inputs: false,
            sign_symmetric_v: false,
        }
    }

    pub(crate) fn check(&self) -> Result<(), OracleError> {
        let fraction = |argument: &str, value: f64| match (0.0..1.0).contains(&value) {
            true => Ok(()),
            false => Err(OracleError::value(argument, value, "at least 0 and below 1")),
        };
        fraction("p_unit_roundoff", self.p_unit_roundoff)?;
        fraction("p_underflow", self.p_underflow)?;
        match self.key_tile {
            0 => Err(OracleError::value("key_tile", 0, "at least 1")),
            _ => Ok(()),
        }
    }

    /// Key tiles, aligned to multiples of `key_tile`, that hold a key of the range.
    fn tiles(&self, visible: &std::ops::Range<usize>) -> f64 {
        match visible.is_empty() {
            true => 0.0,
            false => ((visible.end - 1) / self.key_tile - visible.start / self.key_tile + 1) as f64,
        }
    }

    /// The part of the bound that one row of one head shares among its keys and dims.
    pub(crate) fn row(
        &self,
        head: &Head,
        k_dim: usize,
        visible: &std::ops::Range<usize>,
        position: i64,
        max_x: f64,
    ) -> RowBound {
        let tiles = self.tiles(visible);
        let dot = if self.grid_inputs { 0.0 } else { k_dim as f64 * ACCUMULATE };
        let tanh = head.softcap.map_or(0.0, |cap| cap * TANH_ERROR);
        // slope·(j − p) and the score are added and rounded to the place of the sum; so is the sum's product with log2 e,
        // and the maximum's. Where every key is far from the row no other term grows with the distance.
        let distance = |j: usize| (j as i64 - position).unsigned_abs() as f64;
        let farthest = distance(visible.start).max(distance(visible.end.saturating_sub(1)));
        let alibi = head.slope.map_or(0.0, |slope| 3.0 * U * slope.abs() * farthest);
        let exponentials = tiles * (U + EXP2_ERROR) + U * max_x + EXP2_ERROR;
        // A tile adds no more keys than there are: what a row does not see counts exactly 0.
        let longest_tile = self.key_tile.min(visible.len()) as f64;
        RowBound {
            model: *self,
            v_scale: head.v_scale.abs(),
            per_magnitude: dot + SCALING,
            common: tanh + alibi + exponentials,
            exponentials,
            sums: visible.len() as f64 * ACCUMULATE + (longest_tile + tiles + 4.0) * U,
        }
    }
}

/// eta_j, from the two terms that a row's keys share; apart from [`RowBound`] so that it compiles to vector code.
#[inline(always)]
pub(crate) fn eta(per_magnitude: f64, common: f64, magnitude: f64, x: f64) -> f64 {
    per_magnitude * magnitude + U * x.abs() + common
}

/// Sums over the visible keys that the bound of one output element is made of, all of unscaled V.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ElementSums {
    /// Σ w_j |c_vj|.
    pub weighted: f64,
    /// Σ (w_j c_vj)².
    pub squares: f64,
    /// Σ w_j eta_j |c_vj − mean_v|, over the sink as well.
    pub spread: f64,
    /// Σ |c_vj| / l.
    pub lost: f64,
}

/// The bound of one row of one head, up to the sums over its keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowBound {
    model: BoundModel,
    v_scale: f64,
    /// Factor of S_j in eta_j.
    pub per_magnitude: f64,
    /// The terms of eta_j that all keys of the row share.
    pub common: f64,
    /// Those of them that come from exponentials, which a sink shares.
    exponentials: f64,
    /// L·2⁻²³ + (min(B_T, L) + T + 4)·u.
    sums: f64,
}

impl RowBound {
    /// eta_j of a key with magnitude S_j and logit x_j, relative to the maximum.
    pub fn eta(&self, magnitude: f64, x: f64) -> f64 {
        eta(self.per_magnitude, self.common, magnitude, x)
    }

    /// eta of the row's sink, whose logit relative to the maximum is x.
    pub fn sink_eta(&self, sink: f64, x: f64) -> f64 {
        eta(SCALING, self.exponentials, sink.abs(), x)
    }

    /// E of one output element.
    pub fn out(&self, sums: &ElementSums) -> f64 {
        let mut rounding_p = self.model.p_unit_roundoff * sums.weighted;
        if self.model.sign_symmetric_v {
            rounding_p = rounding_p.min(8.0 * self.model.p_unit_roundoff * sums.squares.sqrt());
        }
        let terms = rounding_p + sums.spread + self.sums * sums.weighted + self.model.p_underflow * sums.lost;
        self.v_scale * terms * SECOND_ORDER
    }

    /// E_lse, from Σ w_j eta_j, over the sink as well, and the finite lse.
    pub fn lse(&self, weighted_eta: f64, lse: f64) -> f64 {
        (weighted_eta + self.sums + U * lse.abs()) * SECOND_ORDER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_meets_the_tiles_that_hold_one_of_its_keys() {
        let model = BoundModel::new(Format::Bf16, 16);
        for (visible, tiles) in [
            (0..0, 0.0),
            (7..7, 0.0),
            (0..16, 1.0),
            (0..17, 2.0),
            (15..17, 2.0),
            (32..48, 1.0),
            (40..65, 3.0),
        ] {
            assert_eq!(model.tiles(&visible), tiles, "{visible:?}");
        }
    }

    #[test]
    fn alibi_costs_what_slope_and_distance_cost() {
        let model = BoundModel::new(Format::Bf16, 16);
        let head = |slope| Head {
            index: 0,
            kv_index: 0,
            sigma: 1.0,
            v_scale: 1.0,
            softcap: None,
            slope,
            sink: None,
        };
        let common = |slope| model.row(&head(slope), 64, &(10..20), 30, 1.0).common;
        // The farthest key is 20 away: three roundings of a quarter of that.
        let more = common(Some(-0.25)) - common(None);
        assert!((more / (3.0 * U * 0.25 * 20.0) - 1.0).abs() < 1e-9, "{more}");
    }
}
