//! From inputs to the job that the device side runs: buffers, views and options in the kernels' vocabulary.

mod metadata;
mod rows;

use kernels::tensor::DType;
use ndarray::Array3;
use oracle::{Format, PagedView};

use crate::case::{Case, Defect};
use crate::executor::protocol::{AttentionCall, CacheSpec, Float, ScaleSpec, StoreCall};
use crate::executor::{Buffer, DeviceSpec, Job, Operation, TensorSpec};
use crate::inputs::{Inputs, Poison, StoreInputs};
use crate::judge::AttentionOutput;
use crate::problem::{Op, Problem, Scale};
use crate::verdict::Failure;
use metadata::Metadata;
pub use rows::{Rows, packed, runs};

/// How one launch of a case differs from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// What stands in bytes that nobody owns.
    pub poison: Poison,
    /// Whether the launch code is told upper bounds of the lengths instead of the lengths, and given no host copies.
    pub loose_metadata: bool,
    /// Whether inputs and caches come back besides the output.
    pub returns_inputs: bool,
    /// How rows of q, out and lse lie.
    pub rows: Rows,
}

impl Variant {
    /// The launch that others are told apart from: exact lengths and host copies, the output alone back, rows one after another.
    #[must_use]
    pub const fn plain(poison: Poison) -> Self {
        Self { poison, loose_metadata: false, returns_inputs: false, rows: Rows::Packed }
    }
}

/// Where a job's outputs lie among its buffers.
#[derive(Clone, Debug)]
pub struct AttentionJob {
    /// The job.
    pub job: Job,
    /// Index of `out`.
    pub out: usize,
    /// Index of `lse`, if it is asked for.
    pub lse: Option<usize>,
}

impl AttentionJob {
    /// The output among the buffers that came back, rows one after another.
    ///
    /// # Panics
    /// If buffers are missing.
    #[must_use]
    pub fn output(&self, returned: &[Vec<u8>]) -> AttentionOutput {
        let of = |spec: &TensorSpec| packed(spec, self.returned(spec.buffer, returned));
        let call = self.call();
        AttentionOutput { out: of(&call.out), lse: call.lse.as_ref().map(of) }
    }

    /// Writes between the rows of the output.
    ///
    /// # Panics
    /// If buffers are missing.
    #[must_use]
    pub fn writes_in_gaps(&self, returned: &[Vec<u8>]) -> Vec<Failure> {
        let call = self.call();
        let outputs = [Some(&call.out), call.lse.as_ref()].into_iter().flatten();
        let failure = |spec: &TensorSpec| {
            let sent = &self.job.buffers[spec.buffer];
            let changed = rows::changed_gaps(spec, &sent.bytes, self.returned(spec.buffer, returned));
            let buffer = format!("{} between its rows", sent.name);
            let first = *changed.first()?;
            Some(Failure::Modified { buffer, bytes: changed.len(), first })
        };
        outputs.filter_map(failure).collect()
    }

    fn call(&self) -> &AttentionCall {
        let Operation::Attention { call, .. } = &self.job.operation else { unreachable!("an attention job") };
        call
    }

    /// The call, to be changed.
    pub fn call_mut(&mut self) -> &mut AttentionCall {
        let Operation::Attention { call, .. } = &mut self.job.operation else {
            unreachable!("an attention job")
        };
        call
    }

    fn returned<'a>(&self, index: usize, returned: &'a [Vec<u8>]) -> &'a [u8] {
        &returned[self.job.buffers[..index].iter().filter(|buffer| buffer.returned).count()]
    }
}

/// The element type of the kernels' crate for a format.
#[must_use]
pub fn dtype(format: Format) -> DType {
    match format {
        Format::F32 => DType::F32,
        Format::Bf16 => DType::Bf16,
        Format::F16 => DType::F16,
        Format::E4m3 => DType::E4m3,
        Format::E5m2 => DType::E5m2,
    }
}

