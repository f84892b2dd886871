//! What a foreign kernel declares to serve, and cases fitted to it.

use kernels::abi::ForeignInfo;
use kernels::abi::types as abi;
use kernels::tensor::DType;
use oracle::{CacheLayout, Format, Packing};

use crate::case::{Case, Data, Expectation};
use crate::job::dtype;
use crate::problem::{Op, Problem, Scale, Sinks};
use crate::support::cache_alignment;

/// Why the kernel's description leaves this case out; `None` if it must serve it, or refuse it as invalid.
#[must_use]
pub fn gap(case: &Case, info: &ForeignInfo) -> Option<String> {
    let problem = &case.problem;
    let formats = formats_gap(problem, info);
    // What makes a call invalid may be what would make it unsupported: either refusal is right.
    if case.must_reject() {
        return formats.or_else(|| dims_gap(problem, info).filter(|_| !about_dims(case)));
    }
    formats
        .or_else(|| dims_gap(problem, info))
        .or_else(|| layout_gap(problem, info))
        .or_else(|| scales_gap(problem, info))
        .or_else(|| (problem.op != Op::Store).then(|| options_gap(problem, info)).flatten())
}

fn about_dims(case: &Case) -> bool {
    matches!(&case.expectation, Expectation::Reject { argument } if argument == "head_dim")
}

fn pairs<'a>(problem: &Problem, info: &'a ForeignInfo) -> &'a [(DType, Vec<DType>)] {
    if problem.op == Op::Store { &info.store } else { &info.attention }
}

fn formats_gap(problem: &Problem, info: &ForeignInfo) -> Option<String> {
    let (query, cache) = (problem.query_format, problem.cache_format);
    let what = if problem.op == Op::Store { "rows" } else { "queries" };
    let pairs = pairs(problem, info);
    if pairs.is_empty() {
        return Some(if problem.op == Op::Store { "no store" } else { "no attention" }.to_owned());
    }
    let Some((_, caches)) = pairs.iter().find(|(served, _)| *served == dtype(query)) else {
        return Some(format!("{} {what}", query.name()));
    };
    (!caches.contains(&dtype(cache))).then(|| format!("{} cache under {} {what}", cache.name(), query.name()))
}

fn dims_gap(problem: &Problem, info: &ForeignInfo) -> Option<String> {
    let dims = [problem.head_dim, problem.head_dim_v];
    if let Some(dim) = dims.into_iter().find(|dim| !info.serves_dim(*dim as u64)) {
        return Some(format!("head_dim {dim}"));
    }
    if dims[0] != dims[1] && !info.can(abi::CAN_UNEQUAL_DIMS) {
        return Some("K and V of different head_dim".to_owned());
    }
    if !info.page_sizes.is_empty() && !info.page_sizes.contains(&(problem.page_size as u64)) {
        return Some(format!("page size {}", problem.page_size));
    }
    let group = (problem.num_q_heads / problem.num_kv_heads.max(1)) as u64;
    let exact = problem.num_q_heads.is_multiple_of(problem.num_kv_heads.max(1));
    (exact && info.max_group > 0 && group > info.max_group && problem.op != Op::Store)
        .then(|| format!("{group} query heads per KV head"))
}

fn layout_gap(problem: &Problem, info: &ForeignInfo) -> Option<String> {
    let (bit, name) = match problem.layout {
        CacheLayout::Nhd => (abi::NHD, "NHD"),
        CacheLayout::Hnd => (abi::HND, "HND"),
    };
    let has = |bit| info.layouts & bit != 0;
    if !has(bit) {
        return Some(format!("layout {name}"));
    }
    if problem.packing != Packing::Separate && !has(abi::INTERLEAVED) {
        return Some("K and V as views of one tensor".to_owned());
    }
    if problem.is_padded() && !has(abi::PADDED) {
        return Some("padded strides".to_owned());
    }
    let aligned = cache_alignment(problem) as u64;
    // More than 16 bytes is what no case can tell apart.
    (aligned < info.cache_alignment.min(16)).then(|| format!("cache rows aligned to {aligned} bytes"))
}

