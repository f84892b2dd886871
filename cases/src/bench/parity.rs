//! The proof that comes before and after a time: sampled rows against the oracle, everything against the first arm.

use kernels::device::{DeviceRef, StreamId};
use kernels::launch::paged_attention;
use ndarray::{Array3, s};
use oracle::{AttentionOptions, BoundModel, Format, Reference, Request, Rows, attend, compare};

use super::data::Data;
use super::{ArmRun, BenchError};

/// Rows compared with the oracle, per request.
const SAMPLED_ROWS: usize = 12;
/// Requests compared with the oracle.
const SAMPLED_REQUESTS: usize = 3;
/// The shortest key tile of any arm, as the bound counts tiles.
const KEY_TILE: usize = 16;

/// An arm's output is wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ParityError {
    /// Against the oracle.
    #[error("request {request}: {detail}")]
    Oracle {
        /// Request of the batch.
        request: usize,
        /// The worst element.
        detail: String,
    },
    /// Against another arm.
    #[error("differs from {other} by {difference:.1e} at element {element}, allowed {allowed:.1e}")]
    Arms {
        /// The other arm.
        other: String,
        /// Largest difference.
        difference: f64,
        /// Its element of the output.
        element: usize,
        /// What two correct arms may differ by.
        allowed: f64,
    },
    /// An element was not written, or is no number.
    #[error("element {element} of the output is not a number")]
    NotANumber {
        /// The first such element.
        element: usize,
    },
}

struct Sample {
    request: usize,
    reference: Reference,
    /// The same with the bound of an arm that keeps P in f32.
    exact: Reference,
}

/// References of sampled rows, and the output of the first arm that agreed with them.
pub(super) struct Parity {
    samples: Vec<Sample>,
    first: Option<(String, Vec<f32>)>,
}

impl Parity {
    pub(super) fn new(data: &Data) -> Result<Self, BenchError> {
        let p = &data.problem;
        let requests = p.batch as usize;
        let mut chosen: Vec<usize> =
            (0..SAMPLED_REQUESTS.min(requests)).map(|i| i * (requests - 1) / 2).collect();
        chosen.dedup();
        let samples = chosen.into_iter().map(|request| sample(data, request)).collect::<Result<_, _>>()?;
        Ok(Self { samples, first: None })
    }

    /// Runs an arm once into an output full of NaN and compares. `Ok(Ok)` holds the worst share of the bound.
    pub(super) fn check(
        &mut self,
        device: &DeviceRef,
        data: &Data,
        run: ArmRun,
    ) -> Result<Result<f64, ParityError>, BenchError> {
        device.memset(data.out(), 0xff, data.out_bytes() as u64, StreamId::DEFAULT)?;
        paged_attention(device, StreamId::DEFAULT, run.arm, &data.args(run, 0))?;
        let mut bytes = vec![0; data.out_bytes()];
        device.copy_to_host(&mut bytes, data.out(), StreamId::DEFAULT)?;
        let out = Format::Bf16.decode_bytes(&bytes);
        if let Some(element) = out.iter().position(|x| !x.is_finite()) {
            return Ok(Err(ParityError::NotANumber { element }));
        }
        let mut worst = 0.0_f64;
        for sample in &self.samples {
            match against_oracle(data, sample, &out, run)? {
                Ok(share) => worst = worst.max(share),
                Err(error) => return Ok(Err(error)),
            }
        }
        let Some((other, want)) = &self.first else {
            self.first = Some((run.label(), out));
            return Ok(Ok(worst));
        };
        Ok(self.against_first(other, want, &out).map(|()| worst))
    }

    /// Two correct arms each lie within the bound of the truth. The sampled rows show how large that bound gets.
    fn against_first(&self, other: &str, want: &[f32], got: &[f32]) -> Result<(), ParityError> {
        let bounds = self.samples.iter().flat_map(|s| s.reference.bound.iter().zip(s.reference.out.iter()));
        let allowed = 4.0 * bounds.map(|(bound, out)| bound + out.abs() / 256.0).fold(0.0, f64::max);
        let differences = want.iter().zip(got).map(|(a, b)| f64::from((a - b).abs())).enumerate();
        let (element, difference) =
            differences.fold((0, 0.0), |worst, next| if next.1 > worst.1 { next } else { worst });
        if difference > allowed {
            return Err(ParityError::Arms { other: other.to_owned(), difference, element, allowed });
        }
        Ok(())
    }
}

