//! The dense route: copy the pages once into a dense 16-bit scratch, then run an ordinary kernel on it.
//!
//! The scratch is a paged cache with one page per request, as long as the longest sequence, and an identity block
//! table, so the paged address is the dense address; the keys of a head lie one after another. fp8 codes are cast unscaled; the
//! scales stay folded into the softmax scale and the output.

use crate::args::AttentionArgs;
use crate::arm::Arm;
use crate::device::{DevicePtr, DeviceRef, LaunchConfig, StreamId};
use crate::error::{LaunchError, Unsupported};
use crate::mma::{self, Cast};
use crate::paging::PageDivider;
use crate::params::{KernelParams, extent};
use crate::route::{Capability, Knobs};
use crate::scalar;
use crate::source::KernelSpec;
use crate::tensor::{Allocation, DType, DeviceTensor};
use crate::validate::AttentionShape;
use crate::workspace::{Purpose, ScratchSource};

const FILE: &str = "dequant.cu";
const ENTRY: &str = "dequantise_dense";
const THREADS: u64 = 256;

/// `DequantParams` of `dequant.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct DequantParams {
    k: u64,
    v: u64,
    dense_k: u64,
    dense_v: u64,
    block_table: u64,
    seq_lens: u64,
    query_start_loc: u64,
    block_table_stride: i64,
    k_strides: [i64; 3],
    v_strides: [i64; 3],
    dense_page: i64,
    pages: PageDivider,
    num_kv_heads: i32,
    head_dim: i32,
    page_size: i32,
    tokens_per_block: i32,
    blocks_per_head: i32,
    covers: i32,
}

const _: () = assert!(size_of::<DequantParams>() == 15 * 8 + 8 * 4);
// SAFETY: `repr(C)`, numbers only, and the size above leaves no padding.
unsafe impl KernelParams for DequantParams {}

/// Type of the scratch: the query's own, or bf16 for an f32 query. Every fp8 value is exact in both.
pub(crate) fn dense_dtype(shape: &AttentionShape) -> DType {
    if shape.q_dtype == DType::F32 { DType::Bf16 } else { shape.q_dtype }
}

/// Bytes of the dense keys and values of a call; saturates.
#[must_use]
pub fn scratch_bytes(shape: &AttentionShape) -> u64 {
    // K and V, two bytes each.
    [shape.num_requests, shape.max_seq_len, shape.num_kv_heads, shape.head_dim_k, 4]
        .into_iter()
        .fold(1, u64::saturating_mul)
}

/// The shape of the inner call on the dense scratch.
pub(crate) fn inner_shape(shape: &AttentionShape) -> AttentionShape {
    AttentionShape {
        kv_dtype: dense_dtype(shape),
        num_pages: shape.num_requests,
        page_size: shape.max_seq_len.max(1),
        block_table_width: 1,
        // Rows are whole multiples of 8 elements from an aligned base.
        cache_alignment: 16,
        ..shape.clone()
    }
}

/// The support manifest of the dense arms.
pub(crate) fn supports(arm: Arm, shape: &AttentionShape) -> Result<(), Unsupported> {
    let lacks = |what: String, accepted: &str| Err(Unsupported { arm, what, accepted: accepted.to_owned() });
    match arm {
        Arm::Fp8Dense if !shape.kv_dtype.is_fp8() => {
            return lacks(format!("a {} cache", shape.kv_dtype), "e4m3 or e5m2");
        }
        Arm::Bf16Dense if shape.kv_dtype != shape.q_dtype || shape.q_dtype == DType::F32 => {
            let what = format!("a {} cache with a {} query", shape.kv_dtype, shape.q_dtype);
            return lacks(what, "bf16 with bf16, or f16 with f16");
        }
        _ => {}
    }
    if shape.head_dim_k != shape.head_dim_v {
        return lacks(
            format!("head_dim {}/{}", shape.head_dim_k, shape.head_dim_v),
            "equal head dims of K and V",
        );
    }
    let access = 8 * shape.kv_dtype.size_bytes();
    if shape.cache_alignment < access {
        return lacks(
            format!("cache rows aligned to {} bytes", shape.cache_alignment),
            &format!("{access} bytes"),
        );
    }
    scalar::supports(shape).map_err(|unsupported| Unsupported { arm, ..unsupported })
}

/// Whether the inner call runs on tensor cores; otherwise it takes the scalar kernel.
pub(crate) fn inner_is_mma(arm: Arm, shape: &AttentionShape) -> bool {
    mma::supports_shape(arm, &inner_shape(shape)).is_ok()
}

