//! What a foreign kernel says about itself, checked and owned.

use std::ffi::CStr;

use serde::{Deserialize, Serialize};

use super::types::{self, KernelInfo};
use crate::tensor::DType;

/// Where a foreign kernel wants its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ForeignDevice {
    /// In host memory.
    Host,
    /// In the memory of the current CUDA context.
    Cuda,
}

/// What a foreign kernel is and serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeignInfo {
    /// Its name.
    pub name: String,
    /// Where its tensors lie.
    pub device: ForeignDevice,
    /// Layout bits of the header.
    pub layouts: u32,
    /// Option bits of the header.
    pub options: u32,
    /// Whether it promises that a request's bits do not depend on the rest of the call.
    pub batch_invariant: bool,
    /// Formats of queries, each with the cache formats that attention serves it with.
    pub attention: Vec<(DType, Vec<DType>)>,
    /// Formats of new rows, each with the cache formats that the store writes.
    pub store: Vec<(DType, Vec<DType>)>,
    /// Exactly these head dims, if there are any.
    pub head_dims: Vec<u64>,
    /// Else multiples of this ...
    pub head_dim_step: u64,
    /// ... up to this.
    pub head_dim_max: u64,
    /// Exactly these page sizes, if there are any.
    pub page_sizes: Vec<u64>,
    /// Bytes to which every cache row must be aligned.
    pub cache_alignment: u64,
    /// Most query heads per KV head; 0 is any number.
    pub max_group: u64,
}

/// An answer of `attest_info` that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InfoError {
    /// It failed.
    #[error("attest_info returned {0}; accepted: 0 (ATTEST_OK)")]
    Failed(i32),
    /// The kernel was built against another header.
    #[error(
        "struct version: the kernel was built for version {version} of attest_kernel.h with an attest_kernel_info of {size} bytes; accepted: version {}, {} bytes (`attest header` prints it)",
        types::ABI_VERSION,
        size_of::<KernelInfo>()
    )]
    Version {
        /// Version that it set.
        version: u32,
        /// Size that it set.
        size: u32,
    },
    /// A field makes no sense.
    #[error("attest_kernel_info.{field} is {value}; accepted: {accepted}")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// What would be accepted.
        accepted: &'static str,
    },
}

fn field(field: &'static str, value: impl ToString, accepted: &'static str) -> InfoError {
    InfoError::Field { field, value: value.to_string(), accepted }
}

/// The element type of a tag of the header.
#[must_use]
pub fn dtype_of_tag(tag: u32) -> Option<DType> {
    DTYPES.iter().find(|(_, known)| *known == tag).map(|(dtype, _)| *dtype)
}

/// The header's tag of an element type.
#[must_use]
pub fn tag_of_dtype(dtype: DType) -> u32 {
    DTYPES.iter().find(|(known, _)| *known == dtype).map_or(0, |(_, tag)| *tag)
}

const DTYPES: [(DType, u32); 7] = [
    (DType::F32, types::F32),
    (DType::Bf16, types::BF16),
    (DType::F16, types::F16),
    (DType::E4m3, types::E4M3),
    (DType::E5m2, types::E5M2),
    (DType::I32, types::I32),
    (DType::I64, types::I64),
];

impl ForeignInfo {
    /// Reads what a kernel filled in.
    ///
    /// # Errors
    /// A version, size or field that makes no sense.
    ///
    /// # Safety
    /// `raw.name` is null or a NUL-terminated string.
    pub unsafe fn read(raw: &KernelInfo) -> Result<Self, InfoError> {
        let own_size = size_of::<KernelInfo>() as u32;
        if (raw.version, raw.struct_size) != (types::ABI_VERSION, own_size) {
            return Err(InfoError::Version { version: raw.version, size: raw.struct_size });
        }
        if raw.name.is_null() {
            return Err(field("name", "NULL", "a NUL-terminated string"));
        }
        // SAFETY: the caller promises a terminated string.
        let name = unsafe { CStr::from_ptr(raw.name) }.to_string_lossy().into_owned();
        let device = match raw.device {
            types::DEVICE_HOST => ForeignDevice::Host,
            types::DEVICE_CUDA => ForeignDevice::Cuda,
            other => {
                return Err(field("device", other, "ATTEST_DEVICE_HOST (1) or ATTEST_DEVICE_CUDA (2)"));
            }
        };
        let head_dims = list("head_dims", &raw.head_dims)?;
        let (head_dim_step, head_dim_max) = if head_dims.is_empty() {
            let at_least_1 = "1 or more, or a list in head_dims";
            (
                positive("head_dim_step", raw.head_dim_step, at_least_1)?,
                positive("head_dim_max", raw.head_dim_max, at_least_1)?,
            )
        } else {
            (1, 0)
        };
        let info = Self {
            name,
            device,
            layouts: raw.layouts,
            options: raw.options,
            batch_invariant: raw.promises & types::BATCH_INVARIANT != 0,
            attention: pairs("attention_caches", &raw.attention_caches)?,
            store: pairs("store_caches", &raw.store_caches)?,
            head_dims,
            head_dim_step,
            head_dim_max,
            page_sizes: list("page_sizes", &raw.page_sizes)?,
            cache_alignment: positive("cache_alignment", raw.cache_alignment, "1 or more")?,
            max_group: u64::try_from(raw.max_group)
                .map_err(|_| field("max_group", raw.max_group, "0 (any) or more"))?,
        };
        info.serves_something()
    }

