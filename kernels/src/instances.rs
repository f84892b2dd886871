//! Every compiled instance that some supported call can ask for, per capability: what a gate compiles without a card.

use std::collections::BTreeSet;

use crate::arm::Arm;
use crate::mma::HEAD_DIMS;
use crate::route::{Capability, Knobs, plan_arm};
use crate::source::KernelSpec;
use crate::tensor::DType;
use crate::validate::AttentionShape;
use crate::{dense, launch, mma, scalar, store};

/// Architectures that the tensor-core kernels are compiled for in the gate, with the opt-in shared memory of a block and the
/// multiprocessors of one card of each (A100, H200, RTX 5090).
pub const GATE_CAPABILITIES: [Capability; 3] = [
    Capability { major: 8, minor: 0, max_shared_bytes: 166_912, multiprocessors: 108 },
    Capability { major: 9, minor: 0, max_shared_bytes: 232_448, multiprocessors: 132 },
    Capability { major: 12, minor: 0, max_shared_bytes: 101_376, multiprocessors: 170 },
];

impl Capability {
    /// The architecture name that compilers take, such as `sm_90`.
    #[must_use]
    pub fn arch(&self) -> String {
        format!("sm_{}{}", self.major, self.minor)
    }
}

/// Every instance, sorted.
///
/// Found by asking the route for one shape of each kind, so an instance that no call can reach is not in it and one that a
/// call can reach is.
#[must_use]
pub fn instances(capability: &Capability) -> Vec<KernelSpec> {
    let mut found = BTreeSet::new();
    for q_dtype in DType::MODEL {
        for kv_dtype in DType::CACHE {
            found.insert(store::instance(q_dtype, kv_dtype));
            for head_dim in HEAD_DIMS.into_iter().chain([72]) {
                for shape in shapes(q_dtype, kv_dtype, head_dim) {
                    found.extend(Arm::ALL.iter().flat_map(|&arm| arm_instances(arm, &shape, capability)));
                }
            }
        }
    }
    found.into_iter().collect()
}

/// Shapes that lead to different instances: up to eight, up to 16, some and many packed rows, with and without score modifiers, with rows
/// aligned for wide reads or only for narrow ones.
fn shapes(q_dtype: DType, kv_dtype: DType, head_dim: u64) -> Vec<AttentionShape> {
    let mut shapes = Vec::new();
    for (max_query_len, group) in [(1, 4), (1, 16), (1, 32), (64, 8)] {
        for alibi in [false, true] {
            for cache_alignment in [8, 16] {
                shapes.push(AttentionShape {
                    q_dtype,
                    kv_dtype,
                    total_q: max_query_len,
                    num_q_heads: group,
                    num_kv_heads: 1,
                    head_dim_k: head_dim,
                    head_dim_v: head_dim,
                    num_pages: 64,
                    page_size: 16,
                    num_requests: 1,
                    block_table_width: 64,
                    max_query_len,
                    max_seq_len: 1024,
                    causal: true,
                    windowed: false,
                    softcap: false,
                    alibi,
                    sinks: false,
                    lse: true,
                    row_alignment: 16,
                    cache_alignment,
                });
            }
        }
    }
    shapes
}

fn arm_instances(arm: Arm, shape: &AttentionShape, capability: &Capability) -> Vec<KernelSpec> {
    let Ok(route) = plan_arm(arm, shape, capability, &Knobs::default()) else { return Vec::new() };
    let dense_arm = arm.is_dense();
    let inner = if dense_arm { dense::inner_shape(shape) } else { shape.clone() };
    let mut specs = match &route.mma {
        Some(plan) => vec![mma::spec(&inner, launch::cast_of(arm), plan), mma::combine_spec(inner.q_dtype)],
        None => vec![scalar::spec(inner.q_dtype, inner.kv_dtype)],
    };
    if dense_arm {
        specs.push(dense::spec(shape));
    }
    specs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_are_named_as_compilers_name_them() {
        assert_eq!(GATE_CAPABILITIES.map(|card| card.arch()), ["sm_80", "sm_90", "sm_120"]);
    }

    #[test]
    fn every_kernel_file_has_instances_and_each_capability_its_own() {
        let hopper = instances(&GATE_CAPABILITIES[1]);
        for file in
            ["scalar.cu", "store.cu", "mma.cu", "mma_pairs.cu", "decode.cu", "combine.cu", "dequant.cu"]
        {
            assert!(hopper.iter().any(|spec| spec.file == file), "{file}");
        }
        let ampere = instances(&GATE_CAPABILITIES[0]);
        let hardware = |spec: &&KernelSpec| spec.defines.iter().any(|(name, _)| *name == "CAST_HARDWARE");
        assert!(hopper.iter().any(|spec| hardware(&spec)), "sm_90 converts fp8 in hardware");
        assert!(!ampere.iter().any(|spec| hardware(&spec)), "sm_80 does not");
    }
}
