//! Small valid cases drawn from a seed: what nobody thought of writing down.
//!
//! A seed means the same case on every machine and for ever; [`VERSION`] says if that ever has to change.

use kernels::arm::Arm;
use oracle::{CacheLayout, Format, Packing, Padding};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::case::{Case, Data, Expectation, NeedleAt, Paging};
use crate::problem::{Op, Options, Problem, Scale, Sinks};
use crate::run::STORE_ARM;
use crate::support;

/// Version of what a seed means. Seeds judged under another version count for nothing.
pub const VERSION: u32 = 1;

/// Query-key pairs times head_dim that a case may cost.
const WORK: usize = 200_000;

/// Lengths around the edges of pages, tiles and splits.
const LENS: [usize; 28] = [
    1, 2, 3, 5, 7, 8, 9, 13, 15, 16, 17, 24, 31, 32, 33, 40, 47, 48, 49, 63, 64, 65, 80, 100, 127, 128, 129,
    200,
];
const PAGE_SIZES: [usize; 10] = [1, 4, 5, 8, 16, 16, 16, 32, 48, 64];
/// Query heads per KV head.
const GROUPS: [usize; 12] = [1, 1, 2, 2, 3, 4, 4, 5, 7, 8, 12, 16];
/// Head dims that every arm serves, the common ones more often: each is a kernel of its own to compile.
const TENSOR_DIMS: [usize; 10] = [64, 64, 64, 64, 128, 128, 80, 96, 192, 256];
const OTHER_DIMS: [usize; 9] = [8, 16, 24, 32, 40, 72, 112, 160, 320];

/// A case and the arm on which it is judged.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// The case; its own seed is the generator's.
    pub case: Case,
    /// An arm that serves it.
    pub arm: String,
}

/// The case of a seed.
#[must_use]
pub fn generate(seed: u64) -> Generated {
    let mut draw = Draw::new(seed);
    let case = if draw.chance(8) { store(&mut draw, seed) } else { attention(&mut draw, seed) };
    let arm = arm_for(&case, &mut draw);
    Generated { case, arm }
}

/// A stream of choices.
struct Draw(ChaCha8Rng);

impl Draw {
    fn new(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        // Apart from the streams from which the case's own inputs are drawn.
        rng.set_stream(64);
        Self(rng)
    }