/// First and last rows and tile edges, then rows spread over the request.
fn sampled_rows(q_len: usize) -> Vec<usize> {
    let edges =
        [0, 1, 15, 16, 63, 64, q_len / 2, q_len.saturating_sub(65), q_len.saturating_sub(2), q_len - 1];
    let spread = (0..SAMPLED_ROWS).map(|i| (i * 7919 + 101) % q_len);
    let mut rows: Vec<usize> = edges.into_iter().filter(|&r| r < q_len).chain(spread).collect();
    rows.sort_unstable();
    rows.dedup();
    rows
}

fn sample(data: &Data, request: usize) -> Result<Sample, BenchError> {
    let p = &data.problem;
    let (q_len, kv_len) = (p.q_len as usize, p.kv_len as usize);
    let (hq, hk, dim, page) =
        (p.num_q_heads as usize, p.num_kv_heads as usize, p.head_dim as usize, p.page_size as usize);
    let columns = data.pages.len() / p.batch as usize;
    let gather = |codes: &[u8]| {
        Array3::from_shape_fn((kv_len, hk, dim), |(key, head, d)| {
            let physical = data.pages[request * columns + key / page] as usize;
            Format::E4m3.decode(u32::from(codes[((physical * page + key % page) * hk + head) * dim + d]))
        })
    };
    let first = request * q_len * hq * dim * 2;
    let q = Format::Bf16.decode_bytes(&data.host_q[first..first + q_len * hq * dim * 2]);
    let q = Array3::from_shape_vec((q_len, hq, dim), q).expect("the slice has this many elements");
    let (k, v) = (gather(&data.host_k), gather(&data.host_v));
    let options = AttentionOptions::causal(f64::from(1.0 / (dim as f32).sqrt()));
    let rows = sampled_rows(q_len);
    let attend = |format| {
        let request = Request { q: q.view(), k: k.view(), v: v.view() };
        attend(&request, &options, &BoundModel::new(format, KEY_TILE), Rows::Sample(&rows))
    };
    Ok(Sample { request, reference: attend(Format::Bf16)?, exact: attend(Format::F32)? })
}

fn against_oracle(
    data: &Data,
    sample: &Sample,
    out: &[f32],
    run: ArmRun,
) -> Result<Result<f64, ParityError>, BenchError> {
    let p = &data.problem;
    let (q_len, hq, dim) = (p.q_len as usize, p.num_q_heads as usize, p.head_dim as usize);
    let reference = if run.arm == kernels::arm::Arm::Scalar { &sample.exact } else { &sample.reference };
    let mut got = Array3::zeros((reference.rows.len(), hq, dim));
    for (i, row) in reference.rows.iter().enumerate() {
        let first = (sample.request * q_len + row) * hq * dim;
        let values =
            ndarray::ArrayView2::from_shape((hq, dim), &out[first..first + hq * dim]).expect("one row");
        got.slice_mut(s![i, .., ..]).assign(&values);
    }
    let comparison = compare(got.view(), reference, Format::Bf16)?;
    let verdict = if comparison.passes() {
        Ok(comparison.worst_share)
    } else {
        let detail = comparison.worst.map_or_else(String::new, |worst| worst.to_string());
        Err(ParityError::Oracle { request: sample.request, detail })
    };
    Ok(verdict)
}

// The bound of `scalar` is that of P in f32; a test holds this to the table that verdicts use.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::p_format;

    #[test]
    fn rows_are_distinct_and_exist() {
        for q_len in [1, 2, 9, 64, 8192] {
            let rows = sampled_rows(q_len);
            assert!(
                rows.windows(2).all(|w| w[0] < w[1]) && *rows.last().unwrap() == q_len - 1 && rows[0] == 0
            );
        }
    }

    #[test]
    fn only_the_scalar_arm_keeps_p_in_f32() {
        let case: crate::case::Case =
            "decode bf16 kv=bf16 h8/2 d64 page16 NHD q=[1] kv=[40] seed=7".parse().unwrap();
        for run in ArmRun::ALL.iter().filter(|run| !run.fp8) {
            let exact = p_format(run.arm.name(), &case.problem) == Format::F32;
            assert_eq!(exact, run.arm == kernels::arm::Arm::Scalar, "{}", run.label());
        }
    }
}
