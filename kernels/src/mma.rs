//! Launch of `mma.cu`, `mma_pairs.cu`, `decode.cu` and `combine.cu`: flash attention on tensor cores, in one pass or split over the keys.

use crate::args::AttentionArgs;
use crate::arm::Arm;
use crate::decode::{DECODE_BLOCKS_PER_MULTIPROCESSOR, DECODE_KEYS, DECODE_ROWS, DecodeGeometry};
use crate::device::{DevicePtr, DeviceRef, LaunchConfig, StreamId};
use crate::error::{ArgumentError, LaunchError, Unsupported};
use crate::paging::{PageDivider, RowSteps};
use crate::params::{AttentionParams, KernelParams, extent, scale_fields};
use crate::route::{Capability, Knobs};
use crate::source::KernelSpec;
use crate::splits::split_count;
use crate::tensor::DType;
use crate::validate::AttentionShape;
use crate::workspace::{Purpose, ScratchSource};

/// Entry of the instances of `mma.cu` and `mma_pairs.cu` that serve long queries.
pub(crate) const PREFILL: &str = "mma_attention";
/// Entry of the instances of `mma.cu` that serve a few rows per request: more than 16 packed rows, or a head dim that
/// `decode.cu` does not have.
pub(crate) const VERIFY: &str = "mma_verify";
/// Entry of `decode.cu`: at most 16 packed rows per request.
pub(crate) const DECODE: &str = "decode_attention";
/// Entry of the kernel that merges splits.
pub(crate) const COMBINE: &str = "combine_splits";
const COMBINE_THREADS: u32 = 256;
/// Four sums of each thread.
const COMBINE_SHARED_BYTES: u32 = COMBINE_THREADS * 16;

/// Head dims with an instance.
pub(crate) const HEAD_DIMS: [u64; 7] = [64, 80, 96, 112, 128, 192, 256];

/// Longest uniform query that is served as a decode.
pub(crate) const MAX_DECODE_QUERY: u64 = 16;

/// How an fp8 cache reaches the tensor cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cast {
    /// It is 16-bit already.
    None,
    /// Decoded by integer arithmetic while a tile is staged.
    Software,
    /// Decoded by the conversion instruction of sm_89 and later.
    Hardware,
}

/// Tile sizes of one launch, chosen so that a block's shared memory fits the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Geometry {
    /// Warps of a block.
    pub warps: u64,
    /// Warps that own the same packed rows: 2 in `mma_pairs.cu`, else 1.
    pub shares: u64,
    /// 16-row tiles of packed rows that each warp owns.
    pub row_tiles: u64,
    /// Keys of a tile.
    pub key_tile: u64,
    /// Dynamic shared memory of a block in bytes.
    pub shared_bytes: u64,
}

/// Tiles whose key rows and pages are held at once: `kRowRing` of `tiles.cuh`.
const ROW_RING: u64 = 4;
/// Shared memory that the hardware keeps for itself, per block, beside what a block asks for.
const RESERVED_BYTES: u64 = 1024;

impl Geometry {
    /// Mirrors `Shared` of `tiles.cuh`.
    fn new(warps: u64, row_tiles: u64, key_tile: u64, head_dim: u64, casts: bool) -> Self {
        let row = 2 * head_dim + 16;
        let (buffers, raw) = if casts { (1, 2 * key_tile * head_dim) } else { (2, 0) };
        let key_rows = ROW_RING * (2 + 1) * key_tile * 4;
        let shared_bytes = key_rows + 16 * row_tiles * warps * row + 2 * buffers * key_tile * row + raw;
        Self { warps, shares: 1, row_tiles, key_tile, shared_bytes }
    }

    /// Mirrors `PairShared` of `mma_pairs.cu`: half as many rows, their weights, and two maxima of each.
    fn pairs(warps: u64, row_tiles: u64, key_tile: u64, head_dim: u64) -> Self {
        let half = Self::new(warps / 2, row_tiles, key_tile, head_dim, false);
        let shared_bytes = half.shared_bytes + half.rows() * (2 * key_tile + 16 + 2 * 4);
        Self { warps, shares: 2, shared_bytes, ..half }
    }

    /// Packed rows of a block.
    #[must_use]
    pub fn rows(&self) -> u64 {
        16 * self.row_tiles * self.warps / self.shares
    }

