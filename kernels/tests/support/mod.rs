//! What the launch tests share: a simt device with uploads and downloads, and number formats from their definition.
//! Each test file uses a part of it.
#![allow(dead_code)]

use std::sync::{Arc, Mutex};

use kernels::device::{Device, DeviceError, DevicePtr, DeviceRef, DeviceResult, StreamId};
use kernels::simt::{Mode, SimtDevice, SimtOptions};
use kernels::source::SourceSet;
use kernels::tensor::{Allocation, DType, DeviceTensor};
use kernels::validate::AttentionShape;

/// The stream of every test.
pub const STREAM: StreamId = StreamId::DEFAULT;

/// A checked device with the project's kernels and some options changed.
pub fn device_as(change: impl FnOnce(&mut SimtOptions)) -> DeviceRef {
    let mut options = SimtOptions::new(SourceSet::load().expect("kernel sources"));
    change(&mut options);
    SimtDevice::new(options).expect("a simt device")
}

/// A device with the given kernel sources.
pub fn device_with(mode: Mode, sources: SourceSet) -> DeviceRef {
    device_as(|options| (options.mode, options.sources) = (mode, sources))
}

/// A checked device with the project's kernels.
pub fn checked() -> DeviceRef {
    device_as(|_| ())
}

/// Uploads bytes into an allocation of exactly their size (at least one byte).
pub fn upload(device: &DeviceRef, bytes: &[u8]) -> Allocation {
    let size = bytes.len().max(1) as u64;
    let ptr = device.alloc(size, STREAM).expect("memory");
    if !bytes.is_empty() {
        device.copy_to_device(ptr, bytes, STREAM).expect("a copy");
    }
    Allocation { ptr, bytes: size }
}

/// Downloads a whole allocation.
pub fn download(device: &DeviceRef, allocation: Allocation) -> Vec<u8> {
    let mut bytes = vec![0; allocation.bytes as usize];
    device.copy_to_host(&mut bytes, allocation.ptr, STREAM).expect("a copy and a clean stream");
    bytes
}

/// A contiguous f32 tensor.
pub fn upload_f32(device: &DeviceRef, shape: &[u64], values: &[f32]) -> DeviceTensor {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    DeviceTensor::contiguous(upload(device, &bytes), DType::F32, shape)
}

/// A contiguous i32 tensor.
pub fn upload_i32(device: &DeviceRef, shape: &[u64], values: &[i32]) -> DeviceTensor {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    DeviceTensor::contiguous(upload(device, &bytes), DType::I32, shape)
}

/// Refuses every free for the same reason, and remembers on which streams it was asked.
pub struct RefusesFrees {
    inner: DeviceRef,
    reason: fn() -> DeviceError,
    asked: Mutex<Vec<StreamId>>,
}

impl RefusesFrees {
    pub fn new(inner: DeviceRef, reason: fn() -> DeviceError) -> Arc<Self> {
        Arc::new(Self { inner, reason, asked: Mutex::default() })
    }

    pub fn asked(&self) -> Vec<StreamId> {
        self.asked.lock().unwrap().clone()
    }
}

impl Device for RefusesFrees {
    fn free(&self, _ptr: DevicePtr, stream: StreamId) -> DeviceResult<()> {
        self.asked.lock().unwrap().push(stream);
        Err((self.reason)())
    }

    kernels::forward_device! { inner:
        info alloc create_stream destroy_stream copy_to_host copy_to_device copy_on_device memset load_kernel launch
        launch_counts create_event destroy_event record_event wait_event elapsed_ms begin_capture end_capture
        launch_graph destroy_graph pool reset_high_water synchronize
    }
}

/// A number format from its definition: exponent and mantissa widths, bias, and how the largest exponent is used.
#[derive(Clone, Copy)]
pub struct Definition {
    exponent_bits: u32,
    mantissa_bits: u32,
    bias: i32,
    /// e4m3fn keeps its largest exponent for numbers and has one NaN per sign.
    finite_only: bool,
}

pub fn definition(dtype: DType) -> Definition {
    let (exponent_bits, mantissa_bits, bias, finite_only) = match dtype {
        DType::F32 => (8, 23, 127, false),
        DType::Bf16 => (8, 7, 127, false),
        DType::F16 => (5, 10, 15, false),
        DType::E4m3 => (4, 3, 7, true),
        DType::E5m2 => (5, 2, 15, false),
        DType::I32 | DType::I64 => panic!("{dtype} is not a floating-point format"),
    };
    Definition { exponent_bits, mantissa_bits, bias, finite_only }
}

