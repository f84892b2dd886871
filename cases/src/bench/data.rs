//! Inputs on the device: the same values as a bf16 and as an e4m3 cache, in several copies that rotate.

use kernels::args::{AttentionArgs, BatchMetadata, PagedCache};
use kernels::device::{DevicePtr, DeviceRef, StreamId};
use kernels::scratch::Scratch;
use kernels::tensor::{Allocation, DType, DeviceTensor};
use oracle::Format;

use super::{ArmRun, BenchError, BenchProblem};

/// Bytes that a rotation covers at least: twice the cache of the largest card in use.
const ROTATION_BYTES: u64 = 128 << 20;
/// More copies than this make no difference.
const MAX_COPIES: u64 = 16;

/// A fast generator whose quality suffices for filling buffers.
pub(super) struct Fill(pub u64);

impl Fill {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// e4m3 codes of values spread about like a normal distribution of unit variance.
fn normal_codes() -> Vec<u8> {
    let mut fill = Fill(0x9e37_79b9_7f4a_7c15);
    let uniform = |fill: &mut Fill| (fill.next() >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
    // The sum of twelve uniform values of variance 1/12.
    (0..65536)
        .map(|_| (0..12).map(|_| uniform(&mut fill)).sum::<f32>())
        .map(|x| Format::E4m3.encode(x) as u8)
        .collect()
}

/// One copy of the inputs.
struct Copy {
    q: Scratch,
    k: [Scratch; 2],
    v: [Scratch; 2],
}

/// Everything that the arms of one problem read and write.
pub(super) struct Data {
    pub problem: BenchProblem,
    pub host_q: Vec<u8>,
    pub host_k: Vec<u8>,
    pub host_v: Vec<u8>,
    /// Physical page of each logical page, request by request.
    pub pages: Vec<i32>,
    copies: Vec<Copy>,
    out: Scratch,
    block_table: Scratch,
    seq_lens: Scratch,
    query_start_loc: Scratch,
}

fn upload(device: &DeviceRef, bytes: &[u8]) -> Result<Scratch, BenchError> {
    let scratch = Scratch::new(device, bytes.len() as u64, StreamId::DEFAULT)?;
    device.copy_to_device(scratch.ptr(), bytes, StreamId::DEFAULT)?;
    Ok(scratch)
}

fn words(values: impl IntoIterator<Item = i32>) -> Vec<u8> {
    values.into_iter().flat_map(i32::to_le_bytes).collect()
}

/// The bf16 bytes of e4m3 codes; exact.
fn widen(codes: &[u8]) -> Vec<u8> {
    let table: Vec<[u8; 2]> =
        (0..256).map(|code| (Format::Bf16.encode(Format::E4m3.decode(code)) as u16).to_le_bytes()).collect();
    codes.iter().flat_map(|&code| table[usize::from(code)]).collect()
}

impl Data {
    pub(super) fn new(device: &DeviceRef, problem: &BenchProblem) -> Result<Self, BenchError> {
        let codes = normal_codes();
        let mut fill = Fill(0x1234_5678_9abc_def1);
        let mut draw = |count: u64| -> Vec<u8> {
            (0..count.div_ceil(4))
                .flat_map(|_| {
                    let bits = fill.next();
                    [0, 16, 32, 48].map(|shift| codes[(bits >> shift) as usize & 0xffff])
                })
                .take(count as usize)
                .collect()
        };
        let columns = problem.kv_len.div_ceil(problem.page_size);
        let num_pages = columns * problem.batch;
        let cache = num_pages * problem.page_size * problem.num_kv_heads * problem.head_dim;
        let (host_k, host_v) = (draw(cache), draw(cache));
        let host_q = widen(&draw(problem.batch * problem.q_len * problem.num_q_heads * problem.head_dim));
        let pages = shuffled(num_pages, &mut fill);
        let (wide_k, wide_v) = (widen(&host_k), widen(&host_v));
        let count = ROTATION_BYTES.div_ceil(2 * cache).clamp(1, MAX_COPIES);
        let copies = (0..count)
            .map(|_| {
                Ok(Copy {
                    q: upload(device, &host_q)?,
                    k: [upload(device, &wide_k)?, upload(device, &host_k)?],
                    v: [upload(device, &wide_v)?, upload(device, &host_v)?],
                })
            })
            .collect::<Result<Vec<_>, BenchError>>()?;
        let batch = i32::try_from(problem.batch).expect("a batch fits 32 bits");
        let (q_len, kv_len) = (problem.q_len as i32, problem.kv_len as i32);
        Ok(Self {
            out: Scratch::new(device, host_q.len() as u64, StreamId::DEFAULT)?,
            block_table: upload(device, &words(pages.iter().copied()))?,
            seq_lens: upload(device, &words((0..batch).map(|_| kv_len)))?,
            query_start_loc: upload(device, &words((0..=batch).map(|r| r * q_len)))?,
            problem: problem.clone(),
            host_q,
            host_k,
            host_v,
            pages,
            copies,
        })
    }

    /// Copies that a rotation goes through.
    pub(super) fn copies(&self) -> usize {
        self.copies.len()
    }

    pub(super) fn out_bytes(&self) -> usize {
        self.host_q.len()
    }

    pub(super) fn out(&self) -> DevicePtr {
        self.out.ptr()
    }

    /// The call of one arm on one copy of the inputs.
    pub(super) fn args(&self, run: ArmRun, copy: usize) -> AttentionArgs {
        let p = &self.problem;
        let copy = &self.copies[copy % self.copies.len()];
        let tensor = |scratch: &Scratch, dtype, shape: &[u64]| {
            DeviceTensor::contiguous(Allocation { ptr: scratch.ptr(), bytes: scratch.bytes() }, dtype, shape)
        };
        let which = usize::from(run.fp8);
        let kv_dtype = if run.fp8 { DType::E4m3 } else { DType::Bf16 };
        let cache = [self.pages.len() as u64, p.page_size, p.num_kv_heads, p.head_dim];
        let rows = [p.batch * p.q_len, p.num_q_heads, p.head_dim];
        let metadata = BatchMetadata {
            block_table: tensor(&self.block_table, DType::I32, &[p.batch, self.pages.len() as u64 / p.batch]),
            seq_lens: tensor(&self.seq_lens, DType::I32, &[p.batch]),
            query_start_loc: tensor(&self.query_start_loc, DType::I32, &[p.batch + 1]),
            max_query_len: p.q_len,
            max_seq_len: p.kv_len,
        };
        let kv = PagedCache::unscaled(
            tensor(&copy.k[which], kv_dtype, &cache),
            tensor(&copy.v[which], kv_dtype, &cache),
        );
        let (q, out) = (tensor(&copy.q, DType::Bf16, &rows), tensor(&self.out, DType::Bf16, &rows));
        AttentionArgs::causal(q, kv, out, metadata)
    }
}

fn shuffled(count: u64, fill: &mut Fill) -> Vec<i32> {
    let mut pages: Vec<i32> = (0..i32::try_from(count).expect("page ids fit 32 bits")).collect();
    for last in (1..pages.len()).rev() {
        pages.swap(last, (fill.next() % (last as u64 + 1)) as usize);
    }
    pages
}