    /// The preferred geometry that fits `max_shared_bytes`; `None` if none does.
    ///
    /// Few warps where few rows exist. For many rows each matrix fragment of K and V should serve two row tiles. Up to
    /// head_dim 128 the registers of a warp hold the sums of both; beyond, two warps share the rows where a block has the
    /// shared memory for it. Blocks of four warps are preferred where two of them fit a multiprocessor, because one
    /// then multiplies while the other computes weights. Else eight warps with the longest key tile, since every
    /// tile costs a barrier and a pass over the running maximum; then fewer warps.
    #[must_use]
    pub fn choose(packed_rows: u64, head_dim: u64, casts: bool, max_shared_bytes: u64) -> Option<Self> {
        let long = |g: Self| {
            let wanted = match head_dim {
                0..=128 => 2 * (g.shared_bytes + RESERVED_BYTES) <= max_shared_bytes + RESERVED_BYTES,
                _ => g.shared_bytes <= max_shared_bytes,
            };
            (packed_rows > 64 && wanted).then_some(g)
        };
        let preferred = match head_dim {
            0..=128 => long(Self::new(4, 2, 64, head_dim, casts)),
            192 | 256 if !casts => long(Self::pairs(8, 2, 64, head_dim)),
            _ => None,
        };
        let blocks: &[(u64, u64)] = match packed_rows {
            0..=16 => &[(1, 1)],
            17..=64 => &[(4, 1), (1, 1)],
            _ if head_dim <= 128 => &[(8, 2), (8, 1), (4, 1), (1, 1)],
            _ => &[(8, 1), (4, 1), (1, 1)],
        };
        let all = blocks.iter().flat_map(|&(warps, row_tiles)| {
            [64, 32, 16].map(|key_tile| Self::new(warps, row_tiles, key_tile, head_dim, casts))
        });
        preferred.or_else(|| all.into_iter().find(|g| g.shared_bytes <= max_shared_bytes))
    }
}

/// Which tensor-core kernel a call takes, and its tile sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MmaKernel {
    /// `mma.cu` or `mma_pairs.cu` for long queries.
    Prefill(Geometry),
    /// `mma.cu` for short ones.
    Verify(Geometry),
    /// `decode.cu`.
    Decode(DecodeGeometry),
}

impl MmaKernel {
    /// Packed rows, threads and shared bytes of a block.
    fn block(&self) -> (u64, u64, u64) {
        match self {
            Self::Prefill(g) | Self::Verify(g) => (g.rows(), 32 * g.warps, g.shared_bytes),
            Self::Decode(g) => (g.rows, 32 * g.warps, g.shared_bytes),
        }
    }
}

/// What a launch of the tensor-core kernels looks like: part of a [`crate::route::Route`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct MmaPlan {
    /// Kernel and tile sizes.
    pub kernel: MmaKernel,
    /// Blocks per request and KV head, splits apart.
    pub row_tiles: u64,
    /// Parts of the keys.
    pub splits: u64,
    /// Whether the kernel takes the keys of a head for one stretch of memory, as they are in dense scratch, and looks up no
    /// pages. Prefill only.
    pub dense: bool,
}

/// `MmaParams` of `packed.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct MmaParams {
    attention: AttentionParams,
    k_steps: RowSteps,
    v_steps: RowSteps,
    pages: PageDivider,
    partial_out: u64,
    partial_state: u64,
    row_tiles: i32,
    splits: i32,
    total_q: i32,
    page_shift: i32,
}

const _: () = assert!(size_of::<MmaParams>() == size_of::<AttentionParams>() + 10 * 4 + 2 * 8 + 4 * 4);
// SAFETY: `repr(C)`, numbers only, and the size above leaves no padding.
unsafe impl KernelParams for MmaParams {}

/// `CombineParams` of `combine.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct CombineParams {
    partial_out: u64,
    partial_state: u64,
    out: u64,
    lse: u64,
    sinks: u64,
    v_scales: u64,
    out_strides: [i64; 2],
    lse_strides: [i64; 2],
    v_scale: f32,
    splits: i32,
    total_q: i32,
    num_q_heads: i32,
    num_kv_heads: i32,
    head_dim: i32,
}

const _: () = assert!(size_of::<CombineParams>() == 6 * 8 + 4 * 8 + 6 * 4);
// SAFETY: `repr(C)`, numbers only, and the size above leaves no padding.
unsafe impl KernelParams for CombineParams {}