impl Definition {
    /// Bits of a code without its sign.
    pub fn magnitude_bits(self) -> u32 {
        self.exponent_bits + self.mantissa_bits
    }

    /// The value of a code.
    pub fn decode(self, code: u32) -> f64 {
        let sign = if code >> self.magnitude_bits() & 1 == 1 { -1.0 } else { 1.0 };
        let exponent = code >> self.mantissa_bits & ((1 << self.exponent_bits) - 1);
        let mantissa = code & ((1 << self.mantissa_bits) - 1);
        let top = exponent == (1 << self.exponent_bits) - 1;
        if top && self.finite_only && mantissa == (1 << self.mantissa_bits) - 1 {
            return f64::NAN.copysign(sign);
        }
        if top && !self.finite_only {
            return if mantissa == 0 { sign * f64::INFINITY } else { f64::NAN.copysign(sign) };
        }
        let unit = 1_i32 - self.bias - self.mantissa_bits as i32;
        if exponent == 0 {
            return sign * f64::from(mantissa) * 2_f64.powi(unit);
        }
        sign * f64::from(mantissa + (1 << self.mantissa_bits)) * 2_f64.powi(unit + exponent as i32 - 1)
    }

    /// Codes of all finite magnitudes: 0 up to the largest.
    pub fn largest_code(self) -> u32 {
        let all = (1 << self.magnitude_bits()) - 1;
        if self.finite_only { all - 1 } else { all - (1 << self.mantissa_bits) }
    }

    /// The nearest code, ties to even, found by bisection over the codes. fp8 saturates, wider formats overflow to infinity.
    pub fn encode(self, x: f64) -> u32 {
        let sign = u32::from(x.is_sign_negative()) << self.magnitude_bits();
        let magnitude = x.abs();
        let largest = self.largest_code();
        if x.is_nan() {
            let quiet = largest + 1 + (1 << (self.mantissa_bits - 1));
            let all = (1 << self.magnitude_bits()) - 1;
            return sign | if self.magnitude_bits() == 7 { all } else { quiet };
        }
        let (mut low, mut high) = (0, largest);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if self.decode(middle) <= magnitude { low = middle } else { high = middle - 1 }
        }
        let below = self.decode(low);
        let step = if low == 0 { self.decode(1) } else { below - self.decode(low - 1) };
        let above = if low == largest { below + step } else { self.decode(low + 1) };
        let up =
            magnitude - below > above - magnitude || (magnitude - below == above - magnitude && low & 1 == 1);
        let saturates = self.magnitude_bits() == 7;
        if low == largest && up {
            return sign | if saturates { largest } else { largest + 1 };
        }
        sign | (low + u32::from(up))
    }
}

/// The bytes of values in a format.
pub fn encode_all(dtype: DType, values: impl IntoIterator<Item = f64>) -> Vec<u8> {
    let definition = definition(dtype);
    let mut bytes = Vec::new();
    for x in values {
        bytes.extend_from_slice(&definition.encode(x).to_le_bytes()[..dtype.size_bytes() as usize]);
    }
    bytes
}

/// The values of bytes in a format.
pub fn decode_all(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let definition = definition(dtype);
    bytes
        .chunks_exact(dtype.size_bytes() as usize)
        .map(|code| {
            let mut word = [0; 4];
            word[..code.len()].copy_from_slice(code);
            definition.decode(u32::from_le_bytes(word))
        })
        .collect()
}

/// A small repeatable generator (xorshift), for inputs only.
pub struct Random(pub u64);

impl Random {
    /// The next 32 bits.
    pub fn bits(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as u32
    }

    /// Uniform in [-1, 1).
    pub fn value(&mut self) -> f64 {
        f64::from(self.bits()) / f64::from(u32::MAX) * 2.0 - 1.0
    }

    /// Uniform in 0..n.
    pub fn below(&mut self, n: usize) -> usize {
        self.bits() as usize % n
    }
}

/// A causal bf16 prefill of two requests, ten rows each over up to 64 keys, four heads over two, without options; for tests
/// that vary some fields.
pub fn plain_shape() -> AttentionShape {
    AttentionShape {
        q_dtype: DType::Bf16,
        kv_dtype: DType::Bf16,
        total_q: 20,
        num_q_heads: 4,
        num_kv_heads: 2,
        head_dim_k: 64,
        head_dim_v: 64,
        num_pages: 8,
        page_size: 16,
        num_requests: 2,
        block_table_width: 4,
        max_query_len: 10,
        max_seq_len: 64,
        causal: true,
        windowed: false,
        softcap: false,
        alibi: false,
        sinks: false,
        lse: false,
        row_alignment: 16,
        cache_alignment: 16,
    }
}
