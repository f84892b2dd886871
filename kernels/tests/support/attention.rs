//! A batch on a device, and paged attention in f64 straight from its definition.
//! Each test file uses a part of it.
#![allow(dead_code)]

use kernels::args::{AttentionArgs, BatchMetadata, HostMetadata, PagedCache, Scale};
use kernels::device::DeviceRef;
use kernels::tensor::{Allocation, DType, DeviceTensor};

use crate::support::{self, Random, decode_all, download, encode_all, upload, upload_f32, upload_i32};

/// How K and V lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Two tensors, slot before head.
    Nhd,
    /// Two tensors, head before slot.
    Hnd,
    /// `[pages, 2, page, heads, dim]`.
    Interleaved,
    /// Two tensors whose rows are three elements apart and start one element in: nothing is aligned but elements.
    Ragged,
}

/// What to compute.
#[derive(Clone, Debug)]
pub struct Problem {
    pub q_dtype: DType,
    pub kv_dtype: DType,
    pub heads: (usize, usize),
    pub dims: (usize, usize),
    pub page_size: usize,
    pub q_lens: Vec<usize>,
    pub kv_lens: Vec<usize>,
    pub layout: Layout,
    pub causal: bool,
    pub window: (Option<i64>, Option<i64>),
    pub softcap: Option<f32>,
    pub slopes: Option<Vec<f32>>,
    pub sinks: Option<Vec<f32>>,
    pub scale: f32,
    pub k_scale: Vec<f32>,
    pub v_scale: Vec<f32>,
    /// Standard size of q, k and v elements.
    pub magnitude: f64,
    /// What every slot that no request owns holds; `None` leaves it unwritten, so that reading it is a finding.
    pub poison: Option<f64>,
}

impl Problem {
    pub fn new(q_dtype: DType, kv_dtype: DType, heads: (usize, usize), dim: usize) -> Self {
        Self {
            q_dtype,
            kv_dtype,
            heads,
            dims: (dim, dim),
            page_size: 4,
            q_lens: vec![4, 1],
            kv_lens: vec![4, 6],
            layout: Layout::Nhd,
            causal: true,
            window: (None, None),
            softcap: None,
            slopes: None,
            sinks: None,
            scale: 1.0 / (dim as f32).sqrt(),
            k_scale: vec![1.0],
            v_scale: vec![1.0],
            magnitude: 1.0,
            poison: None,
        }
    }

    pub fn lens(mut self, q_lens: &[usize], kv_lens: &[usize]) -> Self {
        (self.q_lens, self.kv_lens) = (q_lens.to_vec(), kv_lens.to_vec());
        self
    }
}

/// Values as stored: `[row][head][dim]` of one request, unscaled.
type Rows = Vec<Vec<Vec<f64>>>;

/// A problem with inputs, on the host and on a device.
pub struct Batch {
    pub problem: Problem,
    pub q: Rows,
    pub k: Vec<Rows>,
    pub v: Vec<Rows>,
    pub args: AttentionArgs,
}

fn rows(random: &mut Random, dtype: DType, shape: (usize, usize, usize), magnitude: f64) -> Rows {
    let mut row = || {
        let values: Vec<f64> = (0..shape.2).map(|_| random.value() * magnitude).collect();
        decode_all(dtype, &encode_all(dtype, values))
    };
    (0..shape.0).map(|_| (0..shape.1).map(|_| row()).collect()).collect()
}

/// Offset of the first element and strides of page, slot and head, in elements, and the elements of the whole allocation.
fn view(
    layout: Layout,
    side: usize,
    pages: usize,
    page_size: usize,
    heads: usize,
    dim: usize,
) -> (usize, [usize; 3], usize) {
    let page = page_size * heads * dim;
    match layout {
        Layout::Nhd => (0, [page, heads * dim, dim], pages * page),
        Layout::Hnd => (0, [page, dim, page_size * dim], pages * page),
        Layout::Interleaved => (side * page, [2 * page, heads * dim, dim], 2 * pages * page),
        Layout::Ragged => {
            let row = dim + 3;
            (1, [page_size * heads * row, heads * row, row], 1 + pages * page_size * heads * row)
        }
    }
}

