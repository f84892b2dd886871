//! A case in words.

use crate::case::{Case, Data, Flag, NeedleAt, Paging};
use crate::problem::{Op, Scale, Sinks};

/// The shape of the call.
pub(super) fn request(case: &Case) -> Vec<String> {
    let p = &case.problem;
    let mut lines = vec![summary(case)];
    if p.op != Op::Store {
        let group = p.num_q_heads / p.num_kv_heads.max(1);
        let heads = match group {
            1 => format!("{} heads, each with a KV head of its own", p.num_q_heads),
            n => format!(
                "{} query heads over {}: {n} query heads share a KV head",
                p.num_q_heads, p.num_kv_heads
            ),
        };
        lines.push(heads);
    }
    let dims = match (p.head_dim, p.head_dim_v) {
        (k, v) if k == v => format!("head_dim {k}"),
        (k, v) => format!("head_dim {k} for keys, {v} for values"),
    };
    lines.push(format!("{dims}; {} slots of a page, {}, {}", p.page_size, p.layout, p.packing));
    let k_padding = Some(p.padding).filter(|padding| *padding != oracle::Padding::default());
    let whose = if p.v_padding.is_some() { "K: " } else { "" };
    for (whose, padding) in [(whose, k_padding), ("V: ", p.v_padding)] {
        let Some(pad) = padding else { continue };
        lines.push(format!(
            "{whose}{} elements before the first, {} after each row, {} after each slot or head, {} after each page",
            pad.base, pad.row, pad.plane, pad.page
        ));
    }
    lines.extend(options(case));
    lines
}

fn summary(case: &Case) -> String {
    let p = &case.problem;
    if p.op == Op::Store {
        let skipped = p.slots.iter().flatten().filter(|slot| **slot < 0).count();
        let skipped = if p.slots.is_some() { format!(", {skipped} of them skipped") } else { String::new() };
        let (rows, from, to) = (p.total_query_rows(), p.query_format, p.cache_format);
        return format!("{rows} rows to store{skipped}, {from} into a cache of {to}");
    }
    let what = match p.op {
        Op::Prefill => "attention with long queries",
        Op::Decode => "attention with one row per request",
        Op::Mixed => "attention over a mixed batch",
        Op::Verify => "attention with the same few rows in every request",
        Op::Store => unreachable!("returned above"),
    };
    let requests = match p.num_requests() {
        1 => "1 request".to_owned(),
        n => format!("{n} requests"),
    };
    format!("{what}: {requests}, {} query over a cache of {}", p.query_format, p.cache_format)
}

fn options(case: &Case) -> Vec<String> {
    let p = &case.problem;
    let mut lines = Vec::new();
    if let Some(cap) = p.options.softcap {
        lines.push(format!("scores s become {cap}·tanh(s/{cap})"));
    }
    if p.options.alibi {
        lines.push("ALiBi: 2^(−8(h+1)/num_q_heads)·(key − position) is added to the scores".to_owned());
    }
    match p.options.sinks {
        Sinks::Absent => {}
        Sinks::Seeded => lines.push("a sink of its own for each query head, −2 to 4".to_owned()),
        Sinks::Constant(sink) => lines.push(format!("a sink of {sink} for every query head")),
    }
    for (name, scale) in [("k_scale", &p.k_scale), ("v_scale", &p.v_scale)] {
        match scale {
            Scale::PerTensor(one) if *one == 1.0 => {}
            Scale::PerTensor(one) => lines.push(format!("{name} {one} for the tensor")),
            Scale::PerHead(all) => lines.push(format!("{name} for each KV head: {all:?}")),
        }
    }
    if p.op != Op::Store {
        lines.push(format!("softmax scale {}", p.softmax_scale()));
    }
    lines
}

/// What the case is there for, one line for each of its flags.
pub(super) fn exercises(case: &Case) -> Vec<String> {
    case.flags().into_iter().map(|flag| format!("{flag}: {}", meaning(flag))).collect()
}

