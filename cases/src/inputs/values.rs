//! The generators of q, K and V.
//!
//! Only integer arithmetic and correctly rounded operations are used, so a seed means the same values everywhere.

use ndarray::{Array3, ArrayViewMut1, Axis};
use oracle::Format;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;

use super::{PageMap, Stream, recorded, rng};
use crate::case::{Case, Data, NeedleAt};
use crate::problem::Problem;

/// What generated K and V values stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Units {
    /// Values to be stored: codes are `encode(x / scale)`.
    Stored,
    /// Decoded codes, whatever the scale: probes need exact integers in the cache.
    Codes,
}

/// Generated values before rounding and encoding.
pub(super) struct RequestValues {
    pub query: Array3<f32>,
    pub keys: Vec<Array3<f32>>,
    pub values: Vec<Array3<f32>>,
    pub key_units: Units,
    pub value_units: Units,
    /// q and K are small integers (times a power of two).
    pub integers: bool,
}

impl RequestValues {
    pub fn generate(case: &Case, pages: &PageMap) -> Self {
        let plain = Self {
            query: filled(query_dims(&case.problem), case, Stream::Query, |r| normal(r) * case.magnitude),
            keys: per_request(case, Stream::Keys, normal),
            values: per_request(case, Stream::Values, normal),
            key_units: Units::Stored,
            value_units: Units::Stored,
            integers: false,
        };
        match case.data {
            // New rows of a store are made elsewhere.
            Data::Random | Data::Edges => plain,
            Data::Outlier => plain.with_outliers(),
            Data::Lopsided => plain.lopsided(case),
            Data::NanKey => plain.with_nan(),
            Data::Subnormal => plain.subnormal(case),
            Data::Grid => Self::grid(case),
            Data::UniformQ0 => plain.uniform_q0(case),
            Data::HeadId => plain.head_id(case),
            Data::Needle(at) => Self::needle(case, at, pages),
            Data::Real { layer } => Self::real(case, layer),
        }
    }

    /// A few channels of K are fifteen times the others, as rotary embeddings leave them in real models.
    fn with_outliers(mut self) -> Self {
        for keys in &mut self.keys {
            for ((_, _, dim), k) in keys.indexed_iter_mut() {
                if dim % 16 == 5 {
                    *k *= 15.0;
                }
            }
        }
        self
    }

    /// Some rows and heads keep their own first dim: those of a block need not agree. The dims that decide are the even
    /// ones of every other request and the odd ones of the rest, for a kernel that looks at pairs.
    fn lopsided(mut self, case: &Case) -> Self {
        let huge = if case.problem.query_format == Format::F16 { 2.0_f32.powi(15) } else { 2.0_f32.powi(60) };
        let lens = case.problem.query_lens.iter().enumerate();
        let request: Vec<usize> =
            lens.flat_map(|(request, len)| std::iter::repeat_n(request, *len)).collect();
        for ((row, head, dim), q) in self.query.indexed_iter_mut() {
            if dim % 2 != request[row] % 2 {
                *q = 0.0;
            }
            if dim == 0 && (row + head) % 3 != 2 {
                *q = huge;
            }
        }
        self.keys.iter_mut().for_each(|keys| keys.index_axis_mut(Axis(2), 0).fill(0.0));
        self
    }

    /// NaN in the first key, which a row sees whatever it sees else.
    fn with_nan(mut self) -> Self {
        for (keys, values) in self.keys.iter_mut().zip(&mut self.values).filter(|(keys, _)| !keys.is_empty())
        {
            let last_head = keys.dim().1 - 1;
            if last_head > 0 {
                keys[[0, last_head, 0]] = f32::NAN;
            }
            let dim = values.dim().2.min(4) - 1;
            values[[0, 0, dim]] = f32::NAN;
        }
        self
    }

    /// V of whole multiples of the format's smallest code, up to the largest subnormal one.
    fn subnormal(mut self, case: &Case) -> Self {
        let (smallest, most) = match case.problem.cache_format {
            Format::E5m2 => (-16, 3),
            _ => (-9, 7),
        };
        let step = 2.0_f32.powi(smallest);
        self.values =
            per_request(case, Stream::Values, |r| (below(r, 2 * most + 1) as f32 - most as f32) * step);
        self.value_units = Units::Codes;
        self
    }

