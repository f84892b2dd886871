//! What goes to the device side and what comes back: one JSON line, then the raw bytes that it announces.

use std::io::{self, BufRead, Read, Write};

use kernels::device::{DeviceKind, Finding};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A float that travels as its bits: JSON has no NaN and no infinity, and must-refuse cases send both.
#[derive(Clone, Copy, Debug)]
pub struct Float(pub f32);

impl PartialEq for Float {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Serialize for Float {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.to_bits().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Float {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u32::deserialize(deserializer).map(|bits| Self(f32::from_bits(bits)))
    }
}

/// Which device a job runs on and how.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DeviceSpec {
    /// Which backend.
    pub kind: DeviceKind,
    /// Whether every access is checked (`simt` only).
    pub checked: bool,
    /// Seed of the order in which lanes run; `None` is plain order.
    pub schedule: Option<u64>,
}

/// One allocation of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Its name in messages.
    pub name: String,
    /// Contents before the launch.
    pub bytes: Vec<u8>,
    /// Whether its contents come back.
    pub returned: bool,
}

/// A view of one of the job's buffers. Offset in bytes, strides in elements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorSpec {
    /// Index of the buffer.
    pub buffer: usize,
    /// Offset of the first element in bytes.
    pub offset: u64,
    /// Element type as the kernels' crate names it.
    pub dtype: kernels::tensor::DType,
    /// Extents.
    pub shape: Vec<u64>,
    /// Strides in elements.
    pub strides: Vec<i64>,
}

/// A dequantisation scale: a number, or a tensor with one per KV head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ScaleSpec {
    /// One for the tensor.
    PerTensor(Float),
    /// One per KV head.
    PerHead(TensorSpec),
}

/// The cache's views and scales.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CacheSpec {
    /// `[num_pages, page_size, num_kv_heads, head_dim]`.
    pub k: TensorSpec,
    /// `[num_pages, page_size, num_kv_heads, head_dim_v]`.
    pub v: TensorSpec,
    /// Scale of K.
    pub k_scale: ScaleSpec,
    /// Scale of V.
    pub v_scale: ScaleSpec,
}

/// An attention call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionCall {
    /// `[total_q, num_q_heads, head_dim]`.
    pub q: TensorSpec,
    /// The cache.
    pub cache: CacheSpec,
    /// `[total_q, num_q_heads, head_dim_v]`.
    pub out: TensorSpec,
    /// `[total_q, num_q_heads]`.
    pub lse: Option<TensorSpec>,
    /// `[num_requests, width]`.
    pub block_table: TensorSpec,
    /// `[num_requests]`.
    pub seq_lens: TensorSpec,
    /// `[num_requests + 1]`.
    pub query_start_loc: TensorSpec,
    /// At least the longest query.
    pub max_query_len: u64,
    /// At least the longest sequence.
    pub max_seq_len: u64,
    /// Factor of the dot products.
    pub softmax_scale: Float,
    /// Bottom-right aligned causal mask.
    pub causal: bool,
    /// Keys visible to the left.
    pub window_left: Option<i64>,
    /// Keys visible to the right.
    pub window_right: Option<i64>,
    /// Logit soft cap.
    pub softcap: Option<Float>,
    /// `[num_q_heads]`.
    pub alibi_slopes: Option<TensorSpec>,
    /// `[num_q_heads]`.
    pub sinks: Option<TensorSpec>,
    /// Whether the launch code is given host copies of block table, lengths and query starts.
    pub host_metadata: bool,
    /// A fixed number of splits instead of the launch code's rule.
    pub splits: Option<u64>,
    /// Whether a dense arm serves the call as one that was announced: dequantised ahead, but for its own tokens.
    pub ahead: bool,
    /// The promise that every request has so many query rows.
    pub uniform_query_len: Option<u64>,
}

/// A store call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoreCall {
    /// `[rows, num_kv_heads, head_dim]`.
    pub k: TensorSpec,
    /// `[rows, num_kv_heads, head_dim_v]`.
    pub v: TensorSpec,
    /// The cache.
    pub cache: CacheSpec,
    /// `[slots]`.
    pub slot_mapping: TensorSpec,
    /// Whether the launch code is given a host copy of the slots.
    pub host_slots: bool,
}

/// What a job does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Operation {
    /// Attention on one arm.
    Attention {
        /// The arm's name.
        arm: String,
        /// The call.
        call: Box<AttentionCall>,
    },
    /// `reshape_and_cache`.
    Store(Box<StoreCall>),
}

/// One launch with everything it needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// On what.
    pub device: DeviceSpec,
    /// What.
    pub operation: Operation,
    /// The allocations.
    pub buffers: Vec<Buffer>,
}

