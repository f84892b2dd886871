//! The route table: which arm serves a call on which card, and how it is launched.

use kernels::arm::Arm;
use kernels::instances::{GATE_CAPABILITIES, instances};
use kernels::mma::MmaKernel;
use kernels::route::{Capability, Knobs, Route, plan_arm, route};
use kernels::tensor::DType;
use kernels::validate::AttentionShape;

/// Kinds of batches: name, requests, query rows of each, keys of each.
const BATCHES: [(&str, u64, u64, u64); 6] = [
    ("decode 1x512", 1, 1, 512),
    ("decode 1x32768", 1, 1, 32_768),
    ("decode 64x2048", 64, 1, 2_048),
    ("verify 8x4x2048", 8, 4, 2_048),
    ("prefill 1x512", 1, 512, 512),
    ("prefill 4x2048x8192", 4, 2_048, 8_192),
];

/// Query and cache types that some arm serves.
const TYPES: [(DType, DType); 9] = [
    (DType::F32, DType::F32),
    (DType::F32, DType::E4m3),
    (DType::Bf16, DType::Bf16),
    (DType::Bf16, DType::F32),
    (DType::Bf16, DType::E4m3),
    (DType::Bf16, DType::E5m2),
    (DType::F16, DType::F16),
    (DType::F16, DType::E4m3),
    (DType::F16, DType::E5m2),
];

const HEAD_DIMS: [u64; 5] = [64, 72, 96, 128, 256];

fn shape(
    types: (DType, DType),
    batch: (&str, u64, u64, u64),
    head_dim: u64,
    heads: (u64, u64),
) -> AttentionShape {
    let (_, num_requests, max_query_len, max_seq_len) = batch;
    AttentionShape {
        q_dtype: types.0,
        kv_dtype: types.1,
        total_q: num_requests * max_query_len,
        num_q_heads: heads.0,
        num_kv_heads: heads.1,
        head_dim_k: head_dim,
        head_dim_v: head_dim,
        num_pages: num_requests * max_seq_len.div_ceil(16) + 1,
        page_size: 16,
        num_requests,
        block_table_width: max_seq_len.div_ceil(16),
        max_query_len,
        max_seq_len,
        causal: true,
        windowed: false,
        softcap: false,
        alibi: false,
        sinks: false,
        lse: true,
        row_alignment: 16,
        cache_alignment: 16,
    }
}

/// The knobs of a batch: a verify batch says that its queries are all of one length.
fn knobs(batch: (&str, u64, u64, u64)) -> Knobs {
    let uniform = batch.0.starts_with("verify").then_some(batch.2);
    Knobs { uniform_query_len: uniform, ..Knobs::default() }
}

fn plan(route: &Route) -> String {
    let mut text = format!("{}", route.arm);
    if let Some(mma) = &route.mma {
        let tiles = match mma.kernel {
            MmaKernel::Prefill(g) => {
                format!(
                    "prefill warps {} rows {} keys {} shared {}",
                    g.warps,
                    g.rows(),
                    g.key_tile,
                    g.shared_bytes
                )
            }
            MmaKernel::Verify(g) => {
                format!(
                    "verify warps {} rows {} keys {} shared {}",
                    g.warps,
                    g.rows(),
                    g.key_tile,
                    g.shared_bytes
                )
            }
            MmaKernel::Decode(g) => {
                format!("decode warps {} stages {} shared {}", g.warps, g.stages, g.shared_bytes)
            }
        };
        text.push_str(&format!(", {tiles}, row tiles {}, splits {}", mma.row_tiles, mma.splits));
    }
    if route.dense_bytes > 0 {
        text.push_str(&format!(", dense {}", route.dense_bytes));
    }
    if let Some(fallback) = &route.fallback {
        text.push_str(&format!(" [{fallback}]"));
    }
    text
}

/// The arm that the route chooses, for every kind of batch, pair of types, head dim and card.
#[must_use]
pub fn routes() -> String {
    let mut lines = Vec::new();
    for capability in &GATE_CAPABILITIES {
        for types in TYPES {
            for head_dim in HEAD_DIMS {
                for batch in BATCHES {
                    let route = route(&shape(types, batch, head_dim, (32, 8)), capability, &knobs(batch));
                    let arch = capability.arch();
                    lines.push(format!(
                        "{arch} {} {} d{head_dim} {}: {}",
                        types.0,
                        types.1,
                        batch.0,
                        plan(&route)
                    ));
                }
            }
        }
    }
    lines.join("\n")
}