fn meaning(flag: Flag) -> &'static str {
    match flag {
        Flag::Varlen => "requests of different lengths in one batch",
        Flag::EmptyQuery => "a request with no query row, which must be passed over",
        Flag::EmptyKv => "a request with no key: nothing to attend to",
        Flag::QueryPastKv => "more query rows than keys: the first rows stand before key 0",
        Flag::Causal => "keys after a row's own position are hidden",
        Flag::Window => "keys too far from a row's position are hidden",
        Flag::Softcap => "scores are capped",
        Flag::Alibi => "scores depend on the distance",
        Flag::Sinks => "a logit that counts in the denominator only",
        Flag::Gqa => "query heads that share KV heads",
        Flag::Mqa => "one KV head for all query heads",
        Flag::UnequalDims => "keys and values of different head_dim",
        Flag::Fp8 => "an 8-bit cache, decoded on the way",
        Flag::Scaled => "codes that stand for themselves times a scale",
        Flag::PerHeadScale => "a scale for each KV head",
        Flag::Hnd => "slots of a head next to each other",
        Flag::Interleaved => "K and V as views of one tensor",
        Flag::Padded => "strides longer than the rows, or a base offset",
        Flag::VPadded => "V with other strides than K",
        Flag::OddPage => "a page size that no shift can divide by",
        Flag::PageSpanning => "requests of more than one page",
        Flag::Probe => "data whose answer is known exactly",
        Flag::Real => "activations recorded from a model",
        Flag::IdentityPaging => "pages in order",
        Flag::Store => "the kernel that writes the cache",
        Flag::Invalid => "a call that must be refused",
    }
}

/// How q, K and V are made, and where the pages lie.
pub(super) fn data(case: &Case) -> Vec<String> {
    let what = match case.data {
        Data::Random => "normal q, K and V, independent of each other",
        Data::Grid => "small integers in q and K: products and sums are exact in f32",
        Data::UniformQ0 => {
            "q is 0 and V holds integers: all visible keys weigh the same, so one lost key shows"
        }
        Data::HeadId => "V is constant per KV head: the output names the head that was read",
        Data::Needle(NeedleAt::First) => "the first key outweighs all others; V spells page, slot and head",
        Data::Needle(NeedleAt::Last) => "the last key outweighs all others; V spells page, slot and head",
        Data::Needle(NeedleAt::PageEnd) => {
            "the last slot of the first page outweighs all others; V spells page, slot and head"
        }
        Data::Needle(NeedleAt::Key(_)) => "one key outweighs all others; V spells page, slot and head",
        Data::Outlier => "normal, with a few channels of K fifteen times larger",
        Data::Lopsided => "normal, with one huge dim of q where K is zero: the others must survive beside it",
        Data::NanKey => "normal, with NaN in the first key of every request: it must reach the output",
        Data::Subnormal => "normal q and K; V holds subnormal codes only",
        Data::Edges => {
            "values at the edges of the format: ties, the largest and beyond, subnormals, NaN, infinity"
        }
        Data::Real { .. } => "q, K and V of a layer of a real model",
    };
    let mut lines = vec![format!("{what} (data={}, seed {})", case.data, case.seed)];
    if case.magnitude != 1.0 {
        lines.push(format!("q is multiplied by {}", case.magnitude));
    }
    if case.logit_shift != 0.0 {
        lines.push(format!("every logit is shifted by about {}", case.logit_shift));
    }
    if let Some(limit) = case.within {
        lines.push(format!("no element of out may be off by more than {limit:e}, whatever the bound grants"));
    }
    lines.push(
        match case.paging {
            Paging::Shuffled => "pages in a random order that is never 0, 1, 2, …; page 0 belongs to nobody",
            Paging::Identity => "page i of the batch is page i of the pool",
            Paging::Descending => "the pool's last pages, in descending order",
        }
        .to_owned(),
    );
    lines
}