/// How the launch ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "kebab-case")]
pub enum Status {
    /// Everything ran.
    Completed,
    /// The launch code refused an argument.
    Refused {
        /// The argument.
        argument: String,
        /// The whole error.
        message: String,
    },
    /// The arm does not serve the call.
    Unsupported {
        /// The error.
        message: String,
    },
    /// A checked run found faults.
    Findings {
        /// The faults.
        findings: Vec<Finding>,
    },
    /// The driver or the device reported an error.
    DeviceError {
        /// The error.
        message: String,
        /// Whether the device is lost to this process.
        sticky: bool,
    },
    /// The surroundings failed.
    Environment {
        /// The error.
        message: String,
    },
}

/// The device side's answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// How the launch ended.
    pub status: Status,
    /// Kernel launches that the call made.
    pub launches: u64,
    /// What the call did to the device's pool.
    pub pool: PoolUse,
    /// Contents of the buffers that come back, in order; empty if they could not be read.
    pub buffers: Vec<Vec<u8>>,
}

/// Bytes of the pool that are in use before a call's buffers are allocated and after they were freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolUse {
    /// Before.
    pub before_bytes: u64,
    /// After.
    pub after_bytes: u64,
}

impl PoolUse {
    /// Bytes that the call has not given back.
    #[must_use]
    pub fn leaked_bytes(self) -> u64 {
        self.after_bytes.saturating_sub(self.before_bytes)
    }
}

#[derive(Serialize, Deserialize)]
struct BufferHead {
    name: String,
    bytes: usize,
    returned: bool,
}

#[derive(Serialize, Deserialize)]
struct JobHead {
    device: DeviceSpec,
    operation: Operation,
    buffers: Vec<BufferHead>,
}

#[derive(Serialize, Deserialize)]
struct ReplyHead {
    status: Status,
    launches: u64,
    pool: PoolUse,
    buffers: Vec<usize>,
}

/// Writes a job.
///
/// # Errors
/// As the stream has them.
pub fn write_job(to: &mut impl Write, job: &Job) -> io::Result<()> {
    let heads = |b: &Buffer| BufferHead { name: b.name.clone(), bytes: b.bytes.len(), returned: b.returned };
    let head = JobHead {
        device: job.device.clone(),
        operation: job.operation.clone(),
        buffers: job.buffers.iter().map(heads).collect(),
    };
    write_message(to, &head, job.buffers.iter().map(|b| b.bytes.as_slice()))
}

/// Reads a job; `None` at the end of the stream.
///
/// # Errors
/// As the stream has them, or when it holds something else than a job.
pub fn read_job(from: &mut impl BufRead) -> io::Result<Option<Job>> {
    let Some(head) = read_head::<JobHead>(from)? else { return Ok(None) };
    let mut buffers = Vec::with_capacity(head.buffers.len());
    for BufferHead { name, bytes, returned } in head.buffers {
        buffers.push(Buffer { name, bytes: read_bytes(from, bytes)?, returned });
    }
    Ok(Some(Job { device: head.device, operation: head.operation, buffers }))
}

/// Writes a reply.
///
/// # Errors
/// As the stream has them.
pub fn write_reply(to: &mut impl Write, reply: &Reply) -> io::Result<()> {
    let head = ReplyHead {
        status: reply.status.clone(),
        launches: reply.launches,
        pool: reply.pool,
        buffers: reply.buffers.iter().map(Vec::len).collect(),
    };
    write_message(to, &head, reply.buffers.iter().map(Vec::as_slice))
}

/// Reads a reply; `None` at the end of the stream.
///
/// # Errors
/// As the stream has them, or when it holds something else than a reply.
pub fn read_reply(from: &mut impl BufRead) -> io::Result<Option<Reply>> {
    let Some(head) = read_head::<ReplyHead>(from)? else { return Ok(None) };
    let buffers = head.buffers.iter().map(|bytes| read_bytes(from, *bytes)).collect::<io::Result<_>>()?;
    Ok(Some(Reply { status: head.status, launches: head.launches, pool: head.pool, buffers }))
}

fn write_message<'a>(
    to: &mut impl Write,
    head: &impl Serialize,
    bodies: impl Iterator<Item = &'a [u8]>,
) -> io::Result<()> {
    let mut line = serde_json::to_vec(head)?;
    line.push(b'\n');
    to.write_all(&line)?;
    for body in bodies {
        to.write_all(body)?;
    }
    to.flush()
}

fn read_head<T: DeserializeOwned>(from: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    if from.read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&line)?))
}

fn read_bytes(from: &mut impl BufRead, bytes: usize) -> io::Result<Vec<u8>> {
    let mut body = Vec::with_capacity(bytes.min(1 << 24));
    let read = from.take(bytes as u64).read_to_end(&mut body)?;
    if read == bytes { Ok(body) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}
