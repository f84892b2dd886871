//! The last pages of a pool of more than 2^31 elements: the address space is reserved, not filled.

use cases::case::Case;
use cases::executor::device_side::Devices;
use cases::executor::protocol::{AttentionCall, ScaleSpec};
use cases::executor::{DeviceSpec, Job, Operation, TensorSpec};
use cases::inputs::{Inputs, Poison};
use cases::job::{AttentionJob, Variant, attention_job};
use kernels::args::{AttentionArgs, BatchMetadata, PagedCache, Scale};
use kernels::arm::Arm;
use kernels::device::{DeviceKind, DeviceRef, StreamId};
use kernels::launch::paged_attention_with;
use kernels::route::Knobs;
use kernels::tensor::{Allocation, DeviceTensor};
use rstest::rstest;

const STREAM: StreamId = StreamId::DEFAULT;

/// A job's tensors on a device, with the cache's pages at the end of a pool that is larger by `pages_before` pages.
struct Placed<'a> {
    device: &'a DeviceRef,
    job: &'a Job,
    pages_before: u64,
    /// The bound of the lengths that the launch code is told.
    max_seq_len: u64,
}

impl Placed<'_> {
    fn upload(&self, bytes: &[u8], total: u64, at: u64) -> Allocation {
        let ptr = self.device.alloc(total, STREAM).expect("address space");
        self.device.copy_to_device(ptr.offset(at), bytes, STREAM).expect("a copy");
        Allocation { ptr, bytes: total }
    }

    fn tensor(&self, spec: &TensorSpec) -> DeviceTensor {
        let bytes = &self.job.buffers[spec.buffer].bytes;
        let allocation = self.upload(bytes, bytes.len() as u64, 0);
        DeviceTensor::strided(allocation, spec.offset, spec.dtype, &spec.shape, &spec.strides)
    }

    /// A cache tensor, moved up by `pages_before` pages.
    fn cache(&self, spec: &TensorSpec) -> DeviceTensor {
        let bytes = &self.job.buffers[spec.buffer].bytes;
        let before = self.pages_before * spec.strides[0].unsigned_abs() * spec.dtype.size_bytes();
        let allocation = self.upload(bytes, before + bytes.len() as u64, before);
        let mut shape = spec.shape.clone();
        shape[0] += self.pages_before;
        DeviceTensor::strided(allocation, spec.offset, spec.dtype, &shape, &spec.strides)
    }

    fn block_table(&self, spec: &TensorSpec) -> DeviceTensor {
        let bytes = &self.job.buffers[spec.buffer].bytes;
        let entries = bytes.as_chunks::<4>().0.iter().map(|word| i32::from_le_bytes(*word));
        let before = i32::try_from(self.pages_before).expect("fewer than 2^31 pages");
        let moved: Vec<u8> = entries.flat_map(|page| page.saturating_add(before).to_le_bytes()).collect();
        let allocation = self.upload(&moved, moved.len() as u64, 0);
        DeviceTensor::strided(allocation, spec.offset, spec.dtype, &spec.shape, &spec.strides)
    }

    fn args(&self, call: &AttentionCall) -> AttentionArgs {
        let scale = |scale: &ScaleSpec| match scale {
            ScaleSpec::PerTensor(scale) => Scale::PerTensor(scale.0),
            ScaleSpec::PerHead(spec) => Scale::PerHead(self.tensor(spec)),
        };
        let cache = PagedCache {
            k: self.cache(&call.cache.k),
            v: self.cache(&call.cache.v),
            k_scale: scale(&call.cache.k_scale),
            v_scale: scale(&call.cache.v_scale),
        };
        let metadata = BatchMetadata {
            block_table: self.block_table(&call.block_table),
            seq_lens: self.tensor(&call.seq_lens),
            query_start_loc: self.tensor(&call.query_start_loc),
            max_query_len: call.max_query_len,
            max_seq_len: self.max_seq_len.max(call.max_seq_len),
        };
        AttentionArgs {
            softmax_scale: call.softmax_scale.0,
            causal: call.causal,
            ..AttentionArgs::causal(self.tensor(&call.q), cache, self.tensor(&call.out), metadata)
        }
    }

    /// Runs the call; returns the bytes of `out`.
    fn run(&self, arm: Arm) -> Vec<u8> {
        let Operation::Attention { call, .. } = &self.job.operation else { panic!("not attention") };
        let args = self.args(call);
        // Whoever has the memory may raise the budget of dense scratch; here it is address space only.
        let knobs = Knobs { splits: call.splits, scratch_budget_bytes: u64::MAX, ..Knobs::default() };
        paged_attention_with(self.device, STREAM, Some(arm), &args, &knobs, None).expect("a launch");
        let mut out = vec![0; args.out.allocation.bytes as usize];
        self.device.copy_to_host(&mut out, args.out.allocation.ptr, STREAM).expect("a clean stream");
        out
    }
}