    /// q in {−2 … 2}·magnitude, K in {−2 … 2}; dimension 0 carries the logit shift.
    fn grid(case: &Case) -> Self {
        let small = |r: &mut ChaCha8Rng| below(r, 5) as f32 - 2.0;
        let problem = &case.problem;
        let mut query = filled(query_dims(problem), case, Stream::Query, |r| small(r) * case.magnitude);
        let mut keys = per_request(case, Stream::Keys, small);
        if case.logit_shift != 0.0 {
            let group = problem.num_q_heads / problem.num_kv_heads.max(1);
            for (index, mut head) in query.axis_iter_mut(Axis(1)).enumerate() {
                let k_scale = problem.k_scale.of_head(index / group.max(1));
                let (q, _) = shift_factors(case.logit_shift / (problem.softmax_scale() * k_scale));
                // With a small k_scale the shift asks for more than an f16 query holds; then it is as large as can be. An
                // infinite query has no answer: all scores of a row are −inf, which is NaN by definition and zero in practice.
                let largest = problem.query_format.max_finite() as f32;
                head.index_axis_mut(Axis(1), 0).fill(q.clamp(-largest, largest));
            }
            let (_, k) = shift_factors(f32::MAX);
            keys.iter_mut().for_each(|keys| keys.index_axis_mut(Axis(2), 0).fill(k));
        }
        // What counts is what the device reads: a rounded shift is another whole number.
        let power = case.magnitude.to_bits() & 0x007f_ffff == 0;
        let unit = if power { f64::from(case.magnitude).min(1.0) } else { 1.0 };
        let exact = query.iter().all(|q| (problem.query_format.round(f64::from(*q)) / unit).fract() == 0.0);
        let values = per_request(case, Stream::Values, normal);
        Self { query, keys, values, key_units: Units::Codes, value_units: Units::Stored, integers: exact }
    }

    fn uniform_q0(mut self, case: &Case) -> Self {
        self.query.fill(0.0);
        let limit = if case.problem.cache_format == Format::E5m2 { 8 } else { 16 };
        self.values = per_request(case, Stream::Values, |r| below(r, 2 * limit + 1) as f32 - limit as f32);
        self.value_units = Units::Codes;
        self.integers = true;
        self
    }

    fn head_id(mut self, case: &Case) -> Self {
        for values in &mut self.values {
            for (head, mut plane) in values.axis_iter_mut(Axis(1)).enumerate() {
                plane.fill(head_value(case.problem.cache_format, head));
            }
        }
        self.value_units = Units::Codes;
        self
    }

    /// All keys are −2 in every dimension and the needle +2, so every logit but the needle's underflows.
    fn needle(case: &Case, at: NeedleAt, pages: &PageMap) -> Self {
        let problem = &case.problem;
        let mut query = Array3::zeros(query_dims(problem));
        let group = (problem.num_q_heads / problem.num_kv_heads.max(1)).max(1);
        for (head, mut plane) in query.axis_iter_mut(Axis(1)).enumerate() {
            plane.fill(needle_query(problem, head / group));
        }
        let mut keys = per_request(case, Stream::Keys, |_| -2.0);
        let mut values = per_request(case, Stream::Values, |_| 0.0);
        for request in 0..problem.num_requests() {
            let kv_len = problem.kv_lens[request];
            if kv_len == 0 {
                continue;
            }
            keys[request].index_axis_mut(Axis(0), needle_position(at, kv_len, problem.page_size)).fill(2.0);
            for position in 0..kv_len {
                let (page, slot) = pages.locate(request, position);
                for head in 0..problem.num_kv_heads {
                    let row = values[request].index_axis_mut(Axis(0), position);
                    address(row.index_axis_move(Axis(0), head), page, slot, head);
                }
            }
        }
        Self { query, keys, values, key_units: Units::Codes, value_units: Units::Codes, integers: true }
    }

    fn real(case: &Case, layer: u32) -> Self {
        let recorded = recorded::layer(layer).expect("the parser admits recorded layers only");
        let problem = &case.problem;
        let rows = problem.query_lens.iter().zip(&problem.kv_lens);
        let slices: Vec<_> = rows.map(|(q, kv)| recorded.q.slice(ndarray::s![kv - q..*kv, .., ..])).collect();
        let query = ndarray::concatenate(Axis(0), &slices).expect("slices of one array fit each other");
        let firsts = |all: &Array3<f32>| -> Vec<Array3<f32>> {
            problem.kv_lens.iter().map(|kv| all.slice(ndarray::s![..*kv, .., ..]).to_owned()).collect()
        };
        let (keys, values) = (firsts(&recorded.k), firsts(&recorded.v));
        let query = query * case.magnitude;
        Self { query, keys, values, key_units: Units::Stored, value_units: Units::Stored, integers: false }
    }
}

/// The value that stands for KV head `head` in a head-id probe: the `head`-th integer that the format can hold.
#[must_use]
pub fn head_value(format: Format, head: usize) -> f32 {
    let exact = (0_u32..).map(|n| n as f32).filter(|n| format.decode(format.encode(*n)) == *n);
    exact.take(head + 1).last().expect("the sequence has a first element")
}