    fn below(&mut self, limit: usize) -> usize {
        ((u64::from(self.0.next_u32()) * limit as u64) >> 32) as usize
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// True in so many of a hundred.
    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

fn attention(draw: &mut Draw, seed: u64) -> Case {
    let mut problem = shape(draw, Op::Prefill);
    batch(draw, &mut problem);
    problem.options = options(draw, &problem);
    problem.wants_lse = !draw.chance(10);
    let mut case = Case {
        data: data(draw, &problem),
        magnitude: 1.0,
        logit_shift: 0.0,
        paging: draw.pick(&[
            Paging::Shuffled,
            Paging::Shuffled,
            Paging::Shuffled,
            Paging::Descending,
            Paging::Identity,
        ]),
        seed,
        defect: None,
        expectation: Expectation::Valid,
        relation: None,
        within: None,
        problem,
    };
    match case.data {
        Data::Grid => case.logit_shift = draw.pick(&[0.0, 1000.0, -1000.0, 60_000.0, -60_000.0]),
        Data::Random | Data::Outlier => case.magnitude = draw.pick(&[1.0, 1.0, 1.0, 0.01, 4.0, 30.0]),
        _ => {}
    }
    shorten(&mut case.problem);
    case
}

fn store(draw: &mut Draw, seed: u64) -> Case {
    let mut problem = shape(draw, Op::Store);
    problem.num_q_heads = problem.num_kv_heads;
    let requests = 1 + draw.below(4);
    problem.kv_lens = (0..requests).map(|_| draw.pick(&LENS)).collect();
    let lens = problem.kv_lens.clone();
    problem.query_lens = lens.iter().map(|kv| draw.below(kv.min(&20) + 1)).collect();
    problem.wants_lse = false;
    Case {
        data: if draw.chance(40) { Data::Edges } else { Data::Random },
        magnitude: draw.pick(&[1.0, 1.0, 100.0, 1e-3]),
        logit_shift: 0.0,
        paging: Paging::Shuffled,
        seed,
        defect: None,
        expectation: Expectation::Valid,
        relation: None,
        within: None,
        problem,
    }
}

/// Formats, heads, dims and layout.
fn shape(draw: &mut Draw, op: Op) -> Problem {
    let query_format = draw.pick(&[Format::F32, Format::Bf16, Format::Bf16, Format::F16]);
    // The tensor-core arms want a cache of the query's type or of fp8.
    let cache_format = match draw.below(10) {
        0..3 => Format::E4m3,
        3..5 => Format::E5m2,
        5..8 => query_format,
        _ => draw.pick(&Format::ALL),
    };
    let num_kv_heads = draw.pick(&[1, 2, 2, 3, 4]);
    let head_dim = if draw.chance(70) { draw.pick(&TENSOR_DIMS) } else { draw.pick(&OTHER_DIMS) };
    let unequal = draw.chance(5);
    let packing = if unequal { Packing::Separate } else { draw.pick(&Packing::ALL) };
    let fp8 = matches!(cache_format, Format::E4m3 | Format::E5m2);
    Problem {
        op,
        query_format,
        cache_format,
        num_q_heads: num_kv_heads * draw.pick(&GROUPS),
        num_kv_heads,
        head_dim,
        head_dim_v: if unequal { draw.pick(&OTHER_DIMS) } else { head_dim },
        page_size: draw.pick(&PAGE_SIZES),
        layout: draw.pick(&CacheLayout::ALL),
        packing,
        padding: padding(draw),
        v_padding: None,
        options: Options::default(),
        k_scale: if fp8 { scale(draw, num_kv_heads) } else { Scale::default() },
        v_scale: if fp8 { scale(draw, num_kv_heads) } else { Scale::default() },
        query_lens: Vec::new(),
        kv_lens: Vec::new(),
        wants_lse: true,
        slots: None,
    }
}

fn padding(draw: &mut Draw) -> Padding {
    match draw.below(10) {
        0 => Padding { base: 32, row: 16, plane: 0, page: 64 },
        1 => Padding { base: 16, row: 0, plane: 32, page: 16 },
        2 => Padding { base: draw.below(5), row: draw.below(4), plane: draw.below(4), page: draw.below(9) },
        _ => Padding::default(),
    }
}

fn scale(draw: &mut Draw, heads: usize) -> Scale {
    const SCALES: [f32; 7] = [1.0, 0.5, 0.25, 2.0, 0.0109, 0.3, 1.7];
    if draw.chance(25) {
        return Scale::PerHead((0..heads).map(|_| draw.pick(&SCALES)).collect());
    }
    Scale::PerTensor(draw.pick(&SCALES))
}

/// Requests and their lengths.
fn batch(draw: &mut Draw, problem: &mut Problem) {
    problem.op = draw.pick(&[Op::Prefill, Op::Prefill, Op::Decode, Op::Decode, Op::Mixed, Op::Verify]);
    let requests = if problem.op == Op::Prefill { 1 + draw.below(2) } else { 1 + draw.below(4) };
    let verify = 2 + draw.below(7);
    for _ in 0..requests {
        let kv = match draw.below(12) {
            0 => 0,
            1 => problem.page_size * (1 + draw.below(3)),
            2 => 1 + draw.below(300),
            _ => draw.pick(&LENS),
        };
        let q = match problem.op {
            Op::Decode => 1,
            Op::Verify => verify,
            Op::Mixed => draw.pick(&[0, 1, 1, 3, 8, 17]),
            Op::Prefill | Op::Store => draw.pick(&LENS).min(40),
        };
        problem.query_lens.push(q);
        // Most requests have at least as many keys as rows.
        problem.kv_lens.push(if draw.chance(90) { kv.max(q) } else { kv });
    }
}

fn options(draw: &mut Draw, problem: &Problem) -> Options {
    let window = |draw: &mut Draw, percent| -> Option<i64> {
        let long = problem.kv_lens.iter().max().copied().unwrap_or(0);
        draw.chance(percent)
            .then(|| if draw.chance(50) { draw.pick(&LENS) } else { draw.below(long + 2) } as i64)
    };
    Options {
        causal: draw.chance(60),
        window_left: window(draw, 25),
        window_right: window(draw, 12),
        softcap: draw.chance(15).then(|| draw.pick(&[2.0, 30.0, 50.0])),
        alibi: draw.chance(15),
        sinks: match draw.below(20) {
            0..3 => Sinks::Seeded,
            3 => Sinks::Constant(draw.pick(&[-200.0, 0.0, 20.0, 200.0])),
            _ => Sinks::Absent,
        },
        softmax_scale: draw.chance(15).then(|| draw.pick(&[0.125, 0.25, 0.3, 1.0])),
    }
}

fn data(draw: &mut Draw, problem: &Problem) -> Data {
    match draw.below(100) {
        0..8 => Data::UniformQ0,
        8..13 => Data::HeadId,
        13..21 => {
            let at =
                [NeedleAt::First, NeedleAt::Last, NeedleAt::PageEnd, NeedleAt::Key(draw.below(200) as u32)];
            Data::Needle(draw.pick(&at))
        }
        21..27 => Data::Outlier,
        27..35 => Data::Grid,
        35..38 => Data::Subnormal,
        // Every row must see the first key.
        38..41 if problem.options.window_left.is_none() && sees_first_key(problem) => Data::NanKey,
        _ => Data::Random,
    }
}

fn sees_first_key(problem: &Problem) -> bool {
    let mut lens = problem.query_lens.iter().zip(&problem.kv_lens);
    problem.options.window_right.is_none() && lens.all(|(q, kv)| q <= kv)
}

/// Halves the longest request until the case is small.
fn shorten(problem: &mut Problem) {
    let cost = |p: &Problem| p.pairs() * p.head_dim.max(p.head_dim_v);
    while cost(problem) > WORK {
        let request =
            (0..problem.num_requests()).max_by_key(|r| problem.query_lens[*r] * problem.kv_lens[*r]);
        let Some(request) = request else { return };
        if problem.query_lens[request] > 1 && !matches!(problem.op, Op::Decode | Op::Verify) {
            problem.query_lens[request] = problem.query_lens[request].div_ceil(2);
        } else if problem.kv_lens[request] > problem.query_lens[request].max(1) {
            problem.kv_lens[request] = problem.kv_lens[request].div_ceil(2).max(problem.query_lens[request]);
        } else {
            return;
        }
    }
}

fn arm_for(case: &Case, draw: &mut Draw) -> String {
    if case.problem.op == Op::Store {
        return STORE_ARM.to_owned();
    }
    let serving: Vec<&str> =
        Arm::ALL.iter().map(|arm| arm.name()).filter(|arm| support::gap(case, arm).is_none()).collect();
    // The scalar arm serves every case that is generated.
    if serving.is_empty() { Arm::Scalar.name().to_owned() } else { draw.pick(&serving).to_owned() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_seed_always_means_the_same_case() {
        let lines: Vec<String> = (0..3).map(|seed| generate(seed).case.to_string()).collect();
        assert_eq!(lines, (0..3).map(|seed| generate(seed).case.to_string()).collect::<Vec<_>>());
        assert_eq!(generate(u64::MAX), generate(u64::MAX));
    }

    #[test]
    fn generated_cases_are_small_valid_and_read_back() {
        for seed in 0..3000 {
            let Generated { case, arm } = generate(seed);
            let line = case.to_string();
            assert_eq!(line.parse::<Case>().as_ref(), Ok(&case), "{line}");
            // A store reads no keys: its pairs cost nothing. A verify keeps its rows, so it cannot be cut at will.
            let work = case.problem.pairs() * case.problem.head_dim.max(case.problem.head_dim_v);
            assert!(case.problem.op == Op::Store || work <= 16 * WORK, "{line}: {work}");
            assert_eq!(support::gap(&case, &arm), None, "{arm}: {line}");
        }
    }

    #[test]
    fn every_arm_option_and_generator_is_drawn() {
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        for seed in 0..3000 {
            let Generated { case, arm } = generate(seed);
            let data = case.data.to_string();
            let data = data.split(':').next().unwrap_or_default().to_owned();
            let mut words =
                vec![format!("arm {arm}"), format!("data {data}"), case.problem.op.name().to_owned()];
            words.extend(case.flags().iter().map(ToString::to_string));
            words.into_iter().for_each(|word| *seen.entry(word).or_default() += 1);
        }
        let wanted = Arm::ALL.iter().map(|arm| format!("arm {arm}")).chain(
            [
                "arm store",
                "data edges",
                "data nan-key",
                "data subnormal",
                "data grid",
                "data needle",
                "data uniform-q0",
                "data head-id",
                "data outlier",
                "window",
                "softcap",
                "alibi",
                "sinks",
                "per-head-scale",
                "unequal-dims",
                "odd-page",
                "query-past-kv",
                "empty-kv",
                "empty-query",
                "interleaved",
                "padded",
                "hnd",
                "verify",
                "mixed",
                "decode",
                "prefill",
                "mqa",
            ]
            .map(str::to_owned),
        );
        for word in wanted {
            assert!(seen.get(&word).copied().unwrap_or(0) >= 10, "{word}: {:?}", seen.get(&word));
        }
    }
}
