//! A small paged-attention batch on a device: inputs with a fixed pattern, and room for the results.

use kernels::args::{AttentionArgs, BatchMetadata, HostMetadata, PagedCache, Scale};
use kernels::arm::Arm;
use kernels::device::{DeviceError, DeviceRef, StreamId};
use kernels::error::LaunchError;
use kernels::launch::paged_attention_with;
use kernels::route::Knobs;
use kernels::scratch::Scratch;
use kernels::tensor::{Allocation, DType, DeviceTensor};
use kernels::workspace::Workspace;

/// Sizes of a batch.
#[derive(Clone, Copy, Debug)]
pub struct BatchShape {
    /// Query rows of each request.
    pub q_lens: &'static [u64],
    /// Keys of each request.
    pub kv_lens: &'static [u64],
    /// Query heads and KV heads.
    pub heads: (u64, u64),
    /// Elements of a head.
    pub head_dim: u64,
    /// Slots of a page.
    pub page_size: u64,
    /// Type of queries and output.
    pub q_dtype: DType,
    /// Type of the cache.
    pub kv_dtype: DType,
}

impl BatchShape {
    /// Query rows in all.
    #[must_use]
    pub fn total_q(&self) -> u64 {
        self.q_lens.iter().sum()
    }

    /// The longest sequence.
    #[must_use]
    pub fn max_seq_len(&self) -> u64 {
        self.kv_lens.iter().copied().max().unwrap_or(0)
    }

    fn pages(&self) -> u64 {
        self.kv_lens.iter().map(|len| len.div_ceil(self.page_size)).sum()
    }

    fn table_width(&self) -> u64 {
        self.max_seq_len().div_ceil(self.page_size)
    }

    /// Pages of each request, handed out backwards, so that no order is the identity.
    fn tables(&self) -> Vec<i32> {
        let mut next = self.pages();
        let width = self.table_width();
        let mut table = Vec::new();
        for len in self.kv_lens {
            let pages = len.div_ceil(self.page_size);
            table.extend((0..pages).map(|page| word(next - 1 - page)));
            next -= pages;
            table.extend((pages..width).map(|_| 0));
        }
        table
    }

    /// Slot of every key in the cache, request by request.
    pub(super) fn slots(&self) -> Vec<i64> {
        let (table, width) = (self.tables(), self.table_width());
        let mut slots = Vec::new();
        for (request, len) in self.kv_lens.iter().enumerate() {
            slots.extend((0..*len).map(|key| {
                let column = (key / self.page_size) as usize;
                let page = table[request * width as usize + column];
                i64::from(page) * self.page_size as i64 + (key % self.page_size) as i64
            }));
        }
        slots
    }
}

fn word(value: u64) -> i32 {
    i32::try_from(value).expect("sizes of these batches are small")
}

/// Many finite values between -2 and 2 in any format, as bytes.
pub(super) fn pattern(dtype: DType, count: u64, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 40
    };
    let mut bytes = Vec::new();
    for _ in 0..count {
        let bits = next();
        let sign = (bits as u32 & 1) << 31;
        match dtype {
            // Codes of magnitudes up to 1.875: 0x3f in e4m3, 0x3f in e5m2.
            DType::E4m3 | DType::E5m2 => bytes.push((bits as u8 & 1) << 7 | (bits >> 1) as u8 & 0x3f),
            DType::F16 => bytes.extend((((sign >> 16) as u16) | ((bits >> 1) as u16 & 0x3bff)).to_le_bytes()),
            _ => {
                let value = sign | 0x3f00_0000 | (bits as u32 >> 1 & 0x7f) << 16;
                bytes.extend(&value.to_le_bytes()[4 - dtype.size_bytes() as usize..]);
            }
        }
    }
    bytes
}

/// Allocates, fills and keeps memory; everything is freed when it is dropped.
pub(super) struct Inputs<'a> {
    device: &'a DeviceRef,
    pub held: Vec<Scratch>,
}

impl<'a> Inputs<'a> {
    pub fn new(device: &'a DeviceRef) -> Self {
        Self { device, held: Vec::new() }
    }

