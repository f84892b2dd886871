//! Inputs and reference answers of fixed cases: what a seed means, and what the oracle says, must not drift.

use cases::case::Case;
use cases::inputs::{Inputs, Poison, StoreInputs};
use cases::problem::Op;
use cases::reference::references;
use oracle::Format;

use crate::digest;

const LINES: [&str; 10] = [
    "prefill f32 kv=f32 h4/2 d32 page16 NHD causal q=[9] kv=[21] seed=1",
    "decode bf16 kv=bf16 h8/2 d64 page16 NHD q=[1,1] kv=[40,17] seed=2",
    "mixed bf16 kv=e4m3 h6/3 d64 page5 HND unbind-inner causal win=12,- softcap=20 sinks q=[3,0,1] kv=[30,4,18] kscale=[0.5,0.25,1] vscale=2 seed=3",
    "verify f16 kv=e5m2 h4/4 d40/24 page8 NHD pad=8,0,8,16 alibi causal q=[4,4] kv=[50,4] kscale=0.125 seed=4",
    "decode f16 kv=f16 h3/1 d96 page32 NHD unbind-outer q=[1] kv=[64] data=uniform-q0 nolse seed=5",
    "prefill bf16 kv=e4m3 h8/4 d128 page16 NHD causal q=[5] kv=[33] data=head-id seed=6",
    "decode f32 kv=e4m3 h2/1 d16 page4 NHD q=[1] kv=[23] data=needle:page-end seed=7",
    "prefill f32 kv=f32 h2/2 d64 page16 NHD causal scale=0.125 q=[4] kv=[40] data=grid mag=4 shift=1000 seed=8",
    "prefill bf16 kv=bf16 h9/3 d64 page16 NHD causal q=[6] kv=[90] data=real:layer12 seed=9",
    "store bf16 kv=e4m3 h4/4 d64 page16 NHD q=[3,2] kv=[20,2] kscale=0.5 vscale=0.25 seed=10",
];

/// A number to six digits: enough to notice a change, and the same with every mathematics library.
fn number(x: f64) -> String {
    format!("{x:.5e}")
}

fn first<'a>(values: impl IntoIterator<Item = &'a f64>) -> String {
    values.into_iter().take(4).map(|x| number(*x)).collect::<Vec<_>>().join(" ")
}

/// Digests of the inputs and of the reference (rounded to f32, so that the last bits of exp do not matter), and first values.
///
/// # Panics
/// If a case of the list has no reference.
#[must_use]
pub fn references_of_fixed_cases() -> String {
    LINES.iter().map(|line| of_case(&line.parse().expect("a case of the list"))).collect()
}

fn of_case(case: &Case) -> String {
    if case.problem.op == Op::Store {
        let inputs = StoreInputs::generate(case).expect("a case of the list");
        let digests = [&inputs.before, &inputs.expected].map(|buffers| digest(&buffers.concat()));
        return format!("{case}\n  cache before {} and after {}\n", digests[0], digests[1]);
    }
    let inputs = Inputs::generate(case).expect("a case of the list");
    let q: Vec<f32> = inputs.query.iter().copied().collect();
    let caches = inputs.caches(Poison::Nan).concat();
    let table: Vec<u8> = inputs.pages.block_table().into_iter().flat_map(i32::to_le_bytes).collect();
    let mut text = format!(
        "{case}\n  q {} cache {} block table {}\n",
        digest(&Format::F32.encode_to_bytes(&q)),
        digest(&caches),
        digest(&table)
    );
    let references = references(case, &inputs, "mma").expect("a case of the list");
    for (request, reference) in references.iter().enumerate() {
        let out: Vec<f32> = reference.out.iter().map(|x| *x as f32).collect();
        text.push_str(&format!(
            "  request {request}: out {} [{}] bound [{}] lse [{}] bound [{}]\n",
            digest(&Format::F32.encode_to_bytes(&out)),
            first(&reference.out),
            first(&reference.bound),
            first(&reference.lse),
            first(&reference.lse_bound)
        ));
    }
    text
}
