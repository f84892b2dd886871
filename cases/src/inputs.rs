//! From a case to the exact bytes that a device reads, and the decoded values that the reference reads.

mod pages;
mod poison;
mod rearranged;
pub mod recorded;
mod store;
mod values;

pub use pages::PageMap;
pub use poison::Poison;
pub use rearranged::{Arrangement, Part};
pub use store::StoreInputs;
pub use values::head_value;
pub(crate) use values::{needle_address, needle_position, needle_value};

use ndarray::Array3;
use oracle::{CacheViews, Format, OracleError, PagedView, store_code};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::case::Case;
use crate::problem::{Problem, Scale, Sinks};
use values::{RequestValues, Units};

/// Which random stream a part of the inputs draws from: parts do not disturb each other.
#[derive(Clone, Copy)]
enum Stream {
    Query = 1,
    Keys = 2,
    Values = 3,
    Pages = 4,
    Sinks = 5,
    Slots = 6,
    Background = 7,
}

fn rng(case: &Case, stream: Stream) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(case.seed);
    rng.set_stream(stream as u64);
    rng
}

/// The inputs of one attention case. Everything a verdict needs is computed from these values, never from what a
/// device returns.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// `[total_q, num_q_heads, head_dim]`, rounded to the query format.
    pub query: Array3<f32>,
    /// Decoded, unscaled K of each request: `[kv_len, num_kv_heads, head_dim]`.
    pub keys: Vec<Array3<f32>>,
    /// Decoded, unscaled V of each request: `[kv_len, num_kv_heads, head_dim_v]`.
    pub values: Vec<Array3<f32>>,
    /// Where each request's pages lie.
    pub pages: PageMap,
    /// Views of K and V and the size of their buffers.
    pub views: CacheViews,
    /// Sink logit of each query head.
    pub sinks: Option<Vec<f32>>,
    /// ALiBi slope of each query head.
    pub alibi_slopes: Option<Vec<f32>>,
    /// Whether q·k is exact in f32: integers of limited size and a power-of-two scale.
    pub exact_products: bool,
    key_codes: Vec<Vec<u8>>,
    value_codes: Vec<Vec<u8>>,
    cache_format: Format,
    shares_buffer: bool,
    /// First query row of each request.
    query_starts: Vec<usize>,
    /// Keys at the start of each request that lie in pages which the window of every row has passed.
    passed: Vec<usize>,
}

impl Inputs {
    /// Makes the inputs of a case.
    ///
    /// # Errors
    /// If the cache of the case cannot be laid out (an unbind packing with unequal dims, a zero extent).
    pub fn generate(case: &Case) -> Result<Self, OracleError> {
        let problem = &case.problem;
        let pages = PageMap::place(case, &mut rng(case, Stream::Pages));
        let views = problem.cache_views(pages.num_pages)?;
        let raw = RequestValues::generate(case, &pages);
        let exact_products = raw.integers && is_power_of_two(problem);
        let query = raw.query.mapv(|x| problem.query_format.round(f64::from(x)) as f32);
        let encode = |values: &[Array3<f32>], scale: &Scale, units| -> Vec<Vec<u8>> {
            values.iter().map(|v| codes(v, problem.cache_format, scale, units)).collect()
        };
        let key_codes = encode(&raw.keys, &problem.k_scale, raw.key_units);
        let value_codes = encode(&raw.values, &problem.v_scale, raw.value_units);
        let decode = |codes: &[Vec<u8>], like: &[Array3<f32>]| -> Vec<Array3<f32>> {
            let decoded = codes.iter().map(|bytes| problem.cache_format.decode_bytes(bytes));
            decoded
                .zip(like)
                .map(|(v, l)| Array3::from_shape_vec(l.raw_dim(), v).expect("one code per value"))
                .collect()
        };
        Ok(Self {
            query,
            keys: decode(&key_codes, &raw.keys),
            values: decode(&value_codes, &raw.values),
            pages,
            views,
            sinks: sinks(case),
            alibi_slopes: problem.alibi_slopes(),
            exact_products,
            key_codes,
            value_codes,
            cache_format: problem.cache_format,
            shares_buffer: problem.packing != oracle::Packing::Separate,
            query_starts: starts(problem.query_lens.iter().copied()),
            passed: passed(problem),
        })
    }