/// Writes every owned key row of one side to its place, element strides of page, slot and head from `offset`.
fn write_rows(
    device: &DeviceRef,
    problem: &Problem,
    requests: &[Rows],
    tables: &[Vec<i32>],
    (offset, [page_stride, slot_stride, head_stride]): (usize, [usize; 3]),
    memory: Allocation,
) {
    let size = problem.kv_dtype.size_bytes();
    for (request, table) in requests.iter().zip(tables) {
        for (key, heads) in request.iter().enumerate() {
            let (page, slot) = (table[key / problem.page_size] as usize, key % problem.page_size);
            for (head, row) in heads.iter().enumerate() {
                let at = offset + page * page_stride + slot * slot_stride + head * head_stride;
                let bytes = encode_all(problem.kv_dtype, row.iter().copied());
                device
                    .copy_to_device(memory.ptr.offset(at as u64 * size), &bytes, support::STREAM)
                    .expect("a copy");
            }
        }
    }
}

impl Batch {
    pub fn new(device: &DeviceRef, problem: Problem, seed: u64) -> Self {
        let mut random = Random(seed * 2 + 0x9e37_79b9);
        let (hq, hk) = problem.heads;
        let (dk, dv) = problem.dims;
        let m = problem.magnitude;
        let total_q = problem.q_lens.iter().sum();
        let q = rows(&mut random, problem.q_dtype, (total_q, hq, dk), m);
        let mut side = |dim| -> Vec<Rows> {
            problem
                .kv_lens
                .iter()
                .map(|len| rows(&mut random, problem.kv_dtype, (*len, hk, dim), m))
                .collect()
        };
        let (k, v) = (side(dk), side(dv));
        let args = build(device, &problem, &q, &k, &v);
        Self { problem, q, k, v, args }
    }

    /// Uploads again after a change of the host values or of the problem.
    pub fn refresh(&mut self, device: &DeviceRef) {
        self.args = build(device, &self.problem, &self.q, &self.k, &self.v);
    }

    /// Output and lse as the device left them: `[row][head][dim]`, `[row][head]`.
    pub fn results(&self, device: &DeviceRef) -> (Vec<f64>, Vec<f64>) {
        let out = decode_all(self.problem.q_dtype, &download(device, self.args.out.allocation));
        let lse = self.args.lse.as_ref().expect("lse is always asked for").allocation;
        (out, decode_all(DType::F32, &download(device, lse)))
    }

    /// Output and lse from the definition.
    pub fn expected(&self) -> (Vec<f64>, Vec<f64>) {
        let p = &self.problem;
        let (mut out, mut lse, mut row) = (Vec::new(), Vec::new(), 0);
        for (request, q_len) in p.q_lens.iter().enumerate() {
            for i in 0..*q_len {
                let position = p.kv_lens[request] as i64 - *q_len as i64 + i as i64;
                for head in 0..p.heads.0 {
                    let (values, log) = self.attend(request, row, head, position);
                    out.extend(values);
                    lse.push(log);
                }
                row += 1;
            }
        }
        (out, lse)
    }

    fn visible(&self, key: i64, position: i64) -> bool {
        let p = &self.problem;
        !(p.causal && key > position)
            && p.window.0.is_none_or(|left| i128::from(key) >= i128::from(position) - i128::from(left))
            && p.window.1.is_none_or(|right| i128::from(key) <= i128::from(position) + i128::from(right))
    }

