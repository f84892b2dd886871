//! `attest bench`.

use std::path::PathBuf;

use clap::Args;
use kernels::device::{DeviceKind, DeviceRef};

use super::Failure;
use crate::bench::{self, ArmRun, BenchError, BenchProblem, BenchReport, Preset, lock::CardLock};
use crate::devices;
use crate::executor::DeviceSpec;

pub(super) const EXAMPLES: &str = "\
Examples:
  attest bench upstream
  attest bench decode --json now.json --compare golden/bench/h200.json
  attest bench 'h32/8 d128 q2048 kv32768' 'h24/4 d256 b64 q1 kv4096'
  attest bench sweep --plot sweep.svg";

/// Times arms that have just been proved right.
#[derive(Debug, Args)]
pub(super) struct Bench {
    /// A preset (upstream, prefill, prefill-32k, decode, verify-q9, store, sweep) or sizes such as
    /// `h32/4 d256 q8192 kv8192`; several may be given.
    #[arg(value_name = "PRESET|SIZES", default_value = "upstream")]
    what: Vec<String>,
    /// Only this arm, as the table names it (`mma`, `scalar e4m3` …); may be repeated.
    #[arg(long, value_name = "ARM")]
    arm: Vec<String>,
    /// Write the results.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Compare with an earlier --json file: slower by more than the threshold is exit code 1.
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// Change that counts in --compare.
    #[arg(long, value_name = "SHARE", default_value_t = 0.05)]
    threshold: f64,
    /// Draw time against length.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Do not wait for other benches on this card.
    #[arg(long)]
    no_lock: bool,
}

enum Task {
    Attention(BenchProblem),
    Store(BenchProblem),
    Prefill32k,
}

fn tasks(what: &str) -> Result<Vec<Task>, Failure> {
    use clap::ValueEnum;
    match Preset::from_str(what, false) {
        Ok(Preset::Prefill32k) => Ok(vec![Task::Prefill32k]),
        Ok(Preset::Store) => Ok(Preset::Store.problems().into_iter().map(Task::Store).collect()),
        Ok(preset) => Ok(preset.problems().into_iter().map(Task::Attention).collect()),
        Err(_) => {
            let problem =
                what.parse().map_err(|error: bench::problem::SizeError| Failure::usage(error.to_string()))?;
            Ok(vec![Task::Attention(problem)])
        }
    }
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Self {
        Self::surroundings(error.to_string())
    }
}

impl Bench {
    pub fn run(self) -> Result<u8, Failure> {
        let tasks = self.what.iter().map(|what| tasks(what)).collect::<Result<Vec<_>, _>>()?;
        let arms = self.arms()?;
        let spec = DeviceSpec { kind: DeviceKind::Cuda, checked: false, schedule: None };
        let device = match devices::open(&spec) {
            Ok(device) => device,
            Err(error) => return without_a_card(&error.to_string()),
        };
        let _lock = self.lock(&device)?;
        let mut report = BenchReport {
            device: device.info(),
            ceilings: bench::ceilings(&device)?,
            problems: Vec::new(),
            prefill: Vec::new(),
        };
        for task in tasks.into_iter().flatten() {
            match task {
                Task::Attention(problem) => {
                    eprintln!("{problem}");
                    report.problems.push(bench::run_problem(&device, &problem, &arms)?);
                }
                Task::Store(problem) => report.problems.push(bench::run_store(&device, &problem)?),
                Task::Prefill32k => report.prefill = bench::prefill_32k(&device)?,
            }
        }
        print!("{}", report.table());
        self.finish(&report)
    }

    fn arms(&self) -> Result<Vec<ArmRun>, Failure> {
        if self.arm.is_empty() {
            return Ok(ArmRun::ALL.to_vec());
        }
        let labels: Vec<String> = ArmRun::ALL.iter().map(|run| run.label()).collect();
        let find = |name: &String| {
            ArmRun::ALL
                .into_iter()
                .find(|run| run.label() == *name)
                .ok_or_else(|| Failure::usage(format!("arm is {name}; accepted: {}", labels.join(", "))))
        };
        self.arm.iter().map(find).collect()
    }

    fn lock(&self, device: &DeviceRef) -> Result<Option<CardLock>, Failure> {
        if self.no_lock {
            return Ok(None);
        }
        let lock =
            CardLock::acquire(&device.info().name, || eprintln!("waiting for another bench on this card"));
        lock.map(Some)
            .map_err(|error| Failure::surroundings(format!("the bench lock cannot be taken: {error}")))
    }

    fn finish(&self, report: &BenchReport) -> Result<u8, Failure> {
        if let Some(path) = &self.json {
            let text = serde_json::to_string_pretty(report).map_err(std::io::Error::other)?;
            std::fs::write(path, text + "\n")?;
        }
        if let Some(path) = &self.plot {
            let svg = bench::plot::svg(report)
                .ok_or_else(|| Failure::surroundings("nothing to plot: no arm has a time"))?;
            std::fs::write(path, svg)?;
        }
        let mut code = u8::from(report.has_mismatch());
        if let Some(path) = &self.compare {
            let text = std::fs::read_to_string(path)
                .map_err(|error| Failure::usage(format!("--compare {}: {error}", path.display())))?;
            let then: BenchReport = serde_json::from_str(&text)
                .map_err(|error| Failure::usage(format!("--compare {}: {error}", path.display())))?;
            let (slower, faster) = bench::compare::changes(&then, report, self.threshold);
            for (word, changes) in [("slower", &slower), ("faster", &faster)] {
                for change in changes {
                    println!(
                        "{word}: {}: {:.4} ms, was {:.4} ({:.2}x)",
                        change.what,
                        change.ms.1,
                        change.ms.0,
                        change.ratio()
                    );
                }
            }
            code |= u8::from(!slower.is_empty());
        }
        Ok(code)
    }
}

/// With no card only the reference can be timed; kernel times are not made up.
fn without_a_card(why: &str) -> Result<u8, Failure> {
    eprintln!("{why}");
    println!("kernel times need a card: none were taken");
    println!("reference (f64, causal, bound included), on this machine:");
    for (heads, dim, tokens) in [((8, 2), 128, 512), ((32, 4), 256, 256)] {
        let (seconds, flop) = reference_time(heads, dim, tokens)?;
        println!(
            "  h{}/{} d{dim} T {tokens}: {:.1} ms, {:.1} GFLOP/s",
            heads.0,
            heads.1,
            seconds * 1e3,
            flop / seconds / 1e9
        );
    }
    Ok(0)
}

fn reference_time(heads: (usize, usize), dim: usize, tokens: usize) -> Result<(f64, f64), Failure> {
    use oracle::{AttentionOptions, BoundModel, Format, Request, Rows, attend};
    let value = |(i, h, d): (usize, usize, usize)| ((i * 31 + h * 17 + d * 7) % 97) as f32 / 48.0 - 1.0;
    let q = ndarray::Array3::from_shape_fn((tokens, heads.0, dim), value);
    let kv = ndarray::Array3::from_shape_fn((tokens, heads.1, dim), value);
    let request = Request { q: q.view(), k: kv.view(), v: kv.view() };
    let options = AttentionOptions::causal(1.0 / (dim as f64).sqrt());
    let start = std::time::Instant::now();
    attend(&request, &options, &BoundModel::new(Format::Bf16, 64), Rows::All)
        .map_err(|error| Failure::surroundings(error.to_string()))?;
    let pairs = tokens as f64 * (tokens as f64 + 1.0) / 2.0;
    Ok((start.elapsed().as_secs_f64(), 4.0 * heads.0 as f64 * dim as f64 * pairs))
}