/// What knobs, head counts and options change, on one card.
#[must_use]
pub fn variations() -> String {
    let card = GATE_CAPABILITIES[1];
    let fp8 = (DType::Bf16, DType::E4m3);
    let (decode, verify, prefill) = (BATCHES[1], BATCHES[3], BATCHES[5]);
    let mut lines = Vec::new();
    let mut add = |what: &str, shape: &AttentionShape, capability: &Capability, knobs: &Knobs| {
        lines.push(format!("{what}: {}", plan(&route(shape, capability, knobs))));
    };
    let default = Knobs::default();
    let base = |batch| shape(fp8, batch, 128, (32, 8));
    add("fp8 prefill", &base(prefill), &card, &default);
    add("fp8_dense off", &base(prefill), &card, &Knobs { fp8_dense: false, ..default });
    add("scratch budget 1 MiB", &base(prefill), &card, &Knobs { scratch_budget_bytes: 1 << 20, ..default });
    add("splits fixed at 3", &base(decode), &card, &Knobs { splits: Some(3), ..default });
    add("at most 4 splits", &base(decode), &card, &Knobs { max_splits: 4, ..default });
    add("verify announced", &base(verify), &card, &knobs(verify));
    add("verify not announced", &base(verify), &card, &default);
    add("verify as prefill", &base(verify), &card, &Knobs { verify_as_decode: false, ..knobs(verify) });
    for heads in [(32, 32), (32, 1), (71, 1), (8, 1), (5, 5)] {
        let what = format!("decode h{}/{}", heads.0, heads.1);
        add(&what, &shape(fp8, decode, 128, heads), &card, &default);
    }
    for alignment in [8, 4, 2] {
        let narrow = AttentionShape { cache_alignment: alignment, ..base(prefill) };
        add(&format!("cache rows aligned to {alignment}"), &narrow, &card, &default);
        let narrow = AttentionShape { row_alignment: alignment, ..base(prefill) };
        add(&format!("query rows aligned to {alignment}"), &narrow, &card, &default);
    }
    add("head_dim 192/128", &AttentionShape { head_dim_k: 192, ..base(prefill) }, &card, &default);
    let options = AttentionShape { softcap: true, alibi: true, sinks: true, windowed: true, ..base(decode) };
    add("every option", &options, &card, &default);
    for (major, minor, shared) in [(7, 5, 65_536), (8, 6, 101_376), (8, 9, 101_376), (9, 0, 20_000)] {
        let other = Capability { major, minor, max_shared_bytes: shared, multiprocessors: 84 };
        add(&format!("sm_{major}{minor} with {shared} bytes, decode"), &base(decode), &other, &default);
        add(&format!("sm_{major}{minor} with {shared} bytes, prefill"), &base(prefill), &other, &default);
    }
    lines.join("\n")
}

/// Every arm asked for by name: its plan or what it lacks.
#[must_use]
pub fn arms() -> String {
    let mut lines = Vec::new();
    for arm in Arm::ALL {
        for types in TYPES {
            for (batch, head_dim) in
                [(BATCHES[0], 128), (BATCHES[4], 128), (BATCHES[4], 72), (BATCHES[4], 111)]
            {
                let planned = plan_arm(
                    *arm,
                    &shape(types, batch, head_dim, (32, 8)),
                    &GATE_CAPABILITIES[1],
                    &knobs(batch),
                );
                let planned =
                    planned.map_or_else(|unsupported| unsupported.to_string(), |route| plan(&route));
                lines.push(format!("{arm} {} {} d{head_dim} {}: {planned}", types.0, types.1, batch.0));
            }
        }
    }
    lines.join("\n")
}

/// Every compiled instance that a card can ask for.
#[must_use]
pub fn every_instance() -> String {
    let mut lines = Vec::new();
    for capability in &GATE_CAPABILITIES {
        let all = instances(capability);
        lines.push(format!("{}: {} instances", capability.arch(), all.len()));
        lines.extend(all.iter().map(|spec| format!("  {}", spec.label())));
    }
    lines.join("\n")
}
