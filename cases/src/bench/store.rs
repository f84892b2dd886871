//! The store kernel: new keys and values into a bf16 and an e4m3 cache.

use kernels::args::{PagedCache, StoreArgs};
use kernels::device::{DeviceRef, StreamId};
use kernels::scratch::Scratch;
use kernels::store::reshape_and_cache;
use kernels::tensor::{Allocation, DType, DeviceTensor};
use oracle::Format;

use super::data::Fill;
use super::report::{ArmTiming, ProblemReport};
use super::timing::Stopwatch;
use super::{BenchError, BenchProblem};

const ROUNDS: usize = 15;

pub(super) fn run(device: &DeviceRef, problem: &BenchProblem) -> Result<ProblemReport, BenchError> {
    let mut report = ProblemReport::new(problem);
    for dtype in [DType::Bf16, DType::E4m3] {
        report.arms.push(time_store(device, problem, dtype)?);
    }
    Ok(report)
}

fn tensor(scratch: &Scratch, dtype: DType, shape: &[u64]) -> DeviceTensor {
    DeviceTensor::contiguous(Allocation { ptr: scratch.ptr(), bytes: scratch.bytes() }, dtype, shape)
}

fn time_store(device: &DeviceRef, problem: &BenchProblem, dtype: DType) -> Result<ArmTiming, BenchError> {
    let tokens = problem.batch * problem.q_len;
    let row = problem.num_kv_heads * problem.head_dim;
    let pages = tokens.div_ceil(problem.page_size) + 1;
    let cache_bytes = pages * problem.page_size * row * dtype.size_bytes();
    // bf16 values between 2^-7 and 2^8, so that e4m3 meets subnormals and saturates nowhere.
    let mut fill = Fill(0xdead_beef_cafe_f00d);
    let source: Vec<u8> = (0..tokens * row)
        .flat_map(|_| {
            let bits = fill.next();
            ((bits as u16 & 0x87ff) + 0x3c00).to_le_bytes()
        })
        .collect();
    let slots: Vec<u8> = (0..tokens)
        .flat_map(|i| ((i * 7919) % tokens + problem.page_size).cast_signed().to_le_bytes())
        .collect();
    let sources = [
        Scratch::new(device, tokens * row * 2, StreamId::DEFAULT)?,
        Scratch::new(device, tokens * row * 2, StreamId::DEFAULT)?,
    ];
    let caches = [
        Scratch::new(device, cache_bytes, StreamId::DEFAULT)?,
        Scratch::new(device, cache_bytes, StreamId::DEFAULT)?,
    ];
    let mapping = Scratch::new(device, tokens * 8, StreamId::DEFAULT)?;
    device.copy_to_device(mapping.ptr(), &slots, StreamId::DEFAULT)?;
    for scratch in &sources {
        device.copy_to_device(scratch.ptr(), &source, StreamId::DEFAULT)?;
    }
    let shape = [pages, problem.page_size, problem.num_kv_heads, problem.head_dim];
    let rows = [tokens, problem.num_kv_heads, problem.head_dim];
    let args = StoreArgs {
        k: tensor(&sources[0], DType::Bf16, &rows),
        v: tensor(&sources[1], DType::Bf16, &rows),
        cache: PagedCache::unscaled(tensor(&caches[0], dtype, &shape), tensor(&caches[1], dtype, &shape)),
        slot_mapping: tensor(&mapping, DType::I64, &[tokens]),
        host_slot_mapping: None,
    };
    let mut timing = ArmTiming::named(format!("store {dtype}"));
    let check = |device: &DeviceRef| -> Result<Option<String>, BenchError> {
        for cache in &caches {
            device.memset(cache.ptr(), 0xff, cache_bytes, StreamId::DEFAULT)?;
        }
        reshape_and_cache(device, StreamId::DEFAULT, &args)?;
        for cache in &caches {
            let mut stored = vec![0; cache_bytes as usize];
            device.copy_to_host(&mut stored, cache.ptr(), StreamId::DEFAULT)?;
            if let Some(error) = difference(&stored, &source, &slots, row as usize, dtype) {
                return Ok(Some(error));
            }
        }
        Ok(None)
    };
    timing.mismatch = check(device)?;
    if timing.mismatch.is_none() {
        let watch = Stopwatch::new(device)?;
        let mut ms = Vec::new();
        for round in 0..=ROUNDS {
            let time = watch.time(|| Ok(reshape_and_cache(device, StreamId::DEFAULT, &args)?))?;
            if round > 0 {
                ms.push(time);
            }
        }
        let median = timing.set_times(&ms);
        timing.tb_s = Some((2 * tokens * row * (2 + dtype.size_bytes())) as f64 / median / 1e9);
        timing.mismatch = check(device)?;
    }
    Ok(timing)
}

/// The first stored element that is not what the definition says.
fn difference(stored: &[u8], source: &[u8], slots: &[u8], row: usize, dtype: DType) -> Option<String> {
    let size = dtype.size_bytes() as usize;
    for (token, slot) in slots.chunks_exact(8).enumerate() {
        let slot = u64::from_le_bytes(slot.try_into().expect("eight bytes")) as usize;
        for element in 0..row {
            let from = (token * row + element) * 2;
            let bits = u32::from(u16::from_le_bytes([source[from], source[from + 1]]));
            let want = match dtype {
                DType::Bf16 => bits,
                _ => oracle::store_code(Format::E4m3, Format::Bf16.decode(bits), 1.0),
            };
            let to = (slot * row + element) * size;
            let got = if size == 2 {
                u32::from(u16::from_le_bytes([stored[to], stored[to + 1]]))
            } else {
                u32::from(stored[to])
            };
            if got != want {
                return Some(format!("token {token}, element {element}: stored {got:#x}, want {want:#x}"));
            }
        }
    }
    None
}