    fn serves_something(self) -> Result<Self, InfoError> {
        if self.attention.is_empty() && self.store.is_empty() {
            return Err(field(
                "attention_caches",
                "all 0",
                "a bit for at least one format, here or in store_caches",
            ));
        }
        if self.layouts & (types::NHD | types::HND) == 0 {
            return Err(field(
                "layouts",
                self.layouts,
                "ATTEST_NHD (1), ATTEST_HND (2) or both, and further bits",
            ));
        }
        if !self.attention.is_empty() && self.options & (types::CAN_CAUSAL | types::CAN_FULL) == 0 {
            return Err(field(
                "options",
                self.options,
                "ATTEST_CAN_CAUSAL (1), ATTEST_CAN_FULL (1024) or both, and further bits",
            ));
        }
        Ok(self)
    }

    /// Whether all of these option bits are set.
    #[must_use]
    pub fn can(&self, options: u32) -> bool {
        self.options & options == options
    }

    /// Whether a head dim is served.
    #[must_use]
    pub fn serves_dim(&self, dim: u64) -> bool {
        match self.head_dims.is_empty() {
            true => dim > 0 && dim.is_multiple_of(self.head_dim_step) && dim <= self.head_dim_max,
            false => self.head_dims.contains(&dim),
        }
    }
}

fn positive(name: &'static str, value: i64, accepted: &'static str) -> Result<u64, InfoError> {
    u64::try_from(value).ok().filter(|value| *value > 0).ok_or_else(|| field(name, value, accepted))
}

fn list(name: &'static str, values: &[i64]) -> Result<Vec<u64>, InfoError> {
    let used = values.iter().take_while(|value| **value != 0);
    let read = used.map(|value| positive(name, *value, "numbers above 0, then 0"));
    read.collect()
}

fn pairs(name: &'static str, masks: &[u32; 8]) -> Result<Vec<(DType, Vec<DType>)>, InfoError> {
    let mut all = Vec::new();
    for (tag, mask) in masks.iter().enumerate().filter(|(_, mask)| **mask != 0) {
        let row = dtype_of_tag(tag as u32).filter(|dtype| DType::MODEL.contains(dtype));
        let row = row.ok_or_else(|| {
            field(name, format!("{mask:#x} at index {tag}"), "bits at the index of f32, bf16 or f16")
        })?;
        let known: u32 = DType::CACHE.iter().map(|dtype| 1 << tag_of_dtype(*dtype)).sum();
        if mask & !known != 0 {
            return Err(field(
                name,
                format!("{mask:#x}"),
                "bits (1u << dtype) of f32, bf16, f16, e4m3 and e5m2",
            ));
        }
        let caches = DType::CACHE.into_iter().filter(|dtype| mask & (1 << tag_of_dtype(*dtype)) != 0);
        all.push((row, caches.collect()));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw() -> KernelInfo {
        let mut attention_caches = [0; 8];
        attention_caches[types::BF16 as usize] = 1 << types::BF16 | 1 << types::E4M3;
        KernelInfo {
            struct_size: size_of::<KernelInfo>() as u32,
            version: types::ABI_VERSION,
            name: c"one".as_ptr(),
            device: types::DEVICE_HOST,
            layouts: types::NHD,
            options: types::CAN_CAUSAL,
            promises: 0,
            attention_caches,
            store_caches: [0; 8],
            head_dim_step: 8,
            head_dim_max: 64,
            head_dims: [0; 16],
            page_sizes: [0; 16],
            cache_alignment: 1,
            max_group: 0,
        }
    }

    fn read(change: impl FnOnce(&mut KernelInfo)) -> Result<ForeignInfo, InfoError> {
        let mut info = raw();
        change(&mut info);
        // SAFETY: the name is a literal or null.
        unsafe { ForeignInfo::read(&info) }
    }

    #[test]
    fn a_sensible_answer_is_understood() {
        let info = read(|_| ()).expect("sensible");
        assert_eq!(info.attention, [(DType::Bf16, vec![DType::Bf16, DType::E4m3])]);
        assert!(info.serves_dim(64) && !info.serves_dim(72) && !info.serves_dim(12) && !info.serves_dim(0));
        let listed = read(|info| info.head_dims[..2].copy_from_slice(&[64, 128])).expect("sensible");
        assert!(listed.serves_dim(128) && !listed.serves_dim(72));
    }

    #[test]
    fn every_senseless_field_is_named() {
        type Change = fn(&mut KernelInfo);
        let cases: [(&str, Change); 11] = [
            ("struct version", |i| i.version = 2),
            ("struct version", |i| i.struct_size -= 8),
            ("name", |i| i.name = std::ptr::null()),
            ("device", |i| i.device = 3),
            ("layouts", |i| i.layouts = types::PADDED),
            ("options", |i| i.options = types::CAN_LSE),
            ("attention_caches", |i| i.attention_caches = [0; 8]),
            ("attention_caches", |i| i.attention_caches[types::E4M3 as usize] = 2),
            ("store_caches", |i| i.store_caches[types::F32 as usize] = 1 << types::I32),
            ("head_dim_step", |i| i.head_dim_step = 0),
            ("cache_alignment", |i| i.cache_alignment = -16),
        ];
        for (named, change) in cases {
            let error = read(change).expect_err(named);
            assert!(error.to_string().contains(named), "{error}");
        }
    }
}