/// What the tensor-core kernel needs of a shape, whichever arm uses it.
pub(crate) fn supports_shape(arm: Arm, shape: &AttentionShape) -> Result<(), Unsupported> {
    let lacks = |what: String, accepted: &str| Err(Unsupported { arm, what, accepted: accepted.to_owned() });
    if !matches!(shape.q_dtype, DType::Bf16 | DType::F16) {
        return lacks(format!("q dtype {}", shape.q_dtype), "bf16 or f16");
    }
    if shape.head_dim_k != shape.head_dim_v {
        return lacks(
            format!("head_dim {}/{}", shape.head_dim_k, shape.head_dim_v),
            "equal head dims of K and V",
        );
    }
    if !HEAD_DIMS.contains(&shape.head_dim_k) {
        return lacks(format!("head_dim {}", shape.head_dim_k), "64, 80, 96, 112, 128, 192 or 256");
    }
    if shape.row_alignment < 16 {
        return lacks(format!("rows of q or out aligned to {} bytes", shape.row_alignment), "16 bytes");
    }
    Ok(())
}

/// The support manifest of the `mma` arm.
pub(crate) fn supports(shape: &AttentionShape) -> Result<(), Unsupported> {
    supports_shape(Arm::Mma, shape)?;
    if shape.kv_dtype != shape.q_dtype {
        let what = format!("a {} cache with a {} query", shape.kv_dtype, shape.q_dtype);
        return Err(Unsupported { arm: Arm::Mma, what, accepted: "the query's own type".into() });
    }
    supports_cache_rows(Arm::Mma, shape)
}

/// The support manifest of the staged arms.
pub(crate) fn supports_staged(arm: Arm, shape: &AttentionShape) -> Result<(), Unsupported> {
    supports_shape(arm, shape)?;
    if !shape.kv_dtype.is_fp8() {
        let what = format!("a {} cache", shape.kv_dtype);
        return Err(Unsupported { arm, what, accepted: "e4m3 or e5m2".into() });
    }
    supports_cache_rows(arm, shape)
}

fn supports_cache_rows(arm: Arm, shape: &AttentionShape) -> Result<(), Unsupported> {
    if shape.cache_alignment < 16 {
        let what = format!("cache rows aligned to {} bytes", shape.cache_alignment);
        return Err(Unsupported { arm, what, accepted: "16 bytes".into() });
    }
    Ok(())
}

/// Whether a batch is served by the decode entry: single rows, or a uniform query that the caller has announced.
pub(crate) fn is_decode(shape: &AttentionShape, knobs: &Knobs) -> bool {
    let uniform = knobs.uniform_query_len.filter(|_| knobs.verify_as_decode);
    shape.max_query_len == 1 || uniform.is_some_and(|q| q == shape.max_query_len && q <= MAX_DECODE_QUERY)
}

/// Plans a launch. A pure function: the route's table is a snapshot.
///
/// # Errors
/// When no geometry fits the card; names both numbers.
pub(crate) fn plan(
    arm: Arm,
    shape: &AttentionShape,
    casts: bool,
    capability: &Capability,
    knobs: &Knobs,
) -> Result<MmaPlan, Unsupported> {
    let packed = shape.max_query_len * shape.group();
    let max_shared = u64::from(capability.max_shared_bytes);
    let Some(kernel) = choose_kernel(shape, packed, casts, max_shared, knobs) else {
        let least = Geometry::new(1, 1, 16, shape.head_dim_k, casts).shared_bytes;
        let what = format!("{max_shared} bytes of shared memory at head_dim {}", shape.head_dim_k);
        return Err(Unsupported { arm, what, accepted: format!("{least} bytes or more") });
    };
    let row_tiles = packed.div_ceil(kernel.block().0).max(1);
    let blocks = row_tiles.saturating_mul(shape.num_kv_heads).saturating_mul(shape.num_requests);
    let multiprocessors = u64::from(capability.multiprocessors);
    let ruled = match kernel {
        MmaKernel::Prefill(_) => 1,
        MmaKernel::Verify(g) => split_count(
            blocks,
            multiprocessors,
            shape.max_seq_len.div_ceil(g.key_tile),
            knobs.max_splits.max(1),
        ),
        MmaKernel::Decode(g) => split_count(
            blocks,
            DECODE_BLOCKS_PER_MULTIPROCESSOR * multiprocessors,
            shape.max_seq_len.div_ceil(DECODE_KEYS * g.warps),
            knobs.max_splits.max(1),
        ),
    };
    let dense = arm.is_dense() && matches!(kernel, MmaKernel::Prefill(_));
    Ok(MmaPlan { kernel, row_tiles, splits: knobs.splits.unwrap_or(ruled).max(1), dense })
}