/// Elements that one thread of the dequantisation reads at once: 16 bytes; 8 bytes of an fp8 cache whose rows are not made
/// of pairs of such accesses, for two neighbours write what they have read together.
fn codes_per_access(shape: &AttentionShape) -> u64 {
    let pairs = shape.cache_alignment >= 16 && shape.head_dim_k.is_multiple_of(32);
    if shape.kv_dtype.is_fp8() && pairs { 16 } else { 8 }
}

pub(crate) fn spec(shape: &AttentionShape) -> KernelSpec {
    let codec = |dtype: DType| dtype.codec().expect("formats are floating-point").to_owned();
    let mut defines = vec![
        ("TO_FORMAT", codec(dense_dtype(shape))),
        ("KV_FORMAT", codec(shape.kv_dtype)),
        ("CODES", codes_per_access(shape).to_string()),
    ];
    if !shape.kv_dtype.is_fp8() {
        defines.push(("COPY", "1".to_owned()));
    }
    KernelSpec { file: FILE, entry: ENTRY, defines }
}

/// Queues a validated, supported, non-empty call: scratch, table, dequantisation, attention.
pub(crate) fn launch(
    device: &DeviceRef,
    stream: StreamId,
    (arm, args, shape): (Arm, &AttentionArgs, &AttentionShape),
    capability: &Capability,
    knobs: &Knobs,
    scratch: &mut ScratchSource<'_>,
) -> Result<Vec<&'static str>, LaunchError> {
    let dense = Dense::take(device, stream, shape, scratch)?;
    let mut kernels = dense.dequantise(device, stream, args, shape, Tokens::All)?;
    kernels.extend(dense.attend(device, stream, (arm, args, shape), capability, knobs, scratch)?);
    Ok(kernels)
}

/// Tokens of each request that a dequantisation covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tokens {
    /// All of them.
    All,
    /// Those of earlier calls: all but the last, as many as the request has query rows.
    Earlier,
    /// Those last ones.
    Own,
}

/// The dense scratch of one call: `bytes` bytes from `k`, keys first, and one page id per request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dense {
    pub(crate) bytes: u64,
    pub(crate) k: DevicePtr,
    pub(crate) table: DevicePtr,
}

/// Block table of the dense pages: 0, 1, 2, …
pub(crate) fn identity_table(num_requests: u64) -> Vec<u8> {
    (0..extent(num_requests)).flat_map(i32::to_le_bytes).collect()
}

/// Bytes that the scratch of a call is made of; never 0.
pub(crate) fn allocation_bytes(shape: &AttentionShape) -> u64 {
    scratch_bytes(shape).max(16)
}

impl Dense {
    /// Allocates the scratch, then the identity table, and fills the table where it is new.
    fn take(
        device: &DeviceRef,
        stream: StreamId,
        shape: &AttentionShape,
        scratch: &mut ScratchSource<'_>,
    ) -> Result<Self, LaunchError> {
        let bytes = allocation_bytes(shape);
        let k = scratch.take(Purpose::Dense, bytes)?;
        let identity = |table| device.copy_to_device(table, &identity_table(shape.num_requests), stream);
        let table = scratch.take_filled(Purpose::IdentityTable, shape.num_requests * 4, identity)?;
        Ok(Self { bytes, k, table })
    }