    fn attend(&self, request: usize, row: usize, head: usize, position: i64) -> (Vec<f64>, f64) {
        let p = &self.problem;
        let kv_head = head / (p.heads.0 / p.heads.1);
        let of = |scales: &[f32]| f64::from(scales[if scales.len() == 1 { 0 } else { kv_head }]);
        let keys: Vec<usize> =
            (0..p.kv_lens[request]).filter(|key| self.visible(*key as i64, position)).collect();
        let score = |key: usize| {
            let dot: f64 =
                self.q[row][head].iter().zip(&self.k[request][key][kv_head]).map(|(a, b)| a * b).sum();
            let mut s = dot * f64::from(p.scale) * of(&p.k_scale);
            if let Some(cap) = p.softcap {
                s = f64::from(cap) * (s / f64::from(cap)).tanh();
            }
            s + p
                .slopes
                .as_ref()
                .map_or(0.0, |slopes| f64::from(slopes[head]) * (key as i64 - position) as f64)
        };
        let scores: Vec<f64> = keys.iter().map(|key| score(*key)).collect();
        let sink = p.sinks.as_ref().map_or(f64::NEG_INFINITY, |sinks| f64::from(sinks[head]));
        let max = scores.iter().copied().fold(sink, f64::max);
        if max == f64::NEG_INFINITY {
            let nan = scores.iter().any(|s| s.is_nan());
            return if nan { (vec![f64::NAN; p.dims.1], f64::NAN) } else { (vec![0.0; p.dims.1], max) };
        }
        let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
        let sum: f64 = weights.iter().sum::<f64>() + (sink - max).exp();
        let value = |dim: usize| {
            let total: f64 =
                keys.iter().zip(&weights).map(|(key, w)| w * self.v[request][*key][kv_head][dim]).sum();
            total / sum * of(&p.v_scale)
        };
        ((0..p.dims.1).map(value).collect(), max + sum.ln())
    }

    /// Compares what the device left with the definition, NaN by position.
    #[track_caller]
    pub fn check(&self, device: &DeviceRef) {
        self.check_within(device, 0.0);
    }

    /// The same for an arm that rounds its weights: `more` is allowed on top for the output.
    #[track_caller]
    pub fn check_within(&self, device: &DeviceRef, more: f64) {
        let (got, got_lse) = self.results(device);
        let (want, want_lse) = self.expected();
        let p = &self.problem;
        let roundoff = match p.q_dtype {
            DType::Bf16 => 2_f64.powi(-8),
            DType::F16 => 2_f64.powi(-11),
            _ => 2_f64.powi(-24),
        };
        let largest_v = p.v_scale.iter().fold(0_f32, |a, b| a.max(*b));
        let slack = 2e-5 * p.magnitude * p.magnitude.max(1.0) * f64::from(largest_v);
        compare("out", &got, &want, |want| want.abs() * roundoff * 1.01 + slack + more + 2_f64.powi(-25));
        compare("lse", &got_lse, &want_lse, |want| {
            2e-6 * want.abs() + 4e-6 * p.magnitude * p.magnitude + 2e-6
        });
    }
}

#[track_caller]
fn compare(what: &str, got: &[f64], want: &[f64], allowed: impl Fn(f64) -> f64) {
    assert_eq!(got.len(), want.len());
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let same = got == want || (got.is_nan() && want.is_nan()) || (got - want).abs() <= allowed(*want);
        assert!(same, "{what}[{i}] is {got}, want {want}, allowed {}", allowed(*want));
    }
}

fn scale(device: &DeviceRef, values: &[f32]) -> Scale {
    match values {
        [one] => Scale::PerTensor(*one),
        _ => Scale::PerHead(upload_f32(device, &[values.len() as u64], values)),
    }
}

/// Pages of each request: every other page of the pool, handed out backwards, so that no order is the identity.
fn tables(problem: &Problem) -> (Vec<Vec<i32>>, usize) {
    let needed: Vec<usize> = problem.kv_lens.iter().map(|len| len.div_ceil(problem.page_size)).collect();
    let pages = 2 * needed.iter().sum::<usize>() + 1;
    let mut next = pages as i32 - 1;
    let mut take = || {
        next -= 2;
        next + 1
    };
    (needed.iter().map(|n| (0..*n).map(|_| take()).collect()).collect(), pages)
}