fn choose_kernel(
    shape: &AttentionShape,
    packed: u64,
    casts: bool,
    max_shared: u64,
    knobs: &Knobs,
) -> Option<MmaKernel> {
    let head_dim = shape.head_dim_k;
    if !is_decode(shape, knobs) {
        // A batch that is not known to be short gets the tall blocks, whatever its bound says.
        return Geometry::choose(packed.max(65), head_dim, casts, max_shared).map(MmaKernel::Prefill);
    }
    let decode = (packed <= DECODE_ROWS && head_dim.is_multiple_of(64))
        .then(|| DecodeGeometry::choose(packed, head_dim, shape.kv_dtype.size_bytes(), max_shared))
        .flatten();
    decode
        .map(MmaKernel::Decode)
        .or_else(|| Geometry::choose(packed, head_dim, casts, max_shared).map(MmaKernel::Verify))
}

/// The compiled instance of a plan.
pub(crate) fn spec(shape: &AttentionShape, cast: Cast, plan: &MmaPlan) -> KernelSpec {
    let codec = |dtype: DType| dtype.codec().expect("formats are floating-point").to_owned();
    let mut defines = vec![
        ("Q_FORMAT", codec(shape.q_dtype)),
        ("KV_FORMAT", codec(shape.kv_dtype)),
        ("HEAD_DIM", shape.head_dim_k.to_string()),
        ("MODIFIED", u8::from(shape.softcap || shape.alibi).to_string()),
    ];
    if cast == Cast::Hardware {
        defines.push(("CAST_HARDWARE", "1".to_owned()));
    }
    if plan.dense {
        defines.push(("DENSE", "1".to_owned()));
    }
    let (file, entry) = match &plan.kernel {
        MmaKernel::Prefill(g) | MmaKernel::Verify(g) => {
            let entry = if matches!(plan.kernel, MmaKernel::Prefill(_)) { PREFILL } else { VERIFY };
            defines.extend([
                ("ENTRY", entry.to_owned()),
                ("WARPS", g.warps.to_string()),
                ("ROW_TILES", g.row_tiles.to_string()),
                ("KEY_TILE", g.key_tile.to_string()),
            ]);
            (if g.shares == 2 { "mma_pairs.cu" } else { "mma.cu" }, entry)
        }
        MmaKernel::Decode(g) => {
            defines.extend([
                ("ROWS", g.rows.to_string()),
                ("WARPS", g.warps.to_string()),
                ("STAGES", g.stages.to_string()),
            ]);
            ("decode.cu", DECODE)
        }
    };
    KernelSpec { file, entry, defines }
}

pub(crate) fn combine_spec(out: DType) -> KernelSpec {
    let format = out.codec().expect("formats are floating-point").to_owned();
    KernelSpec { file: "combine.cu", entry: COMBINE, defines: vec![("OUT_FORMAT", format)] }
}

/// The base-2 logarithm of a power of two, else -1.
fn page_shift(page_size: u64) -> i32 {
    if page_size.is_power_of_two() { page_size.trailing_zeros().cast_signed() } else { -1 }
}

/// Queues a validated, supported, non-empty call as planned.
pub(crate) fn launch(
    device: &DeviceRef,
    stream: StreamId,
    args: &AttentionArgs,
    shape: &AttentionShape,
    (plan, cast): (&MmaPlan, Cast),
    scratch: &mut ScratchSource<'_>,
) -> Result<Vec<&'static str>, LaunchError> {
    let blocks = plan.row_tiles.saturating_mul(plan.splits).saturating_mul(shape.num_requests);
    // `decode.cu` counts the blocks of all KV heads in 32 bits.
    if blocks > i32::MAX as u64 || blocks.saturating_mul(shape.num_kv_heads) > u64::from(u32::MAX) {
        let value = format!(
            "{} requests of up to {} rows: {blocks} blocks for each of {} KV heads",
            shape.num_requests, shape.max_query_len, shape.num_kv_heads
        );
        let accepted = "at most 2147483647 blocks for each KV head and 4294967295 in all";
        return Err(ArgumentError::new("max_query_len", value, accepted).into());
    }
    if shape.num_kv_heads > 65535 {
        return Err(ArgumentError::new("num_kv_heads", shape.num_kv_heads, "at most 65535").into());
    }
    // The decode kernel and dense instances find rows by strides, which reach farther.
    let by_steps = !plan.dense && !matches!(plan.kernel, MmaKernel::Decode(_));
    let steps = |name, cache| if by_steps { RowSteps::of(name, cache) } else { Ok(RowSteps::UNUSED) };
    let k_steps = steps("k_cache", &args.cache.k)?;
    let v_steps = steps("v_cache", &args.cache.v)?;
    let spec = spec(shape, cast, plan);
    let kernel = device.load_kernel(&spec)?;
    let combine =
        if plan.splits > 1 { Some(device.load_kernel(&combine_spec(shape.q_dtype))?) } else { None };
    let partials = Partials::take(shape, plan.splits, scratch)?;
    let params = MmaParams {
        attention: AttentionParams::new(args, shape),
        k_steps,
        v_steps,
        pages: PageDivider::of(shape.page_size),
        partial_out: partials.out.0,
        partial_state: partials.state.0,
        row_tiles: extent(plan.row_tiles),
        splits: extent(plan.splits),
        total_q: extent(shape.total_q),
        page_shift: page_shift(shape.page_size),
    };
    let (_, threads, shared_bytes) = plan.kernel.block();
    let config = LaunchConfig {
        grid: [extent(blocks).cast_unsigned(), extent(shape.num_kv_heads).cast_unsigned(), 1],
        block: [extent(threads).cast_unsigned(), 1, 1],
        shared_bytes: extent(shared_bytes).cast_unsigned(),
    };
    device.launch(kernel, config, params.bytes(), stream)?;
    let Some(combine) = combine else { return Ok(vec![spec.entry]) };
    let rows = shape.total_q * shape.num_q_heads;
    let config = LaunchConfig {
        grid: [extent(rows).cast_unsigned(), 1, 1],
        block: [COMBINE_THREADS, 1, 1],
        shared_bytes: COMBINE_SHARED_BYTES,
    };
    device.launch(combine, config, combine_params(args, shape, plan.splits, &partials).bytes(), stream)?;
    Ok(vec![spec.entry, COMBINE])
}