    /// Queues the dequantisation of some tokens; of a call without keys, nothing.
    pub(crate) fn dequantise(
        &self,
        device: &DeviceRef,
        stream: StreamId,
        args: &AttentionArgs,
        shape: &AttentionShape,
        tokens: Tokens,
    ) -> Result<Vec<&'static str>, LaunchError> {
        if shape.max_seq_len == 0 {
            return Ok(Vec::new());
        }
        let kernel = device.load_kernel(&spec(shape))?;
        let (config, params) = self.dequant(args, shape, tokens);
        device.launch(kernel, config, params.bytes(), stream)?;
        Ok(vec![ENTRY])
    }

    /// Queues the attention on scratch that has been filled.
    pub(crate) fn attend(
        &self,
        device: &DeviceRef,
        stream: StreamId,
        (arm, args, shape): (Arm, &AttentionArgs, &AttentionShape),
        capability: &Capability,
        knobs: &Knobs,
        scratch: &mut ScratchSource<'_>,
    ) -> Result<Vec<&'static str>, LaunchError> {
        let inner = inner_shape(shape);
        let inner_args = self.inner_args(args, &inner);
        if !inner_is_mma(arm, shape) {
            return scalar::launch(device, stream, &inner_args, &inner);
        }
        let plan = mma::plan(arm, &inner, false, capability, knobs)?;
        mma::launch(device, stream, &inner_args, &inner, (&plan, Cast::None), scratch)
    }

    fn dequant(
        &self,
        args: &AttentionArgs,
        shape: &AttentionShape,
        tokens: Tokens,
    ) -> (LaunchConfig, DequantParams) {
        let longest = match tokens {
            Tokens::Own => shape.max_query_len.min(shape.max_seq_len),
            Tokens::All | Tokens::Earlier => shape.max_seq_len,
        };
        let tokens_per_block = THREADS / (shape.head_dim_k / codes_per_access(shape));
        let blocks_per_head = longest.div_ceil(tokens_per_block);
        let strides = |t: &DeviceTensor| [t.strides[0], t.strides[1], t.strides[2]];
        let params = DequantParams {
            k: args.cache.k.ptr().0,
            v: args.cache.v.ptr().0,
            dense_k: self.k.0,
            dense_v: self.k.offset(self.bytes / 2).0,
            block_table: args.block_table.ptr().0,
            seq_lens: args.seq_lens.ptr().0,
            query_start_loc: args.query_start_loc.ptr().0,
            block_table_stride: args.block_table.strides[0],
            k_strides: strides(&args.cache.k),
            v_strides: strides(&args.cache.v),
            dense_page: i64::from(extent(shape.max_seq_len)),
            pages: PageDivider::of(shape.page_size),
            num_kv_heads: extent(shape.num_kv_heads),
            head_dim: extent(shape.head_dim_k),
            page_size: extent(shape.page_size),
            tokens_per_block: extent(tokens_per_block),
            blocks_per_head: extent(blocks_per_head),
            covers: match tokens {
                Tokens::Earlier => 1,
                Tokens::Own => 2,
                Tokens::All => 3,
            },
        };
        let blocks = extent(shape.num_requests * shape.num_kv_heads * blocks_per_head).cast_unsigned();
        let threads = u32::try_from(THREADS).expect("a small constant");
        (LaunchConfig { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0 }, params)
    }

    /// The call on the scratch: the same query, masks, options and scales, other pages.
    fn inner_args(&self, args: &AttentionArgs, inner: &AttentionShape) -> AttentionArgs {
        let allocation = Allocation { ptr: self.k, bytes: self.bytes };
        let shape = [inner.num_pages, inner.num_kv_heads, inner.page_size, inner.head_dim_k];
        let mut k = DeviceTensor::contiguous(allocation, inner.kv_dtype, &shape);
        // Heads outside slots: the keys of a head lie one after another.
        k.shape.swap(1, 2);
        k.strides.swap(1, 2);
        let v = DeviceTensor { offset: self.bytes / 2, ..k.clone() };
        let table = Allocation { ptr: self.table, bytes: inner.num_requests * 4 };
        let mut inner_args = args.clone();
        inner_args.cache.k = k;
        inner_args.cache.v = v;
        inner_args.block_table = DeviceTensor::contiguous(table, DType::I32, &[inner.num_requests, 1]);
        inner_args
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{BatchMetadata, PagedCache};
    use crate::validate::validate_attention;

    /// Addresses that nothing reads.
    fn tensor(dtype: DType, shape: &[u64]) -> DeviceTensor {
        let bytes = shape.iter().product::<u64>() * dtype.size_bytes();
        DeviceTensor::contiguous(Allocation { ptr: DevicePtr(0x10000), bytes }, dtype, shape)
    }

    /// Two requests of up to 48 rows and 1000 keys, 8 heads over 4.
    fn call(kv_dtype: DType, head_dim: u64) -> (AttentionArgs, AttentionShape) {
        let cache = tensor(kv_dtype, &[200, 16, 4, head_dim]);
        let rows = tensor(DType::Bf16, &[96, 8, head_dim]);
        let metadata = BatchMetadata {
            block_table: tensor(DType::I32, &[2, 70]),
            seq_lens: tensor(DType::I32, &[2]),
            query_start_loc: tensor(DType::I32, &[3]),
            max_query_len: 48,
            max_seq_len: 1000,
        };
        let cache = PagedCache::unscaled(cache.clone(), cache);
        let args = AttentionArgs::causal(rows.clone(), cache, rows, metadata);
        let shape = validate_attention(&args).unwrap();
        (args, shape)
    }

    fn scratch(shape: &AttentionShape) -> Dense {
        Dense { bytes: allocation_bytes(shape), k: DevicePtr(0x100_0000), table: DevicePtr(0x900_0000) }
    }

    #[test]
    fn the_inner_call_is_a_valid_call_of_the_inner_shape() {
        for (kv_dtype, head_dim) in [(DType::E4m3, 128), (DType::E5m2, 72), (DType::Bf16, 80)] {
            let (args, shape) = call(kv_dtype, head_dim);
            let inner = inner_shape(&shape);
            let dense = scratch(&shape);
            let inner_args = dense.inner_args(&args, &inner);
            assert_eq!(validate_attention(&inner_args), Ok(inner));
            // Keys fill the first half of the scratch, values the second.
            let end = |t: &DeviceTensor| t.ptr().0 + t.shape.iter().product::<u64>() * t.dtype.size_bytes();
            let [k, v] = [&inner_args.cache.k, &inner_args.cache.v];
            assert_eq!([k.ptr(), v.ptr()], [dense.k, DevicePtr(end(k))]);
            assert_eq!(end(v), dense.k.0 + dense.bytes);
        }
    }

    #[test]
    fn eight_elements_of_a_cache_row_must_be_one_access() {
        for (arm, kv_dtype, access) in [(Arm::Fp8Dense, DType::E4m3, 8), (Arm::Bf16Dense, DType::Bf16, 16)] {
            let (_, shape) = call(kv_dtype, 64);
            let aligned = |cache_alignment| AttentionShape { cache_alignment, ..shape.clone() };
            supports(arm, &aligned(access)).unwrap();
            let error = supports(arm, &aligned(access / 2)).unwrap_err();
            assert_eq!(error.accepted, format!("{access} bytes"));
        }
    }

    #[test]
    fn scratch_is_of_the_query_s_type_or_bf16_and_codes_are_cast_but_values_copied() {
        let instance = |q_dtype, kv_dtype| {
            let spec = spec(&AttentionShape { q_dtype, ..call(kv_dtype, 64).1 });
            let defined =
                |name| spec.defines.iter().find(|(n, _)| *n == name).map(|(_, value)| value.clone());
            (defined("TO_FORMAT").unwrap(), defined("COPY").is_some())
        };
        assert_eq!(instance(DType::Bf16, DType::E4m3), ("Bf16".to_owned(), false));
        assert_eq!(instance(DType::F16, DType::E5m2), ("F16".to_owned(), false));
        assert_eq!(instance(DType::F32, DType::E4m3), ("Bf16".to_owned(), false));
        assert_eq!(instance(DType::F16, DType::F16), ("F16".to_owned(), true));
    }

    #[test]
    fn sixteen_codes_are_read_at_once_where_every_row_allows_it() {
        let codes = |kv_dtype, head_dim, cache_alignment| {
            let shape = AttentionShape { cache_alignment, ..call(kv_dtype, head_dim).1 };
            spec(&shape).defines.iter().find(|(name, _)| *name == "CODES").unwrap().1.clone()
        };
        assert_eq!(codes(DType::E4m3, 64, 16), "16");
        assert_eq!(codes(DType::E4m3, 64, 8), "8");
        assert_eq!(codes(DType::E4m3, 72, 16), "8");
        assert_eq!(codes(DType::E4m3, 80, 16), "8", "five accesses of 16 codes are not pairs");
        assert_eq!(codes(DType::Bf16, 64, 16), "8");
    }

    #[test]
    fn a_block_covers_as_many_rows_of_a_head_as_its_threads_read() {
        // 128 codes in accesses of 16: 8 threads read a row, and 256 threads 32 rows.
        let (args, shape) = call(DType::E4m3, 128);
        let launch = |tokens| {
            let (config, params) = scratch(&shape).dequant(&args, &shape, tokens);
            assert_eq!((config.block, config.shared_bytes), ([256, 1, 1], 0));
            (params.tokens_per_block, params.blocks_per_head, config.grid)
        };
        // 1000 tokens of two requests and four heads.
        assert_eq!(launch(Tokens::All), (32, 32, [256, 1, 1]));
        assert_eq!(launch(Tokens::Earlier), (32, 32, [256, 1, 1]));
        // The call's own 48 tokens.
        assert_eq!(launch(Tokens::Own), (32, 2, [16, 1, 1]));
    }

    #[test]
    fn blocks_cover_the_longest_sequence_with_whole_rows() {
        // 72 codes in accesses of 8: 9 threads read a row, and 4 of 256 nothing.
        let (args, shape) = call(DType::E4m3, 72);
        let launch = |shape: &AttentionShape, tokens| {
            let params = scratch(shape).dequant(&args, shape, tokens).1;
            (params.tokens_per_block, params.blocks_per_head)
        };
        assert_eq!(launch(&shape, Tokens::All), (28, 36));
        let short = AttentionShape { max_seq_len: 3, ..shape.clone() };
        assert_eq!(launch(&short, Tokens::All), (28, 1));
        let shorter_than_its_query = AttentionShape { max_seq_len: 29, ..shape };
        assert_eq!(launch(&shorter_than_its_query, Tokens::Own), (28, 2), "no more own tokens than tokens");
    }
}