fn scales_gap(problem: &Problem, info: &ForeignInfo) -> Option<String> {
    let scales = [&problem.k_scale, &problem.v_scale];
    if scales.iter().any(|scale| matches!(scale, Scale::PerHead(_))) && !info.can(abi::CAN_HEAD_SCALES) {
        return Some("scales per head".to_owned());
    }
    (scales.into_iter().any(|scale| *scale != Scale::default()) && !info.can(abi::CAN_SCALES))
        .then(|| "scales".to_owned())
}

fn options_gap(problem: &Problem, info: &ForeignInfo) -> Option<String> {
    let options = &problem.options;
    let windowed = options.window_left.is_some() || options.window_right.is_some();
    let wanted = [
        (options.causal, abi::CAN_CAUSAL, "the causal mask"),
        (!options.causal, abi::CAN_FULL, "attention without the causal mask"),
        (windowed, abi::CAN_WINDOW, "windows"),
        (options.softcap.is_some(), abi::CAN_SOFTCAP, "softcap"),
        (options.alibi, abi::CAN_ALIBI, "alibi_slopes"),
        (options.sinks != Sinks::Absent, abi::CAN_SINKS, "sinks"),
        (problem.wants_lse, abi::CAN_LSE, "lse"),
        (
            problem.query_lens.iter().any(|len| *len > 1),
            abi::CAN_PREFILL,
            "more than one query row per request",
        ),
    ];
    wanted.into_iter().find(|(asked, bit, _)| *asked && !info.can(*bit)).map(|(_, _, what)| what.to_owned())
}

/// The case moved to formats, head dims and pages that the kernel serves, so that a kernel for few of them meets every
/// option, window and batch. `None` if that does not bring it inside the kernel's support.
#[must_use]
pub fn adapted(case: &Case, info: &ForeignInfo) -> Option<Case> {
    if matches!(case.data, Data::Real { .. }) {
        return None;
    }
    let mut moved = case.clone();
    let problem = &mut moved.problem;
    if formats_gap(problem, info).is_some() {
        let all = pairs(problem, info);
        let (query, caches) = all.iter().find(|(q, _)| *q == dtype(problem.query_format)).or(all.first())?;
        let fp8 = problem.cache_format.size_bytes() == 1;
        let cache = caches.iter().find(|cache| cache.is_fp8() == fp8).or(caches.first())?;
        problem.query_format = format_of(*query)?;
        problem.cache_format = format_of(*cache)?;
    }
    if !about_dims(case) {
        fit_dims(problem, info);
    }
    if let Some(first) = info.page_sizes.first()
        && !info.page_sizes.contains(&(problem.page_size as u64))
    {
        problem.page_size = *first as usize;
    }
    problem.wants_lse &= info.can(abi::CAN_LSE);
    let plain_cache = problem.cache_format.size_bytes() > 1;
    if !case.must_reject() && (plain_cache || !info.can(abi::CAN_SCALES)) && moved.relation.is_none() {
        (problem.k_scale, problem.v_scale) = (Scale::default(), Scale::default());
    }
    gap(&moved, info).is_none().then_some(moved)
}

fn fit_dims(problem: &mut Problem, info: &ForeignInfo) {
    let served = |dim: usize| {
        let nearest =
            (1..=1024_u64).filter(|dim| info.serves_dim(*dim)).min_by_key(|near| near.abs_diff(dim as u64));
        nearest.map_or(dim, |near| near as usize)
    };
    problem.head_dim = served(problem.head_dim);
    problem.head_dim_v = served(problem.head_dim_v);
    if !info.can(abi::CAN_UNEQUAL_DIMS) {
        problem.head_dim_v = problem.head_dim;
    }
}

fn format_of(dtype: DType) -> Option<Format> {
    Format::ALL.into_iter().find(|format| crate::job::dtype(*format) == dtype)
}