    pub fn room(&mut self, dtype: DType, shape: &[u64]) -> Result<DeviceTensor, DeviceError> {
        let bytes = shape.iter().product::<u64>() * dtype.size_bytes();
        let scratch = Scratch::new(self.device, bytes, StreamId::DEFAULT)?;
        let allocation = Allocation { ptr: scratch.ptr(), bytes };
        self.held.push(scratch);
        Ok(DeviceTensor::contiguous(allocation, dtype, shape))
    }

    pub fn upload(&mut self, dtype: DType, shape: &[u64], bytes: &[u8]) -> Result<DeviceTensor, DeviceError> {
        let tensor = self.room(dtype, shape)?;
        self.device.copy_to_device(tensor.ptr(), bytes, StreamId::DEFAULT)?;
        Ok(tensor)
    }

    pub fn pattern(&mut self, dtype: DType, shape: &[u64], seed: u64) -> Result<DeviceTensor, DeviceError> {
        self.upload(dtype, shape, &pattern(dtype, shape.iter().product(), seed))
    }

    fn words(&mut self, shape: &[u64], values: &[i32]) -> Result<DeviceTensor, DeviceError> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.upload(DType::I32, shape, &bytes)
    }
}

/// A batch whose inputs lie on a device, ready for any stream.
pub struct Batch {
    /// The call.
    pub args: AttentionArgs,
    held: Vec<Scratch>,
}

impl Batch {
    /// Uploads a batch and waits until it is there.
    ///
    /// # Errors
    /// What the device reports.
    pub fn new(device: &DeviceRef, shape: &BatchShape) -> Result<Self, DeviceError> {
        let mut inputs = Inputs::new(device);
        let (hq, hk) = shape.heads;
        let (rows, dim) = (shape.total_q(), shape.head_dim);
        let cache = [shape.pages(), shape.page_size, hk, dim];
        let k = inputs.pattern(shape.kv_dtype, &cache, 2)?;
        let v = inputs.pattern(shape.kv_dtype, &cache, 3)?;
        let q = inputs.pattern(shape.q_dtype, &[rows, hq, dim], 1)?;
        let out = inputs.room(shape.q_dtype, &[rows, hq, dim])?;
        let lse = inputs.room(DType::F32, &[rows, hq])?;
        let host = host_metadata(shape);
        let metadata = upload_metadata(&mut inputs, shape, &host)?;
        let scale = if shape.kv_dtype.is_fp8() { Scale::PerTensor(0.5) } else { Scale::ONE };
        let cache = PagedCache { k, v, k_scale: scale.clone(), v_scale: scale };
        let args = AttentionArgs { lse: Some(lse), host, ..AttentionArgs::causal(q, cache, out, metadata) };
        device.synchronize(StreamId::DEFAULT)?;
        Ok(Self { args, held: inputs.held })
    }

    /// Bytes of everything that was uploaded, and of the results.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.held.iter().map(Scratch::bytes).sum()
    }

    /// Fills the results with NaN and queues the attention call, all on one stream.
    ///
    /// # Errors
    /// As [`paged_attention_with`].
    pub fn attend(
        &self,
        device: &DeviceRef,
        stream: StreamId,
        (arm, knobs): (Arm, &Knobs),
        workspace: Option<&mut Workspace>,
    ) -> Result<(), LaunchError> {
        self.clear(device, stream)?;
        paged_attention_with(device, stream, Some(arm), &self.args, knobs, workspace)?;
        Ok(())
    }

    /// Fills the results with NaN.
    ///
    /// # Errors
    /// What the device reports.
    pub fn clear(&self, device: &DeviceRef, stream: StreamId) -> Result<(), DeviceError> {
        self.results().try_for_each(|result| device.memset(result.ptr, 0xff, result.bytes, stream))
    }

    /// Waits for a stream and reads the results: output, then lse.
    ///
    /// # Errors
    /// What the device reports, failures of the stream's work included.
    pub fn read(&self, device: &DeviceRef, stream: StreamId) -> Result<Vec<u8>, DeviceError> {
        let mut bytes = Vec::new();
        for result in self.results() {
            let start = bytes.len();
            bytes.resize(start + result.bytes as usize, 0);
            device.copy_to_host(&mut bytes[start..], result.ptr, stream)?;
        }
        Ok(bytes)
    }

    fn results(&self) -> impl Iterator<Item = Allocation> {
        std::iter::once(self.args.out.allocation).chain(self.args.lse.as_ref().map(|lse| lse.allocation))
    }
}

