//! What is timed: problem sizes, presets, and the arms with the cache that each reads.

use std::str::FromStr;

use kernels::arm::Arm;
use serde::{Deserialize, Serialize};

/// One causal attention problem over a batch of equal requests. bf16 queries; the cache is bf16 or e4m3 as the arm asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BenchProblem {
    /// Query heads.
    pub num_q_heads: u64,
    /// KV heads.
    pub num_kv_heads: u64,
    /// Elements of a head.
    pub head_dim: u64,
    /// Slots of a page.
    pub page_size: u64,
    /// Requests.
    pub batch: u64,
    /// Query rows of each request.
    pub q_len: u64,
    /// Keys of each request.
    pub kv_len: u64,
}

/// A free size on the command line is malformed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{argument} is {value}; accepted: {accepted}")]
pub struct SizeError {
    argument: &'static str,
    value: String,
    accepted: &'static str,
}

const SIZE_FORM: &str = "h<q heads>/<kv heads> d<head_dim> [page<size>] [b<batch>] q<rows> kv<keys>, for example h32/4 d256 q8192 kv8192";

impl FromStr for BenchProblem {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let wrong =
            |value: &str| SizeError { argument: "size", value: value.to_owned(), accepted: SIZE_FORM };
        let (mut heads, mut head_dim, mut page, mut batch, mut q, mut kv) = (None, None, 32, 1, None, None);
        for term in text.split_whitespace() {
            let number = |prefix: &str| term.strip_prefix(prefix)?.parse::<u64>().ok().filter(|&n| n > 0);
            if let Some((left, right)) = term.strip_prefix('h').and_then(|rest| rest.split_once('/')) {
                heads =
                    left.parse().ok().zip(right.parse().ok()).filter(|&(l, r)| r > 0 && l % r == 0 && l > 0);
                heads.ok_or_else(|| wrong(term))?;
            } else if let Some(n) = number("kv") {
                kv = Some(n);
            } else if let Some(n) = number("page") {
                page = n;
            } else if let Some(n) = number("d") {
                head_dim = Some(n);
            } else if let Some(n) = number("b") {
                batch = n;
            } else if let Some(n) = number("q") {
                q = Some(n);
            } else {
                return Err(wrong(term));
            }
        }
        let complete = heads.zip(head_dim).zip(q.zip(kv));
        let Some((((num_q_heads, num_kv_heads), head_dim), (q_len, kv_len))) = complete else {
            return Err(wrong(text));
        };
        if q_len > kv_len {
            return Err(wrong(text));
        }
        Ok(Self { num_q_heads, num_kv_heads, head_dim, page_size: page, batch, q_len, kv_len })
    }
}

impl std::fmt::Display for BenchProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { num_q_heads, num_kv_heads, head_dim, page_size, batch, q_len, kv_len } = self;
        write!(f, "h{num_q_heads}/{num_kv_heads} d{head_dim} page{page_size} b{batch} q{q_len} kv{kv_len}")
    }
}

impl BenchProblem {
    const fn of(heads: (u64, u64), head_dim: u64, batch: u64, q_len: u64, kv_len: u64) -> Self {
        Self { num_q_heads: heads.0, num_kv_heads: heads.1, head_dim, page_size: 32, batch, q_len, kv_len }
    }

    /// Whether reading the cache, not arithmetic, is what it costs.
    #[must_use]
    pub fn is_decode(&self) -> bool {
        self.q_len <= 16
    }

    /// Floating-point operations: 4 head_dim for each visible pair of query row and key, per query head.
    #[must_use]
    pub fn flop(&self) -> f64 {
        let (q, kv) = (self.q_len as f64, self.kv_len as f64);
        let pairs = q * kv - q * (q - 1.0) / 2.0;
        4.0 * self.num_q_heads as f64 * self.head_dim as f64 * pairs * self.batch as f64
    }

    /// Elements of K (or of V) that are read.
    #[must_use]
    pub fn cache_elements(&self) -> u64 {
        self.batch * self.kv_len * self.num_kv_heads * self.head_dim
    }

    /// Bytes of K and V as stored.
    #[must_use]
    pub fn cache_bytes(&self, fp8: bool) -> f64 {
        2.0 * self.cache_elements() as f64 * if fp8 { 1.0 } else { 2.0 }
    }
}

