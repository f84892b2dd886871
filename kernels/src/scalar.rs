//! Launch of `scalar.cu`: flash attention on CUDA cores.

use crate::args::AttentionArgs;
use crate::arm::Arm;
use crate::device::{DeviceRef, LaunchConfig, StreamId};
use crate::error::{ArgumentError, LaunchError, Unsupported};
use crate::params::{AttentionParams, KernelParams, extent};
use crate::source::KernelSpec;
use crate::tensor::{DType, DeviceTensor};
use crate::validate::AttentionShape;

const FILE: &str = "scalar.cu";
const ENTRY: &str = "scalar_attention";
const THREADS: u32 = 128;
/// Packed rows (query position x query head of a KV head) of one thread block.
const ROWS: u64 = 16;
/// Keys of a tile, longest first. The last fits all head dims.
const KEY_TILES: [u64; 3] = [64, 32, 16];
const MAX_KEY_GROUPS: u64 = 32;
const MAX_HEAD_DIM: u64 = 512;
/// Shared memory that every supported card offers one block (sm_86, sm_89 and sm_120 are the smallest). The tile length follows from it
/// and not from the card at hand, so that results do not depend on the card.
const SHARED_BUDGET: u64 = 99 * 1024;

/// `ScalarParams` of `scalar.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct ScalarParams {
    attention: AttentionParams,
    row_tiles: i32,
    key_tile: i32,
    k_copy_bytes: i32,
    v_copy_bytes: i32,
    k_row_bytes: i32,
    v_row_bytes: i32,
    q_quads_aligned: i32,
    out_quads_aligned: i32,
    v_tile_offset: i32,
    k_tile_offset: i32,
}

const _: () = assert!(size_of::<ScalarParams>() == size_of::<AttentionParams>() + 10 * 4);
// SAFETY: `repr(C)`, numbers only, and the size above leaves no padding.
unsafe impl KernelParams for ScalarParams {}

/// Where things lie in a block's shared memory. Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SharedLayout {
    key_tile: u64,
    k_row_bytes: u64,
    v_row_bytes: u64,
    v_tile_offset: u64,
    k_tile_offset: u64,
    bytes: u64,
}

impl SharedLayout {
    fn with_tile(shape: &AttentionShape, key_tile: u64) -> Self {
        let size = shape.kv_dtype.size_bytes();
        // Neighbouring lanes read the same column of neighbouring key rows: an odd number of 16-byte units between
        // rows spreads them over all banks.
        let k_row_bytes = ((shape.head_dim_k * size).div_ceil(16) | 1) * 16;
        let v_row_bytes = (shape.head_dim_v * size).next_multiple_of(16);
        let queries = ROWS * shape.head_dim_k * 4;
        let probabilities = key_tile * ROWS * 4;
        let row_values = 2 * ROWS * 4;
        let v_tile_offset = queries + probabilities + row_values;
        let k_tile_offset = v_tile_offset + key_tile * v_row_bytes;
        // The sums of the key groups, 16 rows x head_dim_v in f32 each, take the place of the K tile at the end.
        let groups = (u64::from(THREADS) / (shape.head_dim_v / 4)).min(MAX_KEY_GROUPS);
        let partials = groups * ROWS * shape.head_dim_v * 4;
        let bytes = k_tile_offset + partials.max(key_tile * k_row_bytes);
        Self { key_tile, k_row_bytes, v_row_bytes, v_tile_offset, k_tile_offset, bytes }
    }

    /// The longest tile within the budget.
    fn new(shape: &AttentionShape) -> Self {
        let layouts = KEY_TILES.map(|key_tile| Self::with_tile(shape, key_tile));
        *layouts
            .iter()
            .find(|layout| layout.bytes <= SHARED_BUDGET)
            .expect("a tile fits what the arm supports")
    }
}

/// What the scalar arm serves: every format, mask and option; head dims in steps of 8 up to 512.
pub(crate) fn supports(shape: &AttentionShape) -> Result<(), Unsupported> {
    for (name, dim) in [("head_dim_k", shape.head_dim_k), ("head_dim_v", shape.head_dim_v)] {
        if dim % 8 != 0 || dim > MAX_HEAD_DIM {
            return Err(Unsupported {
                arm: Arm::Scalar,
                what: format!("{name} {dim}"),
                accepted: format!("multiples of 8 up to {MAX_HEAD_DIM}"),
            });
        }
    }
    Ok(())
}

/// The compiled instance for a pair of formats.
pub(crate) fn spec(q: DType, kv: DType) -> KernelSpec {
    let codec =
        |dtype: DType| dtype.codec().expect("validation admits floating-point formats only").to_owned();
    KernelSpec { file: FILE, entry: ENTRY, defines: vec![("Q_FORMAT", codec(q)), ("KV_FORMAT", codec(kv))] }
}

/// The widest copy that suits every row of a cache tensor.
fn copy_bytes(tensor: &DeviceTensor) -> i32 {
    let row = tensor.shape[3] * tensor.dtype.size_bytes();
    extent(tensor.row_alignment().min(1 << row.trailing_zeros()))
}

