//! Launch sizes of `decode.cu`: attention of at most 16 packed rows per request.

/// Packed rows that a block of `decode.cu` can serve.
pub(crate) const DECODE_ROWS: u64 = 16;
/// Keys of one step of a warp of `decode.cu`.
pub(crate) const DECODE_KEYS: u64 = 16;
/// Blocks of `decode.cu` that keep a multiprocessor reading, as far as the split count is concerned.
pub(crate) const DECODE_BLOCKS_PER_MULTIPROCESSOR: u64 = 2;
/// Shared memory that the driver keeps for each resident block.
const RESERVED_SHARED_BYTES: u64 = 1024;

/// Launch sizes of `decode.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct DecodeGeometry {
    /// Packed rows of a block: 8 or 16.
    pub rows: u64,
    /// Warps of a block; each walks keys of its own.
    pub warps: u64,
    /// Steps of 16 keys on their way or in use per warp.
    pub stages: u64,
    /// Dynamic shared memory of a block in bytes.
    pub shared_bytes: u64,
}

impl DecodeGeometry {
    /// Mirrors `Shared` of `decode_tiles.cuh`; `kv_bytes` is the size of a cache element. `None` where a warp's ring
    /// does not hold its sums at the end.
    fn new(rows: u64, warps: u64, stages: u64, head_dim: u64, kv_bytes: u64) -> Option<Self> {
        let row = head_dim * kv_bytes;
        let shared_row = if (row / 16).is_multiple_of(8) { row } else { row + 16 };
        let ring = stages * 2 * DECODE_KEYS * shared_row;
        // Narrowed rows of Q of an fp8 cache.
        let queries = if kv_bytes == 1 { rows * (2 * head_dim + 16 + 4) } else { 0 };
        let shared_bytes = (warps * rows * 8 + queries).next_multiple_of(128) + warps * ring;
        (ring >= rows * (head_dim + 4) * 4).then_some(Self { rows, warps, stages, shared_bytes })
    }

    /// The preferred geometry for `packed_rows` packed rows that fits `max_shared_bytes`; `None` if none does.
    ///
    /// Measured on an H200: reads go fastest with about 64 KiB on their way per multiprocessor, from two blocks or more,
    /// so that one starts or ends while another reads. More stages than that slow the memory down: at head_dim 256,
    /// three take 3% longer than two.
    #[must_use]
    pub fn choose(packed_rows: u64, head_dim: u64, kv_bytes: u64, max_shared_bytes: u64) -> Option<Self> {
        let rows = if packed_rows <= 8 { 8 } else { DECODE_ROWS };
        let stages = if head_dim >= 256 { [2, 3] } else { [3, 2] };
        let all = [4, 2, 1].into_iter().flat_map(|w| stages.map(|s| (w, s)));
        let fits = |blocks: u64| {
            let each =
                ((max_shared_bytes + RESERVED_SHARED_BYTES) / blocks).saturating_sub(RESERVED_SHARED_BYTES);
            all.clone()
                .filter_map(|(warps, stages)| Self::new(rows, warps, stages, head_dim, kv_bytes))
                .find(|g| g.shared_bytes <= each)
        };
        fits(2).or_else(|| fits(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opt-in shared memory of one block, by capability (CUDA programming guide, technical specifications).
    const LIMITS: [(u32, u64); 5] =
        [(80, 166_912), (86, 101_376), (89, 101_376), (90, 232_448), (120, 101_376)];

    #[test]
    fn some_decode_geometry_fits_every_card() {
        for (capability, limit) in LIMITS {
            for head_dim in [64, 128, 192, 256] {
                for (rows, bytes) in [(1, 1), (1, 2), (16, 1), (16, 2)] {
                    let found = DecodeGeometry::choose(rows, head_dim, bytes, limit);
                    assert!(
                        found.is_some(),
                        "sm_{capability} head_dim {head_dim}, {rows} rows, {bytes} bytes"
                    );
                }
            }
        }
    }
}