#[rstest]
#[case::scalar("scalar", "mixed f32 kv=f32 h4/2 d16 page8 NHD causal q=[3,1] kv=[20,9] seed=1")]
#[case::scalar_fp8("scalar", "decode bf16 kv=e4m3 h4/2 d64 page16 HND causal q=[1,1] kv=[40,17] seed=2")]
#[case::tensor_cores("mma", "mixed bf16 kv=bf16 h4/2 d64 page16 NHD causal q=[5,1] kv=[40,17] seed=3")]
#[case::dequantised("fp8-dense", "mixed bf16 kv=e4m3 h4/2 d64 page16 NHD causal q=[5,1] kv=[40,17] seed=4")]
#[case::decode("mma", "decode bf16 kv=bf16 h4/2 d64 page16 NHD q=[1,1] kv=[40,17] seed=5")]
#[case::decode_row_by_row("mma", "decode f16 kv=f16 h4/2 d64 page5 HND q=[1,1] kv=[230,17] seed=6")]
#[case::decode_fp8(
    "fp8-staged-soft",
    "decode bf16 kv=e4m3 h4/2 d64 page16 NHD q=[1,1] kv=[40,17] kscale=0.5 seed=7"
)]
#[case::decode_fp8_row_by_row(
    "fp8-staged-hw",
    "decode bf16 kv=e5m2 h4/2 d64 page5 NHD q=[1,1] kv=[230,17] vscale=2 seed=8"
)]
#[case::staged("fp8-staged-soft", "mixed f16 kv=e4m3 h4/2 d64 page16 NHD causal q=[5,1] kv=[40,17] seed=9")]
#[case::large_heads("mma", "mixed bf16 kv=bf16 h2/2 d256 page8 HND causal q=[5,1] kv=[40,17] seed=10")]
fn the_top_of_a_large_pool_is_read_like_the_start_of_a_small_one(#[case] arm: &str, #[case] line: &str) {
    let case: Case = line.parse().expect("a case");
    let inputs = Inputs::generate(&case).expect("inputs");
    let spec = DeviceSpec { kind: DeviceKind::Simt, checked: false, schedule: None };
    let variant = Variant::plain(Poison::Nan);
    let AttentionJob { mut job, .. } = attention_job(&case, &inputs, arm, &spec, variant);
    // In one split, a warp of the decode kernel looks up rows steps ahead of those that it copies.
    let Operation::Attention { call, .. } = &mut job.operation else { panic!("not attention") };
    call.splits = Some(1);
    let device = cases::devices::open(&spec).expect("a simt device");
    let near = Devices::with(spec, device.clone()).run(&job);
    let stride = inputs.views.k.page_stride as u64;
    let far = Placed { device: &device, job: &job, pages_before: (1 << 31) / stride + 3, max_seq_len: 0 };
    assert!(near.buffers[0].iter().any(|byte| *byte != 0), "{:?}", near.status);
    assert!(far.run(arm.parse().expect("an arm")) == near.buffers[0], "{arm}: {line}");
}

// Blocks without keys still run. Where a thread reads 16 codes, its warps exchange halves, which takes `simt` a minute
// here; the addresses are computed in the same lines. 240 = 15 x 16 is read by eights.
#[rstest]
#[case::dequantised(Arm::Fp8Dense, "e4m3", 240)]
#[case::copied(Arm::Bf16Dense, "bf16", 256)]
fn a_dense_scratch_of_more_than_2_to_the_31_elements_is_written_and_read_like_a_small_one(
    #[case] arm: Arm,
    #[case] kv: &str,
    #[case] head_dim: u64,
) {
    let line = format!("mixed bf16 kv={kv} h8/8 d{head_dim} page16 NHD causal q=[2,1] kv=[9,17] seed=5");
    let case: Case = line.parse().expect("a case");
    let inputs = Inputs::generate(&case).expect("inputs");
    let spec = DeviceSpec { kind: DeviceKind::Simt, checked: false, schedule: None };
    let variant = Variant::plain(Poison::Nan);
    let job = attention_job(&case, &inputs, arm.name(), &spec, variant).job;
    let device = cases::devices::open(&spec).expect("a simt device");
    let near = Devices::with(spec, device.clone()).run(&job);
    assert!(near.buffers[0].iter().any(|byte| *byte != 0), "{:?}", near.status);
    // The last head of the second request starts at element 2^31 of the scratch.
    let max_seq_len = (1u64 << 31).div_ceil(15 * head_dim);
    let far = Placed { device: &device, job: &job, pages_before: 0, max_seq_len };
    assert!(far.run(arm) == near.buffers[0]);
}