/// Whether four consecutive elements of any row can be moved by one access.
fn quads_aligned(tensor: &DeviceTensor) -> i32 {
    i32::from(tensor.row_alignment() >= 4 * tensor.dtype.size_bytes())
}

/// Queues a validated, supported, non-empty call.
pub(crate) fn launch(
    device: &DeviceRef,
    stream: StreamId,
    args: &AttentionArgs,
    shape: &AttentionShape,
) -> Result<Vec<&'static str>, LaunchError> {
    let row_tiles = (shape.max_query_len * shape.group()).div_ceil(ROWS);
    let blocks = row_tiles.saturating_mul(shape.num_kv_heads).saturating_mul(shape.num_requests);
    if blocks > i32::MAX as u64 {
        let value =
            format!("{} requests of up to {} rows: {blocks} blocks", shape.num_requests, shape.max_query_len);
        return Err(ArgumentError::new("max_query_len", value, "at most 2147483647 blocks in all").into());
    }
    let layout = SharedLayout::new(shape);
    let params = ScalarParams {
        attention: AttentionParams::new(args, shape),
        row_tiles: extent(row_tiles),
        key_tile: extent(layout.key_tile),
        k_copy_bytes: copy_bytes(&args.cache.k),
        v_copy_bytes: copy_bytes(&args.cache.v),
        k_row_bytes: extent(layout.k_row_bytes),
        v_row_bytes: extent(layout.v_row_bytes),
        q_quads_aligned: quads_aligned(&args.q),
        out_quads_aligned: quads_aligned(&args.out),
        v_tile_offset: extent(layout.v_tile_offset),
        k_tile_offset: extent(layout.k_tile_offset),
    };
    let config = LaunchConfig {
        grid: [u32::try_from(blocks).expect("bounded above"), 1, 1],
        block: [THREADS, 1, 1],
        shared_bytes: u32::try_from(layout.bytes).expect("bounded by the budget"),
    };
    let kernel = device.load_kernel(&spec(shape.q_dtype, shape.kv_dtype))?;
    device.launch(kernel, config, params.bytes(), stream)?;
    Ok(vec![ENTRY])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DevicePtr;
    use crate::tensor::Allocation;

    /// A cache whose first row starts `offset` bytes after a multiple of 16, and whose rows are `stride` elements apart.
    fn cache(dtype: DType, head_dim: u64, stride: i64, offset: u64) -> DeviceTensor {
        let allocation = Allocation { ptr: DevicePtr(0x10000), bytes: 1 << 20 };
        let shape = [2, 4, 2, head_dim];
        DeviceTensor::strided(allocation, offset, dtype, &shape, &[8 * stride, 2 * stride, stride, 1])
    }

    #[test]
    fn copies_are_as_wide_as_every_row_allows() {
        assert_eq!(copy_bytes(&cache(DType::Bf16, 64, 64, 0)), 16);
        assert_eq!(copy_bytes(&cache(DType::Bf16, 64, 64, 8)), 8);
        assert_eq!(copy_bytes(&cache(DType::Bf16, 64, 66, 0)), 4);
        // Rows of 24 bytes are three copies of 8, however far apart.
        assert_eq!(copy_bytes(&cache(DType::Bf16, 12, 16, 0)), 8);
        assert_eq!(copy_bytes(&cache(DType::E4m3, 8, 16, 0)), 8);
        assert_eq!(copy_bytes(&cache(DType::E5m2, 64, 67, 1)), 1);
    }

    #[test]
    fn four_elements_move_at_once_where_every_row_is_aligned_to_them() {
        for (dtype, quad) in [(DType::F32, 16), (DType::Bf16, 8), (DType::F16, 8), (DType::E4m3, 4)] {
            assert_eq!(quads_aligned(&cache(dtype, 64, 64, quad)), 1, "{dtype}");
            assert_eq!(quads_aligned(&cache(dtype, 64, 64, quad / 2)), 0, "{dtype}");
        }
    }

    #[test]
    fn shared_memory_fits_every_card_for_every_head_dim_and_format() {
        let mut tiles = std::collections::BTreeSet::new();
        for kv_dtype in DType::CACHE {
            for head_dim_k in (8..=MAX_HEAD_DIM).step_by(8) {
                for head_dim_v in (8..=MAX_HEAD_DIM).step_by(8) {
                    let shape =
                        AttentionShape { kv_dtype, head_dim_k, head_dim_v, ..AttentionShape::example() };
                    let layout = SharedLayout::new(&shape);
                    assert!(
                        layout.bytes <= SHARED_BUDGET,
                        "{kv_dtype} {head_dim_k} {head_dim_v}: {layout:?}"
                    );
                    assert_eq!((layout.v_tile_offset % 16, layout.k_tile_offset % 16), (0, 0));
                    tiles.insert(layout.key_tile);
                }
            }
        }
        assert_eq!(tiles, KEY_TILES.into(), "each length serves some head dims");
    }
}
