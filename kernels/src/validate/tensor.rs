//! Checks of one tensor: type, shape, strides, alignment, and that it stays inside its allocation.

use crate::args::Scale;
use crate::error::ArgumentError;
use crate::tensor::{DType, DeviceTensor};

/// One tensor argument under its name.
pub(super) struct Checked<'a> {
    pub(super) name: &'static str,
    pub(super) tensor: &'a DeviceTensor,
}

impl<'a> Checked<'a> {
    pub(super) fn new(name: &'static str, tensor: &'a DeviceTensor) -> Self {
        Self { name, tensor }
    }

    fn error(&self, part: &str, value: impl ToString, accepted: impl Into<String>) -> ArgumentError {
        ArgumentError::new(format!("{}{part}", self.name), value, accepted)
    }

    pub(super) fn dtype(&self, accepted: &[DType]) -> Result<(), ArgumentError> {
        if accepted.contains(&self.tensor.dtype) {
            return Ok(());
        }
        let names: Vec<_> = accepted.iter().map(|dtype| dtype.name()).collect();
        Err(self.error(".dtype", self.tensor.dtype, names.join(", ")))
    }

    pub(super) fn rank(&self, rank: usize, axes: &str) -> Result<(), ArgumentError> {
        let shape = &self.tensor.shape;
        if shape.len() != rank {
            return Err(self.error(".shape", format!("{shape:?}"), format!("{rank} axes, {axes}")));
        }
        if self.tensor.strides.len() != rank {
            return Err(self.error(
                ".strides",
                format!("{:?}", self.tensor.strides),
                format!("{rank} strides, {axes}"),
            ));
        }
        Ok(())
    }

    pub(super) fn shape(&self, accepted: &[u64], axes: &str) -> Result<(), ArgumentError> {
        self.rank(accepted.len(), axes)?;
        if self.tensor.shape == accepted {
            return Ok(());
        }
        Err(self.error(".shape", format!("{:?}", self.tensor.shape), format!("{accepted:?}, {axes}")))
    }

    /// [`Self::extent_strided`], and rows along the last axis are contiguous.
    pub(super) fn extent(&self) -> Result<(), ArgumentError> {
        if self.tensor.shape.last().is_some_and(|extent| *extent > 1)
            && self.tensor.strides.last() != Some(&1)
        {
            return Err(self.error(".strides", format!("{:?}", self.tensor.strides), "a last stride of 1"));
        }
        self.extent_strided()
    }

    /// Extents fit a kernel's 32-bit integers, no stride is negative, the first and the last byte lie in the allocation,
    /// and elements are aligned.
    pub(super) fn extent_strided(&self) -> Result<(), ArgumentError> {
        let tensor = self.tensor;
        if let Some(extent) = tensor.shape.iter().find(|extent| **extent > i32::MAX as u64) {
            return Err(self.error(".shape", extent, "extents of at most 2147483647"));
        }
        if tensor.is_empty() {
            return Ok(());
        }
        let strides = || format!("{:?}", tensor.strides);
        if tensor.strides.iter().any(|stride| *stride < 0) {
            return Err(self.error(".strides", strides(), "strides of 0 or more"));
        }
        let size = tensor.dtype.size_bytes();
        let last = self
            .last_element()
            .ok_or_else(|| self.error(".strides", strides(), "strides whose span fits 63 bits"))?;
        let end =
            last.checked_add(1).and_then(|n| n.checked_mul(size)).and_then(|n| n.checked_add(tensor.offset));
        let end =
            end.ok_or_else(|| self.error(".offset", tensor.offset, "an offset whose span fits 64 bits"))?;
        if tensor.allocation.ptr.is_null() {
            return Err(self.error(".allocation", "null", "a device address"));
        }
        if end > tensor.allocation.bytes {
            let accepted = format!("a view within the {} bytes of its allocation", tensor.allocation.bytes);
            return Err(self.error("", format!("a view of bytes {}..{end}", tensor.offset), accepted));
        }
        if tensor.allocation.ptr.0.checked_add(end).is_none() {
            return Err(self.error(
                ".allocation",
                tensor.allocation.ptr.0,
                "an address range within 64 bits",
            ));
        }
        if !tensor.ptr().0.is_multiple_of(size) {
            return Err(self.error(
                ".offset",
                tensor.offset,
                format!("an address that is a multiple of {size}"),
            ));
        }
        Ok(())
    }

    /// Index of the last element, in elements from the first; `None` on overflow.
    fn last_element(&self) -> Option<u64> {
        let axes = self.tensor.shape.iter().zip(&self.tensor.strides);
        axes.into_iter().try_fold(0_u64, |sum, (extent, stride)| {
            sum.checked_add(stride.unsigned_abs().checked_mul(*extent - 1)?).filter(|sum| *sum < 1 << 62)
        })
    }

    /// No two elements of a tensor that is written share an address: from the smallest stride up, each axis steps over
    /// everything that the ones before it span.
    pub(super) fn distinct(&self) -> Result<(), ArgumentError> {
        if self.tensor.is_empty() {
            return Ok(());
        }
        let mut axes: Vec<(u64, u64)> = self
            .tensor
            .shape
            .iter()
            .zip(&self.tensor.strides)
            .filter(|(extent, _)| **extent > 1)
            .map(|(extent, stride)| (stride.unsigned_abs(), *extent))
            .collect();
        axes.sort_unstable();
        let mut span = 1_u64;
        for (stride, extent) in axes {
            if stride < span {
                let accepted = "strides under which no two elements share an address";
                return Err(self.error(".strides", format!("{:?}", self.tensor.strides), accepted));
            }
            span = span.saturating_add(stride.saturating_mul(extent - 1));
        }
        Ok(())
    }
}

/// A contiguous tensor of known type and shape, such as metadata or a per-head vector.
pub(super) fn check_vector(
    name: &'static str,
    tensor: &DeviceTensor,
    dtype: DType,
    shape: &[u64],
    axes: &str,
) -> Result<(), ArgumentError> {
    let checked = Checked::new(name, tensor);
    checked.dtype(&[dtype])?;
    checked.shape(shape, axes)?;
    checked.extent()
}

/// A scale of stored codes.
pub(super) fn check_scale(name: &'static str, scale: &Scale, num_kv_heads: u64) -> Result<(), ArgumentError> {
    match scale {
        Scale::PerTensor(value) if value.is_finite() && *value > 0.0 => Ok(()),
        Scale::PerTensor(value) => Err(ArgumentError::new(name, value, "a finite number above 0")),
        Scale::PerHead(tensor) => {
            let axes = "one scale per KV head [num_kv_heads]; a scale per page is not supported";
            check_vector(name, tensor, DType::F32, &[num_kv_heads], axes)
        }
    }
}