    /// The cache buffers, with every byte that no request owns set to `poison`: one buffer where K and V share a
    /// tensor, else K's and V's. A page that the windows of all rows have passed is owned no more: engines give it to others.
    #[must_use]
    pub fn caches(&self, poison: Poison) -> Vec<Vec<u8>> {
        let mut buffers = vec![poison.fill(self.cache_format, self.views.k_elements)];
        self.write(&mut buffers[0], &self.views.k, &self.key_codes);
        if self.shares_buffer {
            self.write(&mut buffers[0], &self.views.v, &self.value_codes);
        } else {
            let mut buffer = poison.fill(self.cache_format, self.views.v_elements);
            self.write(&mut buffer, &self.views.v, &self.value_codes);
            buffers.push(buffer);
        }
        buffers
    }

    fn write(&self, buffer: &mut [u8], view: &PagedView, codes: &[Vec<u8>]) {
        let row = view.dim * self.cache_format.size_bytes();
        for (request, codes) in codes.iter().enumerate() {
            for (index, source) in codes.chunks_exact(row).enumerate() {
                let (position, head) = (index / view.heads, index % view.heads);
                if position < self.passed[request] {
                    continue;
                }
                let (page, slot) = self.pages.locate(request, position);
                let start = view.index(page, slot, head, 0) * self.cache_format.size_bytes();
                buffer[start..start + row].copy_from_slice(source);
            }
        }
    }
}

/// First query row of each request.
fn starts(lens: impl Iterator<Item = usize>) -> Vec<usize> {
    lens.scan(0, |next, len| Some(std::mem::replace(next, *next + len))).collect()
}

/// Keys of each request in pages that no row's window reaches any more.
fn passed(problem: &Problem) -> Vec<usize> {
    let Some(left) = problem.options.window_left else { return vec![0; problem.num_requests()] };
    let lens = problem.query_lens.iter().zip(&problem.kv_lens);
    let keys = lens.map(|(q_len, kv_len)| {
        // The first row's window reaches furthest back. Without a row nothing has been passed.
        let first_row = *kv_len as i64 - *q_len as i64;
        let edge = first_row.saturating_sub(left).clamp(0, *kv_len as i64) as usize;
        if *q_len == 0 { 0 } else { edge / problem.page_size.max(1) * problem.page_size.max(1) }
    });
    keys.collect()
}

/// Codes of one request's K or V, `[kv_len, num_kv_heads, dim]`, as bytes.
fn codes(values: &Array3<f32>, format: Format, scale: &Scale, units: Units) -> Vec<u8> {
    let size = format.size_bytes();
    let mut bytes = Vec::with_capacity(values.len() * size);
    for ((_, head, _), x) in values.indexed_iter() {
        let code = match units {
            Units::Stored => store_code(format, *x, scale.of_head(head)),
            Units::Codes => format.encode(*x),
        };
        bytes.extend_from_slice(&code.to_le_bytes()[..size]);
    }
    bytes
}

fn is_power_of_two(problem: &Problem) -> bool {
    let power = |x: f32| x.is_normal() && x.to_bits() & 0x007f_ffff == 0;
    power(problem.softmax_scale()) && problem.k_scale.values().into_iter().all(power)
}

fn sinks(case: &Case) -> Option<Vec<f32>> {
    let heads = case.problem.num_q_heads;
    match case.problem.options.sinks {
        Sinks::Absent => None,
        Sinks::Constant(logit) => Some(vec![logit; heads]),
        Sinks::Seeded => {
            let mut rng = rng(case, Stream::Sinks);
            Some((0..heads).map(|_| 1.0 + 3.0 * values::uniform(&mut rng)).collect())
        }
    }
}