/// Position of the needle among `kv_len` keys.
pub(crate) fn needle_position(at: NeedleAt, kv_len: usize, page_size: usize) -> usize {
    match at {
        NeedleAt::First => 0,
        NeedleAt::Last => kv_len - 1,
        NeedleAt::PageEnd => (page_size.max(1) - 1).min(kv_len - 1),
        NeedleAt::Key(key) => (key as usize).min(kv_len - 1),
    }
}

/// A power of two large enough that needle and other keys are at least 256 apart as logits.
fn needle_query(problem: &Problem, kv_head: usize) -> f32 {
    let sigma = problem.softmax_scale() * problem.k_scale.of_head(kv_head);
    let per_unit = sigma * problem.head_dim as f32 * 4.0;
    let mut query = 1.0 / 1024.0;
    while query * per_unit < 256.0 && query < 8192.0 {
        query *= 2.0;
    }
    query
}

/// Writes page, slot and head as octal digits, which every format holds exactly, over and over along the row.
fn address(mut row: ArrayViewMut1<'_, f32>, page: usize, slot: usize, head: usize) {
    for (dim, value) in row.iter_mut().enumerate() {
        *value = needle_value([page, slot, head], dim);
    }
}

/// Octal digits of page (3), slot (3) and head (2), least first.
pub(crate) const NEEDLE_DIGITS: usize = 8;

/// What V of a needle probe holds at a dim: a digit of page, slot or head, plus the number of the group of eight dims, modulo
/// 8, so that a row read from other dims shows as well.
pub(crate) fn needle_value([page, slot, head]: [usize; 3], dim: usize) -> f32 {
    let digits = [page, page >> 3, page >> 6, slot, slot >> 3, slot >> 6, head, head >> 3];
    ((digits[dim % NEEDLE_DIGITS] + dim / NEEDLE_DIGITS) & 7) as f32
}

/// Page, slot and head that a whole row of digits spells; `None` unless all of them agree.
pub(crate) fn needle_address(row: &[f32]) -> Option<[usize; 3]> {
    let mut digits = [None; NEEDLE_DIGITS];
    for (dim, value) in row.iter().enumerate() {
        let whole = value.round();
        if (value - whole).abs() > 0.05 || !(0.0..=7.0).contains(&whole) {
            return None;
        }
        let digit = (whole as usize + 8 - dim / NEEDLE_DIGITS % 8) & 7;
        let slot = &mut digits[dim % NEEDLE_DIGITS];
        if slot.is_some_and(|before| before != digit) {
            return None;
        }
        *slot = Some(digit);
    }
    let number = |range: std::ops::Range<usize>| {
        range.rev().try_fold(0, |n, index| Some(n * 8 + digits.get(index).copied().flatten()?))
    };
    Some([number(0..3)?, number(3..6)?, number(6..8)?])
}

/// q and k of the reserved dimension, with q·k near `product`: k is 256, q a whole number.
fn shift_factors(product: f32) -> (f32, f32) {
    ((product / 256.0).round(), 256.0)
}

fn query_dims(problem: &Problem) -> (usize, usize, usize) {
    (problem.query_lens.iter().sum(), problem.num_q_heads, problem.head_dim)
}

fn per_request(
    case: &Case,
    stream: Stream,
    mut next: impl FnMut(&mut ChaCha8Rng) -> f32,
) -> Vec<Array3<f32>> {
    let problem = &case.problem;
    let dim = if matches!(stream, Stream::Values) { problem.head_dim_v } else { problem.head_dim };
    let mut rng = rng(case, stream);
    let one = |kv_len: &usize| {
        Array3::from_shape_simple_fn((*kv_len, problem.num_kv_heads, dim), || next(&mut rng))
    };
    problem.kv_lens.iter().map(one).collect()
}

fn filled(
    dims: (usize, usize, usize),
    case: &Case,
    stream: Stream,
    mut next: impl FnMut(&mut ChaCha8Rng) -> f32,
) -> Array3<f32> {
    let mut rng = rng(case, stream);
    Array3::from_shape_simple_fn(dims, || next(&mut rng))
}

/// Nearly normal with unit variance: the sum of four uniform 16-bit numbers, which is exact.
pub(super) fn normal(rng: &mut impl Rng) -> f32 {
    const SQRT_3: f32 = 1.732_050_8;
    let bits = rng.next_u64();
    let sum: u64 = (0..4).map(|i| (bits >> (16 * i)) & 0xffff).sum();
    (sum as f32 - 131_070.0) / 65_536.0 * SQRT_3
}

/// Uniform in [−1, 1).
pub(super) fn uniform(rng: &mut impl Rng) -> f32 {
    (rng.next_u32() >> 8) as f32 / 8_388_608.0 - 1.0
}

/// Uniform in `0..limit`, by multiplication; the bias is below 2^-32 times the limit.
pub(super) fn below(rng: &mut impl Rng, limit: usize) -> usize {
    ((u64::from(rng.next_u32()) * limit as u64) >> 32) as usize
}
