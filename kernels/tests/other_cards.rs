//! Blocks that other cards choose. What fits the shared memory of an H200 does not fit every card, and smaller blocks, shorter
//! key tiles and copies that do not divide evenly among threads are instances that the rest of the suite never runs.

#[path = "support/attention.rs"]
mod attention;
mod support;

use attention::{Batch, Problem};
use kernels::arm::Arm;
use kernels::instances::GATE_CAPABILITIES;
use kernels::launch::paged_attention;
use kernels::route::{Capability, Knobs, plan_arm};
use kernels::tensor::DType;
use kernels::validate::validate_attention;
use rstest::rstest;
use support::{STREAM, device_as};

const AMPERE: Capability = GATE_CAPABILITIES[0];
const HOPPER: Capability = GATE_CAPABILITIES[1];
const BLACKWELL: Capability = GATE_CAPABILITIES[2];

#[rstest]
fn long_queries_through_the_blocks_of_smaller_cards(
    #[values(AMPERE, BLACKWELL)] card: Capability,
    #[values(112, 128, 192, 256)] head_dim: usize,
    #[values(Arm::Mma, Arm::Fp8Dense)] arm: Arm,
) {
    let device = device_as(|options| {
        options.capability = (card.major, card.minor);
        options.max_shared_bytes = card.max_shared_bytes;
        options.multiprocessors = card.multiprocessors;
    });
    let kv = if arm == Arm::Mma { DType::Bf16 } else { DType::E4m3 };
    // 80 packed rows: more than a short query has. Three key tiles of 64, the last one not full.
    let problem = Problem::new(DType::Bf16, kv, (2, 1), head_dim).lens(&[40], &[150]);
    let batch = Batch::new(&device, problem, head_dim as u64);
    let shape = validate_attention(&batch.args).unwrap();
    let block = |card| plan_arm(arm, &shape, card, &Knobs::default()).unwrap().mma.unwrap();
    assert_ne!(block(&card), block(&HOPPER), "the card has blocks of its own");
    paged_attention(&device, STREAM, arm, &batch.args).unwrap();
    // Weights are rounded to bf16, 2^-9 each, and values are below 4.
    batch.check_within(&device, 4.0 * 2_f64.powi(-9));
}
