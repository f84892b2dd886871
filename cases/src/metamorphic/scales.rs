//! Relations about numbers: constants added to logits, powers of two moved from one scale to another.

use oracle::Reference;

use super::{Setting, Step, pointless};
use crate::case::Case;
use crate::inputs::Inputs;
use crate::judge::{AttentionOutput, differences};
use crate::problem::Scale;
use crate::reference::references;
use crate::verdict::Failure;

/// The power of two that is moved: 2^2.
const FACTOR: f32 = 4.0;
/// A shift so small that it rounds to none: the reserved dim is there, and its query is 0.
const NO_SHIFT: f32 = 1e-30;

impl Setting<'_, '_> {
    /// The answer with the case's shift against that without: equal within both bounds, lse apart by the shift.
    pub fn shift(&mut self) -> Step<Vec<Failure>> {
        if self.case.logit_shift == 0.0 {
            return Ok(pointless("its logits are not shifted"));
        }
        let case = Case { logit_shift: NO_SHIFT, ..self.case.clone() };
        let inputs = Inputs::generate(&case).map_err(super::impossible)?;
        let plain = (self.attend)(&case, &inputs, None)?;
        let others = references(&case, &inputs, self.arm).map_err(super::impossible)?;
        let mut apart = Apart::default();
        let mut first = 0;
        for (shifted, plain_reference) in self.references.iter().zip(&others) {
            apart.compare(self.case, (first, shifted, &self.base), (plain_reference, &plain));
            first += shifted.rows.len();
        }
        Ok(apart.failure(self.case.logit_shift))
    }

    pub fn k_scale(&mut self) -> Step<Vec<Failure>> {
        let mut case = self.case.clone();
        case.problem.options.softmax_scale = Some(self.case.problem.softmax_scale() / FACTOR);
        case.problem.k_scale = times(&self.case.problem.k_scale);
        let output = (self.attend)(&case, self.inputs, None)?;
        let on = "a factor of 4 moved from the softmax scale to k_scale";
        Ok(differences(&self.case.problem, on, &self.base, &output))
    }

    pub fn v_scale(&mut self) -> Step<Vec<Failure>> {
        let mut case = self.case.clone();
        case.problem.v_scale = times(&self.case.problem.v_scale);
        let output = (self.attend)(&case, self.inputs, None)?;
        let format = self.case.problem.query_format;
        let scaled: Vec<f32> = format.decode_bytes(&self.base.out).into_iter().map(|x| x * FACTOR).collect();
        let expected = AttentionOutput { out: format.encode_to_bytes(&scaled), lse: self.base.lse.clone() };
        Ok(differences(
            &self.case.problem,
            "a factor of 4 on v_scale, beyond that factor",
            &expected,
            &output,
        ))
    }
}

fn times(scale: &Scale) -> Scale {
    match scale {
        Scale::PerTensor(scale) => Scale::PerTensor(scale * FACTOR),
        Scale::PerHead(scales) => Scale::PerHead(scales.iter().map(|scale| scale * FACTOR).collect()),
    }
}

/// Elements of two answers that are further apart than both bounds together allow.
#[derive(Default)]
struct Apart {
    wrong: usize,
    of: usize,
    first: Option<String>,
}

impl Apart {
    fn compare(
        &mut self,
        case: &Case,
        (first, shifted, a): (usize, &Reference, &AttentionOutput),
        (plain, b): (&Reference, &AttentionOutput),
    ) {
        let problem = &case.problem;
        let (heads, dim, format) = (problem.num_q_heads, problem.head_dim_v, problem.query_format);
        let decoded = [a, b].map(|output| format.decode_bytes(&output.out));
        let lse = [a, b].map(|output| {
            output.lse.as_ref().map(|lse| oracle::Format::F32.decode_bytes(lse)).unwrap_or_default()
        });
        for ((index, head, d), want) in shifted.out.indexed_iter() {
            let row = (first + shifted.rows[index]) * heads + head;
            let [x, y] = [0, 1].map(|run| f64::from(decoded[run][row * dim + d]));
            // Each may be off by its bound and by the rounding to the output format.
            let rounding = 2.0 * format.unit_roundoff() * want.abs();
            let allowed = shifted.bound[[index, head, d]] + plain.bound[[index, head, d]] + rounding;
            self.count((x - y).abs() <= allowed, || format!("row {row}, dim {d}: {x} with it, {y} without"));
        }
        for ((index, head), bound) in shifted.lse_bound.indexed_iter().filter(|_| !lse[0].is_empty()) {
            let row = (first + shifted.rows[index]) * heads + head;
            let [x, y] = [0, 1].map(|run| f64::from(lse[run][row]));
            let moved = shifted.lse[[index, head]] - plain.lse[[index, head]];
            let off = (x - y - moved).abs();
            let rounding = f64::from(f32::EPSILON) * x.abs().max(y.abs());
            let fine = x == y || off <= bound + plain.lse_bound[[index, head]] + rounding;
            self.count(fine, || format!("lse of row {row}: {x} with it, {y} without"));
        }
    }

    fn count(&mut self, fine: bool, place: impl FnOnce() -> String) {
        self.of += 1;
        if !fine {
            self.wrong += 1;
            self.first.get_or_insert_with(place);
        }
    }

    fn failure(self, shift: f32) -> Vec<Failure> {
        let Self { wrong, of, first } = self;
        let message =
            first.map(|first| format!("a constant of {shift} on all logits changes the answer: {first}"));
        message.map(|message| Failure::Probe { message, wrong, of }).into_iter().collect()
    }
}
