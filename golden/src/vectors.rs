//! The committed vectors: small cases as safetensors files, for anyone who wants to judge a kernel of another project.

use std::path::PathBuf;

/// File name and case line of every committed vector.
pub const VECTORS: [(&str, &str); 6] = [
    ("decode-bf16", "decode bf16 kv=bf16 h4/2 d64 page16 NHD causal q=[1,1] kv=[33,5] seed=101"),
    (
        "decode-fp8",
        "decode bf16 kv=e4m3 h4/1 d64 page16 NHD causal q=[1] kv=[40] kscale=0.25 vscale=0.5 seed=102",
    ),
    ("prefill-causal", "prefill f16 kv=f16 h2/2 d32 page8 HND causal q=[9] kv=[20] seed=103"),
    (
        "mixed-options",
        "mixed bf16 kv=e5m2 h4/2 d16/24 page4 NHD pad=3,0,0,5 causal win=6,- softcap=20 alibi sinks q=[3,0,1] kv=[9,4,6] kscale=[0.5,0.25] seed=104",
    ),
    ("interleaved", "prefill f32 kv=f32 h2/1 d16 page4 NHD unbind-inner win=3,1 q=[4,6] kv=[6,2] seed=105"),
    ("needle", "decode f32 kv=e4m3 h2/2 d16 page4 NHD q=[1] kv=[23] data=needle:page-end seed=106"),
];

/// Where they are kept.
#[must_use]
pub fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("vectors").join(format!("{name}.safetensors"))
}