/// The bits that stand in every output element before the launch: a NaN that no computation gives.
#[must_use]
pub fn sentinel(format: Format) -> Vec<u8> {
    match format {
        Format::F32 => 0x7fb5_3a5c_u32.to_le_bytes().to_vec(),
        Format::Bf16 => 0x7fb5_u16.to_le_bytes().to_vec(),
        Format::F16 => 0x7db5_u16.to_le_bytes().to_vec(),
        Format::E4m3 | Format::E5m2 => vec![0x7f],
    }
}

/// Collects buffers and hands out views of them.
#[derive(Default)]
struct Builder {
    buffers: Vec<Buffer>,
}

impl Builder {
    fn buffer(&mut self, name: &str, bytes: Vec<u8>, returned: bool) -> usize {
        self.buffers.push(Buffer { name: name.to_owned(), bytes, returned });
        self.buffers.len() - 1
    }

    /// A row-major tensor in a buffer of its own.
    fn tensor(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &[usize],
        bytes: Vec<u8>,
        returned: bool,
    ) -> TensorSpec {
        let buffer = self.buffer(name, bytes, returned);
        let mut strides = vec![1_i64; shape.len()];
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis] * shape[axis].max(1) as i64;
        }
        let shape = shape.iter().map(|n| *n as u64).collect();
        TensorSpec { buffer, offset: 0, dtype, shape, strides }
    }

    fn floats(&mut self, name: &str, values: &[f32], returned: bool) -> TensorSpec {
        self.tensor(name, DType::F32, &[values.len()], Format::F32.encode_to_bytes(values), returned)
    }

    fn scale(&mut self, name: &str, scale: &Scale, returned: bool) -> ScaleSpec {
        match scale {
            Scale::PerTensor(scale) => ScaleSpec::PerTensor(Float(*scale)),
            Scale::PerHead(scales) => ScaleSpec::PerHead(self.floats(name, scales, returned)),
        }
    }

    /// The cache: views of one or two buffers.
    fn cache(
        &mut self,
        problem: &Problem,
        views: [&PagedView; 2],
        mut buffers: Vec<Vec<u8>>,
        returned: bool,
    ) -> CacheSpec {
        let second = buffers.pop().expect("a cache has one or two buffers");
        let (k_buffer, v_buffer) = match buffers.pop() {
            Some(first) => {
                (self.buffer("k_cache", first, returned), self.buffer("v_cache", second, returned))
            }
            None => {
                let shared = self.buffer("kv_cache", second, returned);
                (shared, shared)
            }
        };
        CacheSpec {
            k: paged(views[0], k_buffer, problem.cache_format),
            v: paged(views[1], v_buffer, problem.cache_format),
            k_scale: self.scale("k_scale", &problem.k_scale, returned),
            v_scale: self.scale("v_scale", &problem.v_scale, returned),
        }
    }
}

fn paged(view: &PagedView, buffer: usize, format: Format) -> TensorSpec {
    TensorSpec {
        buffer,
        offset: (view.offset * format.size_bytes()) as u64,
        dtype: dtype(format),
        shape: [view.pages, view.page_size, view.heads, view.dim].map(|n| n as u64).to_vec(),
        strides: [view.page_stride, view.slot_stride, view.head_stride, 1].map(|n| n as i64).to_vec(),
    }
}

fn encoded(values: &Array3<f32>, format: Format) -> Vec<u8> {
    format.encode_to_bytes(values.as_slice().expect("generated arrays are row-major"))
}

/// The query length that a verify case promises to the launch code.
fn uniform_query_len(problem: &Problem) -> Option<u64> {
    let (first, rest) = problem.query_lens.split_first()?;
    (problem.op == Op::Verify && rest.iter().all(|len| len == first)).then_some(*first as u64)
}