/// Where splits leave their sums; null with one split.
struct Partials {
    out: DevicePtr,
    state: DevicePtr,
}

impl Partials {
    fn take(
        shape: &AttentionShape,
        splits: u64,
        scratch: &mut ScratchSource<'_>,
    ) -> Result<Self, LaunchError> {
        if splits == 1 {
            return Ok(Self { out: DevicePtr::NULL, state: DevicePtr::NULL });
        }
        let entries = splits * shape.total_q * shape.num_q_heads;
        let sums = entries * shape.head_dim_v * 4;
        let out = scratch.take(Purpose::Partials, sums + entries * 8)?;
        Ok(Self { out, state: out.offset(sums) })
    }
}

fn combine_params(
    args: &AttentionArgs,
    shape: &AttentionShape,
    splits: u64,
    partials: &Partials,
) -> CombineParams {
    let (v_scale, v_scales) = scale_fields(&args.cache.v_scale);
    CombineParams {
        partial_out: partials.out.0,
        partial_state: partials.state.0,
        out: args.out.ptr().0,
        lse: args.lse.as_ref().map_or(0, |t| t.ptr().0),
        sinks: args.sinks.as_ref().map_or(0, |t| t.ptr().0),
        v_scales,
        out_strides: [args.out.strides[0], args.out.strides[1]],
        lse_strides: args.lse.as_ref().map_or([0, 0], |t| [t.strides[0], t.strides[1]]),
        v_scale,
        splits: extent(splits),
        total_q: extent(shape.total_q),
        num_q_heads: extent(shape.num_q_heads),
        num_kv_heads: extent(shape.num_kv_heads),
        head_dim: extent(shape.head_dim_v),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opt-in shared memory of one block, by capability (CUDA programming guide, technical specifications).
    const LIMITS: [(u32, u64); 5] =
        [(80, 166_912), (86, 101_376), (89, 101_376), (90, 232_448), (120, 101_376)];

    #[test]
    fn pages_of_a_power_of_two_are_found_by_a_shift() {
        assert_eq!([1, 2, 16, 1 << 20].map(page_shift), [0, 1, 4, 20]);
        assert_eq!([3, 24, 100].map(page_shift), [-1; 3]);
    }

    #[test]
    fn some_geometry_fits_every_card() {
        for (capability, limit) in LIMITS {
            for head_dim in HEAD_DIMS {
                for casts in [false, true] {
                    for rows in [1, 16, 17, 64, 65, 4096] {
                        let found = Geometry::choose(rows, head_dim, casts, limit);
                        assert!(
                            found.is_some(),
                            "sm_{capability} head_dim {head_dim} casts {casts} rows {rows}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_card_that_is_too_small_is_named_with_both_numbers() {
        let capability = Capability { major: 8, minor: 0, max_shared_bytes: 9000, multiprocessors: 8 };
        let shape = AttentionShape { head_dim_k: 256, head_dim_v: 256, ..AttentionShape::example() };
        let error = plan(Arm::Mma, &shape, false, &capability, &Knobs::default()).unwrap_err().to_string();
        assert!(error.contains("9000 bytes") && error.contains("43008 bytes or more"), "{error}");
    }
}
