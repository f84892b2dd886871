//! An attention call as a kernel sees it: numbers read from the job's buffers through its views.

use kernels::tensor::DType;
use ndarray::Array3;
use oracle::Format;

use crate::executor::protocol::{AttentionCall, ScaleSpec};
use crate::executor::{Job, TensorSpec};
use crate::job::packed;

/// K or V of the paged cache: raw bytes and the view of them.
pub(super) struct Side<'a> {
    bytes: &'a [u8],
    pub format: Format,
    /// Element index of the first element.
    pub offset: usize,
    pub page_stride: usize,
    pub slot_stride: usize,
    pub head_stride: usize,
    pub pages: usize,
    pub page_size: usize,
    pub heads: usize,
    pub dim: usize,
}

impl<'a> Side<'a> {
    pub fn new(job: &'a Job, spec: &TensorSpec) -> Self {
        let format = format(spec.dtype);
        let [pages, page_size, heads, dim] = [0, 1, 2, 3].map(|axis| spec.shape[axis] as usize);
        let [page_stride, slot_stride, head_stride] = [0, 1, 2].map(|axis| spec.strides[axis] as usize);
        Self {
            bytes: &job.buffers[spec.buffer].bytes,
            format,
            offset: spec.offset as usize / format.size_bytes(),
            page_stride,
            slot_stride,
            head_stride,
            pages,
            page_size,
            heads,
            dim,
        }
    }

    /// Index of an element in the buffer, as the view defines it.
    pub fn index(&self, page: usize, slot: usize, head: usize, dim: usize) -> usize {
        self.offset + page * self.page_stride + slot * self.slot_stride + head * self.head_stride + dim
    }

    /// Elements of the buffer.
    pub fn elements(&self) -> usize {
        self.bytes.len() / self.format.size_bytes()
    }

    /// The code of one element. A wrong address beyond the buffer lands somewhere inside of it, as it would in a pool.
    pub fn code(&self, index: usize) -> u32 {
        let size = self.format.size_bytes();
        let start = index % self.elements().max(1) * size;
        let code = self.bytes.get(start..start + size).unwrap_or_default();
        code.iter().rev().fold(0, |code, byte| code << 8 | u32::from(*byte))
    }
}

/// One attention call, decoded.
pub(super) struct Call<'a> {
    /// `[total_q, num_q_heads, head_dim]`.
    pub q: Array3<f64>,
    pub k: Side<'a>,
    pub v: Side<'a>,
    /// Block table, row-major.
    pub table: Vec<i32>,
    /// Columns of the block table.
    pub width: usize,
    pub seq_lens: Vec<usize>,
    pub query_start_loc: Vec<usize>,
    pub max_seq_len: usize,
    pub softmax_scale: f64,
    pub causal: bool,
    pub window_left: Option<i64>,
    pub window_right: Option<i64>,
    pub softcap: Option<f64>,
    pub alibi_slopes: Option<Vec<f64>>,
    pub sinks: Option<Vec<f64>>,
    /// One or one per KV head.
    pub k_scales: Vec<f64>,
    /// One or one per KV head.
    pub v_scales: Vec<f64>,
    pub num_q_heads: usize,
    pub num_kv_heads: usize,
    pub page_size: usize,
}

impl<'a> Call<'a> {
    pub fn new(job: &'a Job, call: &AttentionCall) -> Self {
        let integers = |spec: &TensorSpec| -> Vec<i32> {
            let words = job.buffers[spec.buffer].bytes.as_chunks::<4>().0;
            words.iter().map(|word| i32::from_le_bytes(*word)).collect()
        };
        let lengths = |spec: &TensorSpec| -> Vec<usize> {
            integers(spec).into_iter().map(|n| usize::try_from(n).unwrap_or(0)).collect()
        };
        let scales = |scale: &ScaleSpec| match scale {
            ScaleSpec::PerTensor(scale) => vec![f64::from(scale.0)],
            ScaleSpec::PerHead(spec) => floats(job, spec),
        };
        let dims = [0, 1, 2].map(|axis| call.q.shape[axis] as usize);
        let q = Array3::from_shape_vec(dims, floats(job, &call.q)).expect("the job's q has its shape");
        let (k, v) = (Side::new(job, &call.cache.k), Side::new(job, &call.cache.v));
        Self {
            num_q_heads: dims[1],
            num_kv_heads: k.heads,
            page_size: k.page_size,
            table: integers(&call.block_table),
            width: call.block_table.shape[1] as usize,
            seq_lens: lengths(&call.seq_lens),
            query_start_loc: lengths(&call.query_start_loc),
            max_seq_len: call.max_seq_len as usize,
            softmax_scale: f64::from(call.softmax_scale.0),
            causal: call.causal,
            window_left: call.window_left,
            window_right: call.window_right,
            softcap: call.softcap.map(|cap| f64::from(cap.0)),
            alibi_slopes: call.alibi_slopes.as_ref().map(|spec| floats(job, spec)),
            sinks: call.sinks.as_ref().map(|spec| floats(job, spec)),
            k_scales: scales(&call.cache.k_scale),
            v_scales: scales(&call.cache.v_scale),
            q,
            k,
            v,
        }
    }

    /// Query heads per KV head.
    pub fn group(&self) -> usize {
        (self.num_q_heads / self.num_kv_heads.max(1)).max(1)
    }

    pub fn num_requests(&self) -> usize {
        self.seq_lens.len()
    }

    /// Query rows of a request.
    pub fn query_len(&self, request: usize) -> usize {
        self.query_start_loc[request + 1] - self.query_start_loc[request]
    }

    /// Keys for which the block table has columns.
    pub fn capacity(&self) -> usize {
        self.width * self.page_size
    }

    /// An entry of the block table as a page of the pool, whatever it holds.
    pub fn entry(&self, row: usize, column: usize) -> usize {
        let entry = self.table.get(row * self.width + column).copied().unwrap_or(0);
        usize::try_from(entry).unwrap_or(0) % self.k.pages.max(1)
    }
}

/// The scale of a KV head among one or one per head.
pub(super) fn scale_of(scales: &[f64], kv_head: usize) -> f64 {
    scales[kv_head.min(scales.len() - 1)]
}

/// Values of a row-major tensor that starts its buffer.
fn floats(job: &Job, spec: &TensorSpec) -> Vec<f64> {
    let values = format(spec.dtype).decode_bytes(&packed(spec, &job.buffers[spec.buffer].bytes));
    values.into_iter().map(f64::from).collect()
}

/// The oracle's format of a floating-point element type.
pub(super) fn format(dtype: DType) -> Format {
    match dtype {
        DType::Bf16 => Format::Bf16,
        DType::F16 => Format::F16,
        DType::E4m3 => Format::E4m3,
        DType::E5m2 => Format::E5m2,
        // Integers are never read as numbers to compute with.
        DType::F32 | DType::I32 | DType::I64 => Format::F32,
    }
}