fn host_metadata(shape: &BatchShape) -> HostMetadata {
    let mut starts = vec![0];
    starts.extend(shape.q_lens.iter().scan(0, |start, len| {
        *start += word(*len);
        Some(*start)
    }));
    HostMetadata {
        block_table: Some(shape.tables()),
        seq_lens: Some(shape.kv_lens.iter().map(|len| word(*len)).collect()),
        query_start_loc: Some(starts),
    }
}

fn upload_metadata(
    inputs: &mut Inputs<'_>,
    shape: &BatchShape,
    host: &HostMetadata,
) -> Result<BatchMetadata, DeviceError> {
    let requests = shape.kv_lens.len() as u64;
    let mut send = |shape: &[u64], values: &Option<Vec<i32>>| {
        inputs.words(shape, values.as_ref().expect("host metadata is complete"))
    };
    Ok(BatchMetadata {
        block_table: send(&[requests, shape.table_width()], &host.block_table)?,
        seq_lens: send(&[requests], &host.seq_lens)?,
        query_start_loc: send(&[requests + 1], &host.query_start_loc)?,
        max_query_len: shape.q_lens.iter().copied().max().unwrap_or(0),
        max_seq_len: shape.max_seq_len(),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;
    use crate::host_device::HostDevice;

    const SHAPE: BatchShape = BatchShape {
        q_lens: &[5, 6],
        kv_lens: &[12, 6],
        heads: (4, 2),
        head_dim: 8,
        page_size: 4,
        q_dtype: DType::Bf16,
        kv_dtype: DType::E4m3,
    };

    #[test]
    fn pages_are_handed_out_backwards_and_slots_follow_them() {
        // Request 0 has three whole pages, request 1 a page and a half, and a column that it does not use.
        assert_eq!(SHAPE.tables(), [4, 3, 2, 1, 0, 0]);
        let slots = SHAPE.slots();
        assert_eq!(slots[..12], [16, 17, 18, 19, 12, 13, 14, 15, 8, 9, 10, 11]);
        assert_eq!(slots[12..], [4, 5, 6, 7, 0, 1]);
    }

    #[test]
    fn a_batch_lies_on_the_device_as_its_host_copy_says() {
        let device: DeviceRef = Arc::new(HostDevice::new(None));
        let batch = Batch::new(&device, &SHAPE).unwrap();
        let args = &batch.args;
        let words = |tensor: &DeviceTensor, shape: &[u64]| {
            assert_eq!((tensor.dtype, tensor.shape.as_slice()), (DType::I32, shape));
            let mut bytes = vec![0; tensor.allocation.bytes as usize];
            device.copy_to_host(&mut bytes, tensor.ptr(), StreamId::DEFAULT).unwrap();
            Some(bytes.as_chunks().0.iter().map(|word| i32::from_le_bytes(*word)).collect::<Vec<_>>())
        };
        assert_eq!(args.host.seq_lens, Some(vec![12, 6]));
        assert_eq!(args.host.query_start_loc, Some(vec![0, 5, 11]));
        assert_eq!(words(&args.block_table, &[2, 3]), args.host.block_table);
        assert_eq!(words(&args.seq_lens, &[2]), args.host.seq_lens);
        assert_eq!(words(&args.query_start_loc, &[3]), args.host.query_start_loc);
        assert_eq!((args.max_query_len, args.max_seq_len), (6, 12));
        // Five pages of K and of V, queries and results in two bytes, lse in four, eleven words of metadata.
        let bytes = 2 * 5 * 4 * 2 * 8 + 2 * 2 * (11 * 4 * 8) + 4 * (11 * 4) + 4 * 11;
        assert_eq!((batch.bytes(), device.pool().unwrap().used), (bytes, bytes));
    }

    #[test]
    fn cleared_results_are_all_nan_and_the_inputs_stay() {
        let device: DeviceRef = Arc::new(HostDevice::new(None));
        let batch = Batch::new(&device, &SHAPE).unwrap();
        let mut inputs = vec![0; batch.args.q.allocation.bytes as usize];
        device.memset(batch.args.out.ptr(), 0, batch.args.out.allocation.bytes, StreamId::DEFAULT).unwrap();
        batch.clear(&device, StreamId::DEFAULT).unwrap();
        let results = batch.read(&device, StreamId::DEFAULT).unwrap();
        assert_eq!(results, vec![0xff; 2 * 11 * 4 * 8 + 4 * 11 * 4]);
        device.copy_to_host(&mut inputs, batch.args.q.ptr(), StreamId::DEFAULT).unwrap();
        assert_eq!(inputs, pattern(DType::Bf16, 11 * 4 * 8, 1));
    }

    fn values(dtype: DType) -> Vec<f32> {
        let bytes = pattern(dtype, 4096, 1);
        let word = |bytes: &[u8]| {
            let mut word = [0; 4];
            word[..bytes.len()].copy_from_slice(bytes);
            u32::from_le_bytes(word)
        };
        let value = |bits: u32| match dtype {
            DType::E4m3 => small_float(bits, 4, 3),
            DType::E5m2 => small_float(bits, 5, 2),
            DType::F16 => small_float(bits, 5, 10),
            DType::Bf16 => small_float(bits, 8, 7),
            _ => f32::from_bits(bits),
        };
        bytes.chunks_exact(dtype.size_bytes() as usize).map(|bytes| value(word(bytes))).collect()
    }

    /// A float of so many bits of exponent and of significand, which is no infinity and no NaN.
    fn small_float(bits: u32, exponent_bits: u32, significand_bits: u32) -> f32 {
        let exponent = (bits >> significand_bits & ((1 << exponent_bits) - 1)) as i32;
        let fraction = (bits & ((1 << significand_bits) - 1)) as f32 / (1_u32 << significand_bits) as f32;
        let bias = (1 << (exponent_bits - 1)) - 1;
        let magnitude = match exponent {
            0 => fraction * 2_f32.powi(1 - bias),
            _ => (1.0 + fraction) * 2_f32.powi(exponent - bias),
        };
        if bits >> (exponent_bits + significand_bits) & 1 == 0 { magnitude } else { -magnitude }
    }

    /// Byte counts and results of a report are compared with those of other devices and other days.
    #[test]
    fn patterns_stay_what_they_are() {
        assert_eq!(pattern(DType::E4m3, 8, 2), [0xb7, 0x0e, 0x8c, 0x3b, 0xb9, 0x3a, 0x38, 0x27]);
        assert_eq!(pattern(DType::E5m2, 8, 3), [0x8e, 0xa7, 0x31, 0x18, 0xa2, 0x35, 0x9d, 0x9a]);
        assert_eq!(pattern(DType::F16, 4, 2), [0x77, 0x9b, 0xce, 0x30, 0x8c, 0x8a, 0x3b, 0x31]);
        assert_eq!(pattern(DType::Bf16, 4, 1), [0x3b, 0xbf, 0x77, 0x3f, 0x67, 0x3f, 0x02, 0xbf]);
        assert_eq!(pattern(DType::F32, 2, 1), [0x00, 0x00, 0x3b, 0xbf, 0x00, 0x00, 0x77, 0x3f]);
    }

    #[test]
    fn patterns_are_many_values_of_both_signs_below_two() {
        for dtype in [DType::E4m3, DType::E5m2, DType::F16, DType::Bf16, DType::F32] {
            let values = values(dtype);
            assert_eq!(values.len(), 4096);
            assert!(values.iter().all(|value| value.abs() < 2.0), "{dtype:?}");
            let distinct: BTreeSet<_> = values.iter().map(|value| value.to_bits()).collect();
            assert!(distinct.len() >= 128, "{dtype:?}: {} values", distinct.len());
            let negative = values.iter().filter(|value| value.is_sign_negative()).count();
            assert!((1800..2300).contains(&negative), "{dtype:?}: {negative} of 4096 are negative");
            let large = values.iter().filter(|value| value.abs() >= 0.5).count();
            assert!(large > 400, "{dtype:?}: {large} of 4096 are at least a half");
        }
    }
}
