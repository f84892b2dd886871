//! Launch of `store.cu`: `reshape_and_cache`.

use crate::args::{Scale, StoreArgs};
use crate::device::{DeviceRef, LaunchConfig, StreamId};
use crate::error::LaunchError;
use crate::params::{KernelParams, extent, scale_fields};
use crate::source::KernelSpec;
use crate::tensor::{DType, DeviceTensor};
use crate::validate::validate_store;

const FILE: &str = "store.cu";
const ENTRY: &str = "reshape_and_cache";
const THREADS: u32 = 128;

/// `StoreSide` of `store.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct StoreSide {
    source: u64,
    cache: u64,
    scales: u64,
    /// Token, head.
    source_strides: [i64; 2],
    /// Page, slot, head.
    cache_strides: [i64; 3],
    scale: f32,
    head_dim: i32,
    quads_aligned: i32,
    reserved: i32,
}

/// `StoreParams` of `store.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct StoreParams {
    k: StoreSide,
    v: StoreSide,
    slot_mapping: u64,
    num_kv_heads: i32,
    page_size: i32,
}

const _: () = assert!(size_of::<StoreSide>() == 8 * 8 + 4 * 4 && size_of::<StoreParams>() == 2 * 80 + 16);
// SAFETY: `repr(C)`, numbers only, and the sizes above leave no padding.
unsafe impl KernelParams for StoreParams {}

impl StoreSide {
    fn new(source: &DeviceTensor, cache: &DeviceTensor, scale: &Scale) -> Self {
        let (scale, scales) = scale_fields(scale);
        let head_dim = source.shape[2];
        let quad = |tensor: &DeviceTensor| tensor.row_alignment() >= 4 * tensor.dtype.size_bytes();
        Self {
            source: source.ptr().0,
            cache: cache.ptr().0,
            scales,
            source_strides: [source.strides[0], source.strides[1]],
            cache_strides: [cache.strides[0], cache.strides[1], cache.strides[2]],
            scale,
            head_dim: extent(head_dim),
            quads_aligned: i32::from(head_dim.is_multiple_of(4) && quad(source) && quad(cache)),
            reserved: 0,
        }
    }
}

/// The compiled instance for a pair of formats.
pub(crate) fn instance(source: DType, kv: DType) -> KernelSpec {
    let codec =
        |dtype: DType| dtype.codec().expect("validation admits floating-point formats only").to_owned();
    let defines = vec![("SOURCE_FORMAT", codec(source)), ("KV_FORMAT", codec(kv))];
    KernelSpec { file: FILE, entry: ENTRY, defines }
}

/// Puts a store of new keys and values on a stream. The tensors must stay alive until the stream has passed it.
///
/// # Errors
/// [`LaunchError::Argument`] before anything is queued; [`LaunchError::Device`] for what the device reports.
pub fn reshape_and_cache(device: &DeviceRef, stream: StreamId, args: &StoreArgs) -> Result<(), LaunchError> {
    let shape = validate_store(args)?;
    if shape.num_stored == 0 {
        return Ok(());
    }
    let params = StoreParams {
        k: StoreSide::new(&args.k, &args.cache.k, &args.cache.k_scale),
        v: StoreSide::new(&args.v, &args.cache.v, &args.cache.v_scale),
        slot_mapping: args.slot_mapping.ptr().0,
        num_kv_heads: extent(shape.num_kv_heads),
        page_size: extent(shape.page_size),
    };
    let blocks = u32::try_from(shape.num_stored).expect("validation bounds every extent by i32::MAX");
    let config = LaunchConfig { grid: [blocks, 1, 1], block: [THREADS, 1, 1], shared_bytes: 0 };
    let kernel = device.load_kernel(&instance(shape.source_dtype, shape.kv_dtype))?;
    device.launch(kernel, config, params.bytes(), stream)?;
    Ok(())
}