/// The job of an attention case.
#[must_use]
pub fn attention_job(
    case: &Case,
    inputs: &Inputs,
    arm: &str,
    device: &DeviceSpec,
    variant: Variant,
) -> AttentionJob {
    let problem = &case.problem;
    let mut builder = Builder::default();
    let returned = variant.returns_inputs;
    let rows = problem.total_query_rows();
    let heads = problem.num_q_heads;
    let q_type = dtype(problem.query_format);
    let gaps = variant.rows.gaps(arm, problem.query_format.size_bytes());
    let (filler, lse_filler) = (sentinel(problem.query_format), sentinel(Format::F32));
    let q_bytes = encoded(&inputs.query, problem.query_format);
    let q_shape = [rows, heads, problem.head_dim];
    let q = builder.rows(("q", q_type, &q_shape), q_bytes, returned, (gaps.q, &filler));
    let out_shape = [rows, heads, problem.head_dim_v];
    let unwritten = filler.repeat(out_shape.iter().product());
    let out = builder.rows(("out", q_type, &out_shape), unwritten, true, (gaps.out, &filler));
    let lse = problem.wants_lse.then(|| {
        let unwritten = lse_filler.repeat(rows * heads);
        builder.rows(("lse", DType::F32, &[rows, heads]), unwritten, true, (gaps.lse, &lse_filler))
    });
    let cache =
        builder.cache(problem, [&inputs.views.k, &inputs.views.v], inputs.caches(variant.poison), returned);
    let metadata = Metadata::new(case, inputs, variant.loose_metadata);
    let (out_index, lse_index) = (out.buffer, lse.as_ref().map(|lse| lse.buffer));
    let options = &problem.options;
    let call = AttentionCall {
        q,
        cache,
        out,
        lse,
        block_table: metadata.block_table(&mut builder, returned),
        seq_lens: metadata.seq_lens(&mut builder, returned),
        query_start_loc: metadata.query_start_loc(&mut builder, returned),
        max_query_len: metadata.max_query_len,
        max_seq_len: metadata.max_seq_len,
        softmax_scale: Float(problem.softmax_scale()),
        causal: options.causal,
        window_left: options.window_left,
        window_right: options.window_right,
        softcap: options.softcap.map(Float),
        alibi_slopes: inputs.alibi_slopes.as_ref().map(|s| builder.floats("alibi_slopes", s, returned)),
        sinks: inputs.sinks.as_ref().map(|s| builder.floats("sinks", s, returned)),
        host_metadata: !variant.loose_metadata,
        splits: None,
        ahead: false,
        uniform_query_len: uniform_query_len(problem).filter(|_| !variant.loose_metadata),
    };
    let operation = Operation::Attention { arm: arm.to_owned(), call: Box::new(call) };
    let job = Job { device: device.clone(), operation, buffers: builder.buffers };
    AttentionJob { job, out: out_index, lse: lse_index }
}

/// The job of a store case. All buffers come back; the cache's are those named `*_cache`.
#[must_use]
pub fn store_job(case: &Case, inputs: &StoreInputs, device: &DeviceSpec) -> Job {
    let problem = &case.problem;
    let mut builder = Builder::default();
    let rows = inputs.slots.len();
    let source = dtype(problem.query_format);
    let mut new_rows = |name, values: &Array3<f32>, dim| {
        let bytes = encoded(values, problem.query_format);
        builder.tensor(name, source, &[rows, problem.num_kv_heads, dim], bytes, true)
    };
    let k = new_rows("k", &inputs.keys, problem.head_dim);
    let v = new_rows("v", &inputs.values, problem.head_dim_v);
    let cache = builder.cache(problem, [&inputs.views.k, &inputs.views.v], inputs.before.clone(), true);
    let (slot_type, slots): (_, Vec<u8>) = match case.defect {
        Some(Defect::SlotMappingI32) => {
            (DType::I32, inputs.slots.iter().flat_map(|slot| (*slot as i32).to_le_bytes()).collect())
        }
        _ => (DType::I64, inputs.slots.iter().flat_map(|slot| slot.to_le_bytes()).collect()),
    };
    let slot_mapping = builder.tensor("slot_mapping", slot_type, &[rows], slots, true);
    let call = StoreCall { k, v, cache, slot_mapping, host_slots: true };
    Job { device: device.clone(), operation: Operation::Store(Box::new(call)), buffers: builder.buffers }
}
