//! Times of a foreign kernel that has passed: medians of repeated calls on a few shapes.

use std::time::Duration;

use kernels::abi::ForeignInfo;

use super::server::CLOCK;
use super::support::adapted;
use crate::case::Case;
use crate::executor::{Buffer, DeviceSpec, Executor};
use crate::inputs::{Inputs, Poison};
use crate::job::{Variant, attention_job};
use crate::reference::FOREIGN_ARM;
use crate::run::Settings;
use crate::verdict::Verdict;

/// Timed calls of one shape, at most, after one that is not timed.
const CALLS: usize = 11;

/// Shapes, as cases that are moved to what the kernel serves.
const SHAPES: [(&str, &str); 4] = [
    ("decode, 1 request", "decode bf16 kv=bf16 h8/2 d128 page16 NHD causal q=[1] kv=[2048] nolse seed=1"),
    (
        "decode, 16 requests",
        "decode bf16 kv=bf16 h8/2 d128 page16 NHD causal q=[1x16] kv=[512x16] nolse seed=2",
    ),
    (
        "decode, fp8 cache",
        "decode bf16 kv=e4m3 h8/2 d128 page16 NHD causal q=[1x16] kv=[512x16] nolse seed=3",
    ),
    ("prefill, 128 rows", "prefill bf16 kv=bf16 h8/2 d128 page16 NHD causal q=[128] kv=[256] nolse seed=4"),
];

/// The times of one shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// What was timed.
    pub name: &'static str,
    /// The case line.
    pub line: String,
    /// Median time of a call.
    pub median: Duration,
    /// Shortest.
    pub fastest: Duration,
    /// Bytes of keys and values that a call reads at least, per second, at the median.
    pub cache_bytes_per_second: f64,
}

/// Times the kernel on every shape that it serves.
///
/// # Errors
/// The verdict on a shape whose calls do not complete.
pub fn timings(
    info: &ForeignInfo,
    executor: &mut dyn Executor,
    settings: &Settings,
) -> Result<Vec<Timing>, Verdict> {
    let mut timings: Vec<Timing> = Vec::new();
    for (name, line) in SHAPES {
        let case: Case = line.parse().expect("a shape of the list");
        let Some(case) = adapted(&case, info) else { continue };
        let line = case.to_string();
        let shape = |line: &str| line.rsplit_once(" seed=").map(|(shape, _)| shape.to_owned());
        if timings.iter().any(|timing| shape(&timing.line) == shape(&line)) {
            continue;
        }
        let mut times = times(&case, executor, settings)?;
        times.sort_unstable();
        let (Some(fastest), Some(median)) = (times.first(), times.get(times.len() / 2)) else { continue };
        let (fastest, median) = (Duration::from_nanos(*fastest), Duration::from_nanos(*median));
        timings.push(Timing {
            name,
            median,
            fastest,
            cache_bytes_per_second: cache_bytes(&case) / median.as_secs_f64().max(1e-9),
            line,
        });
    }
    Ok(timings)
}

fn times(case: &Case, executor: &mut dyn Executor, settings: &Settings) -> Result<Vec<u64>, Verdict> {
    let impossible = |error: oracle::OracleError| Verdict::Environment { message: error.to_string() };
    let inputs = Inputs::generate(case).map_err(impossible)?;
    let device = DeviceSpec { kind: settings.device, checked: false, schedule: None };
    let variant = Variant::plain(Poison::Zero);
    let mut job = attention_job(case, &inputs, FOREIGN_ARM, &device, variant).job;
    job.buffers.push(Buffer { name: CLOCK.to_owned(), bytes: vec![0; CALLS * 8], returned: true });
    let reply = crate::run::complete(&job, executor, settings)?;
    let clock = reply.buffers.last().map(Vec::as_slice).unwrap_or_default();
    let times = clock.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
    Ok(times.filter(|nanoseconds| *nanoseconds > 0).collect())
}

/// Bytes of the keys and values of the batch.
fn cache_bytes(case: &Case) -> f64 {
    let problem = &case.problem;
    let row =
        (problem.head_dim + problem.head_dim_v) * problem.num_kv_heads * problem.cache_format.size_bytes();
    problem.kv_lens.iter().map(|len| len * row).sum::<usize>() as f64
}