/// An arm and the cache that it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArmRun {
    /// The arm.
    pub arm: Arm,
    /// Whether the cache is e4m3; bf16 otherwise.
    pub fp8: bool,
}

impl ArmRun {
    /// Every arm with every cache that it serves.
    pub const ALL: [Self; 7] = [
        Self { arm: Arm::Mma, fp8: false },
        Self { arm: Arm::Fp8Dense, fp8: true },
        Self { arm: Arm::Fp8StagedHw, fp8: true },
        Self { arm: Arm::Fp8StagedSoft, fp8: true },
        Self { arm: Arm::Bf16Dense, fp8: false },
        Self { arm: Arm::Scalar, fp8: false },
        Self { arm: Arm::Scalar, fp8: true },
    ];

    /// Name in tables: the scalar arm is told apart by its cache.
    #[must_use]
    pub fn label(self) -> String {
        match (self.arm, self.fp8) {
            (Arm::Scalar, true) => "scalar e4m3".into(),
            (Arm::Scalar, false) => "scalar bf16".into(),
            (arm, _) => arm.to_string(),
        }
    }
}

/// A named set of problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Preset {
    /// 32/4 d256 page 32 at 8192 tokens: the benchmark that this project starts from.
    Upstream,
    /// The four prefill shapes that peers are compared on.
    Prefill,
    /// 32k tokens in chunks of 2048 over 16 layers, 24/4 d256.
    #[value(name = "prefill-32k")]
    Prefill32k,
    /// One row per request at batch 1, 16 and 64.
    Decode,
    /// Speculative verify: 9 rows per request.
    #[value(name = "verify-q9")]
    VerifyQ9,
    /// Storing new keys and values.
    Store,
    /// 256 to 131072 tokens: how cost grows.
    Sweep,
}

impl Preset {
    /// The problems of the set.
    #[must_use]
    pub fn problems(self) -> Vec<BenchProblem> {
        match self {
            Self::Upstream => vec![BenchProblem::of((32, 4), 256, 1, 8192, 8192)],
            Self::Prefill => vec![
                BenchProblem::of((32, 4), 256, 1, 8192, 8192),
                BenchProblem::of((32, 4), 256, 1, 2048, 32768),
                BenchProblem::of((32, 8), 128, 1, 8192, 8192),
                BenchProblem::of((32, 8), 128, 1, 2048, 32768),
            ],
            Self::Prefill32k => vec![BenchProblem::of((24, 4), 256, 1, 2048, 32768)],
            Self::Decode => vec![
                BenchProblem::of((32, 8), 128, 1, 1, 32768),
                BenchProblem::of((32, 8), 128, 16, 1, 8192),
                BenchProblem::of((32, 8), 128, 64, 1, 4096),
                BenchProblem::of((24, 4), 256, 64, 1, 4096),
            ],
            Self::VerifyQ9 => vec![BenchProblem::of((24, 4), 256, 16, 9, 8192)],
            Self::Store => vec![
                BenchProblem::of((32, 4), 256, 1, 8192, 8192),
                BenchProblem::of((32, 8), 128, 64, 1, 4096),
            ],
            Self::Sweep => {
                (8..=17).map(|n| BenchProblem::of((32, 4), 256, 1, (1_u64 << n).min(8192), 1 << n)).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_print_and_parse_back() {
        for preset in [Preset::Upstream, Preset::Prefill, Preset::Decode, Preset::VerifyQ9, Preset::Sweep] {
            for problem in preset.problems() {
                assert_eq!(problem.to_string().parse(), Ok(problem));
            }
        }
    }

    #[test]
    fn malformed_sizes_name_the_term() {
        for (text, term) in [
            ("h32/5 d64 q1 kv1", "h32/5"),
            ("h4/2 d64 q1 kv1 x3", "x3"),
            ("h4/2 q1 kv1", "h4/2 q1 kv1"),
            ("h4/2 d64 q9 kv8", "h4/2 d64 q9 kv8"),
        ] {
            let error = text.parse::<BenchProblem>().unwrap_err();
            assert_eq!(error.value, term);
        }
    }

    #[test]
    fn operations_count_visible_pairs_only() {
        let problem = BenchProblem::of((1, 1), 1, 1, 3, 5);
        assert!((problem.flop() - 4.0 * (3.0 + 4.0 + 5.0)).abs() < 1e-9);
    }
}