fn build(device: &DeviceRef, problem: &Problem, q: &Rows, k: &[Rows], v: &[Rows]) -> AttentionArgs {
    let (hq, hk) = problem.heads;
    let (dk, dv) = problem.dims;
    let (tables, pages) = tables(problem);
    let size = problem.kv_dtype.size_bytes();
    let places = [dk, dv].map(|dim| (dim, problem.layout));
    let views: Vec<_> =
        (0..2).map(|s| view(places[s].1, s, pages, problem.page_size, hk, places[s].0)).collect();
    let tensor = |allocation: Allocation, side: usize| {
        let (offset, strides, _) = views[side];
        let shape = [pages, problem.page_size, hk, places[side].0].map(|n| n as u64);
        let strides = [strides[0], strides[1], strides[2], 1].map(|n| n as i64);
        DeviceTensor::strided(allocation, offset as u64 * size, problem.kv_dtype, &shape, &strides)
    };
    let memory = |elements: usize| match problem.poison {
        Some(poison) => upload(device, &encode_all(problem.kv_dtype, vec![poison; elements])),
        None => {
            let bytes = elements as u64 * size;
            Allocation { ptr: device.alloc(bytes, support::STREAM).expect("memory"), bytes }
        }
    };
    let k_memory = memory(views[0].2);
    let v_memory = if problem.layout == Layout::Interleaved { k_memory } else { memory(views[1].2) };
    write_rows(device, problem, k, &tables, (views[0].0, views[0].1), k_memory);
    write_rows(device, problem, v, &tables, (views[1].0, views[1].1), v_memory);
    let (k_tensor, v_tensor) = (tensor(k_memory, 0), tensor(v_memory, 1));
    let total_q = q.len() as u64;
    let flat_q = upload(device, &encode_all(problem.q_dtype, q.iter().flatten().flatten().copied()));
    let empty = |dtype: DType, shape: &[u64]| {
        let bytes = (shape.iter().product::<u64>() * dtype.size_bytes()).max(1);
        let ptr = device.alloc(bytes, support::STREAM).expect("memory");
        DeviceTensor::contiguous(Allocation { ptr, bytes }, dtype, shape)
    };
    let mut args = AttentionArgs::causal(
        DeviceTensor::contiguous(flat_q, problem.q_dtype, &[total_q, hq as u64, dk as u64]),
        PagedCache {
            k: k_tensor,
            v: v_tensor,
            k_scale: scale(device, &problem.k_scale),
            v_scale: scale(device, &problem.v_scale),
        },
        empty(problem.q_dtype, &[total_q, hq as u64, dv as u64]),
        metadata(device, problem, &tables),
    );
    args.lse = Some(empty(DType::F32, &[total_q, hq as u64]));
    args.softmax_scale = problem.scale;
    args.causal = problem.causal;
    (args.window_left, args.window_right) = problem.window;
    args.softcap = problem.softcap;
    args.alibi_slopes = problem.slopes.as_ref().map(|x| upload_f32(device, &[hq as u64], x));
    args.sinks = problem.sinks.as_ref().map(|x| upload_f32(device, &[hq as u64], x));
    args.host = host(problem, &tables, width(&tables));
    args
}

fn width(tables: &[Vec<i32>]) -> usize {
    tables.iter().map(Vec::len).max().unwrap_or(0).max(1)
}

fn host(problem: &Problem, tables: &[Vec<i32>], width: usize) -> HostMetadata {
    // Entries past a request's pages point far outside the pool: following one would be noticed.
    let padded = tables.iter().flat_map(|t| t.iter().copied().chain((t.len()..width).map(|_| 0x0080_0000)));
    let mut start = 0;
    let starts = std::iter::once(0).chain(problem.q_lens.iter().map(|len| {
        start += *len as i32;
        start
    }));
    HostMetadata {
        block_table: Some(padded.collect()),
        seq_lens: Some(problem.kv_lens.iter().map(|len| *len as i32).collect()),
        query_start_loc: Some(starts.collect()),
    }
}

fn metadata(device: &DeviceRef, problem: &Problem, tables: &[Vec<i32>]) -> BatchMetadata {
    let width = width(tables);
    let host = host(problem, tables, width);
    let (table, lens, starts) =
        (host.block_table.unwrap(), host.seq_lens.unwrap(), host.query_start_loc.unwrap());
    let requests = lens.len() as u64;
    BatchMetadata {
        block_table: upload_i32(device, &[requests, width as u64], &table),
        seq_lens: upload_i32(device, &[requests], &lens),
        query_start_loc: upload_i32(device, &[requests + 1], &starts),
        max_query_len: problem.q_lens.iter().copied().max().unwrap_or(0) as u64,
        max_seq_len: problem.kv_lens.iter().copied().max().unwrap_or(0) as u64,
    }
}
