//! Tensors in device memory: views of an allocation by offset, shape and strides.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::device::DevicePtr;
use crate::error::ArgumentError;

/// Element types that a kernel argument can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE binary32.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    F16,
    /// fp8 e4m3fn: no infinity, largest value 448.
    E4m3,
    /// fp8 e5m2: largest finite value 57344.
    E5m2,
    /// 32-bit signed integer.
    I32,
    /// 64-bit signed integer.
    I64,
}

impl DType {
    /// Formats that a KV cache can have.
    pub const CACHE: [Self; 5] = [Self::F32, Self::Bf16, Self::F16, Self::E4m3, Self::E5m2];
    /// Formats that queries, outputs and the rows to store can have.
    pub const MODEL: [Self; 3] = [Self::F32, Self::Bf16, Self::F16];

    /// Bytes of one element.
    #[must_use]
    pub fn size_bytes(self) -> u64 {
        match self {
            Self::E4m3 | Self::E5m2 => 1,
            Self::Bf16 | Self::F16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::I64 => 8,
        }
    }

    /// The name used in case lines and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::E4m3 => "e4m3",
            Self::E5m2 => "e5m2",
            Self::I32 => "i32",
            Self::I64 => "i64",
        }
    }

    /// Whether this is an 8-bit float, the only formats that are stored with a scale.
    #[must_use]
    pub fn is_fp8(self) -> bool {
        matches!(self, Self::E4m3 | Self::E5m2)
    }

    /// The type of `formats.cuh` that reads and writes it; `None` for integers.
    pub(crate) fn codec(self) -> Option<&'static str> {
        match self {
            Self::F32 => Some("F32"),
            Self::Bf16 => Some("Bf16"),
            Self::F16 => Some("F16"),
            Self::E4m3 => Some("E4m3"),
            Self::E5m2 => Some("E5m2"),
            Self::I32 | Self::I64 => None,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = ArgumentError;

    fn from_str(name: &str) -> Result<Self, ArgumentError> {
        let all = [Self::F32, Self::Bf16, Self::F16, Self::E4m3, Self::E5m2, Self::I32, Self::I64];
        all.into_iter().find(|dtype| dtype.name() == name).ok_or_else(|| {
            ArgumentError::new("dtype", name, "f32, bf16, f16, e4m3 (e4m3fn), e5m2, i32 or i64")
        })
    }
}

/// One allocation of a device, as [`crate::device::Device::alloc`] returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Its first byte.
    pub ptr: DevicePtr,
    /// Its size in bytes.
    pub bytes: u64,
}

/// A strided view of an allocation. It owns nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceTensor {
    /// Where the elements lie; launches refuse a view that leaves it.
    pub allocation: Allocation,
    /// Offset of the first element, in bytes.
    pub offset: u64,
    /// Element type.
    pub dtype: DType,
    /// Extents, outermost first.
    pub shape: Vec<u64>,
    /// Distance of neighbours along each axis, in elements.
    pub strides: Vec<i64>,
}

impl DeviceTensor {
    /// A row-major view from the start of an allocation.
    #[must_use]
    pub fn contiguous(allocation: Allocation, dtype: DType, shape: &[u64]) -> Self {
        let mut strides = vec![1_i64; shape.len()];
        for axis in (1..shape.len()).rev() {
            let extent = i64::try_from(shape[axis]).unwrap_or(i64::MAX);
            strides[axis - 1] = strides[axis].saturating_mul(extent);
        }
        Self { allocation, offset: 0, dtype, shape: shape.to_vec(), strides }
    }

    /// A view with given strides (in elements), `offset` bytes into an allocation.
    #[must_use]
    pub fn strided(
        allocation: Allocation,
        offset: u64,
        dtype: DType,
        shape: &[u64],
        strides: &[i64],
    ) -> Self {
        Self { allocation, offset, dtype, shape: shape.to_vec(), strides: strides.to_vec() }
    }

    /// Address of the first element. Meaningful once the view has been validated.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        DevicePtr(self.allocation.ptr.0.wrapping_add(self.offset))
    }

    /// Whether the view has no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// The largest power of two, at most 16, of which the first element's address and the addresses of all rows along the
    /// innermost axis are multiples, in bytes.
    pub(crate) fn row_alignment(&self) -> u64 {
        let size = self.dtype.size_bytes();
        let outer = self.shape.len().saturating_sub(1);
        let strides = self.shape.iter().zip(&self.strides).take(outer);
        let bits = strides
            .filter(|(extent, _)| **extent > 1)
            .fold(self.ptr().0, |bits, (_, stride)| bits | stride.unsigned_abs().wrapping_mul(size));
        1 << bits.trailing_zeros().min(4)
    }
}
