//! Which blocks a card gets, and how much shared memory they ask for: tables that follow from the layouts that `tiles.cuh`,
//! `mma_pairs.cu` and `decode_tiles.cuh` declare and from the rules that `choose` states.

use kernels::decode::DecodeGeometry;
use kernels::instances::GATE_CAPABILITIES;
use kernels::mma::Geometry;

fn limits() -> [u64; 3] {
    GATE_CAPABILITIES.map(|card| u64::from(card.max_shared_bytes))
}

fn fields(g: Geometry) -> [u64; 5] {
    [g.warps, g.shares, g.row_tiles, g.key_tile, g.shared_bytes]
}

/// Packed rows, head dim, whether codes are cast, and on an A100, an H200 and an RTX 5090: warps of a block, warps that share
/// rows, 16-row tiles of a warp, keys of a tile, and the sum of
/// 4 x 3 words for each key of a tile (places of its rows, and its page), all rows of Q (two bytes an element, and 16 of padding), two buffers of K and of V
/// in the same form (one, and the codes of both, where they are cast); of pairs also weights and two maxima for each row.
#[rustfmt::skip]
const BLOCKS: [(u64, u64, bool, [[u64; 5]; 3]); 13] = [
    (1, 64, false, [[1, 1, 1, 64, 42240], [1, 1, 1, 64, 42240], [1, 1, 1, 64, 42240]]),
    (16, 192, false, [[1, 1, 1, 64, 111872], [1, 1, 1, 64, 111872], [1, 1, 1, 32, 59136]]),
    (17, 128, true, [[4, 1, 1, 64, 71680], [4, 1, 1, 64, 71680], [4, 1, 1, 64, 71680]]),
    (64, 192, true, [[4, 1, 1, 64, 104448], [4, 1, 1, 64, 104448], [4, 1, 1, 32, 65024]]),
    (64, 256, false, [[4, 1, 1, 32, 102912], [4, 1, 1, 64, 172032], [4, 1, 1, 16, 68352]]),
    (65, 64, false, [[4, 1, 2, 64, 58368], [4, 1, 2, 64, 58368], [8, 1, 2, 64, 76800]]),
    (65, 112, false, [[8, 1, 2, 64, 125952], [4, 1, 2, 64, 95232], [8, 1, 2, 32, 93696]]),
    (65, 128, false, [[8, 1, 2, 64, 142336], [4, 1, 2, 64, 107520], [8, 1, 2, 16, 87808]]),
    (65, 128, true, [[8, 1, 2, 64, 123904], [4, 1, 2, 64, 89088], [8, 1, 2, 32, 96768]]),
    (65, 192, false, [[8, 1, 1, 64, 156672], [8, 2, 2, 64, 176128], [8, 1, 1, 16, 77568]]),
    (65, 192, true, [[8, 1, 1, 64, 130048], [8, 1, 1, 64, 130048], [8, 1, 1, 32, 90624]]),
    (65, 256, false, [[8, 1, 1, 32, 136704], [8, 2, 2, 64, 225280], [4, 1, 1, 16, 68352]]),
    (65, 256, true, [[8, 1, 1, 32, 119296], [8, 1, 1, 64, 171008], [8, 1, 1, 16, 93440]]),
];

#[test]
fn tensor_core_blocks_of_every_card() {
    for (packed_rows, head_dim, casts, want) in BLOCKS {
        let found =
            limits().map(|limit| fields(Geometry::choose(packed_rows, head_dim, casts, limit).unwrap()));
        assert_eq!(found, want, "{packed_rows} rows of {head_dim}, casts {casts}");
    }
}

#[test]
fn a_block_that_fits_to_the_byte_is_taken_and_one_byte_less_is_too_little() {
    let keys_and_warps = |rows, head_dim, limit| {
        Geometry::choose(rows, head_dim, false, limit).map(|g| (g.warps, g.shares, g.key_tile))
    };
    assert_eq!(keys_and_warps(16, 64, 42_240), Some((1, 1, 64)));
    assert_eq!(keys_and_warps(16, 64, 42_239), Some((1, 1, 32)));
    assert_eq!(keys_and_warps(65, 192, 176_128), Some((8, 2, 64)));
    assert_eq!(keys_and_warps(65, 192, 176_127), Some((8, 1, 64)));
    // Two blocks of 58368 bytes, and 1024 that the hardware keeps for each; one of them is no part of the limit.
    assert_eq!(keys_and_warps(65, 64, 2 * 59_392 - 1024), Some((4, 1, 64)));
    assert_eq!(keys_and_warps(65, 64, 2 * 59_392 - 1025), Some((8, 1, 64)));
    // The smallest block: 16 keys, one warp.
    assert_eq!(keys_and_warps(16, 64, 768 + 16 * 144 + 4 * 16 * 144), Some((1, 1, 16)));
    assert_eq!(keys_and_warps(16, 64, 768 + 16 * 144 + 4 * 16 * 144 - 1), None);
}

/// Packed rows, head dim, bytes of a cache element, and on the same cards: rows and warps of a block, steps on their way, and the
/// sum of two numbers for each row of each warp, narrowed queries of a cache of bytes, and the warps' rings of 16 rows of K and V.
#[rustfmt::skip]
const DECODE_BLOCKS: [(u64, u64, u64, [[u64; 4]; 3]); 8] = [
    (1, 64, 2, [[8, 4, 3, 49408], [8, 4, 3, 49408], [8, 4, 3, 49408]]),
    (1, 128, 1, [[8, 4, 3, 51712], [8, 4, 3, 51712], [8, 4, 2, 35328]]),
    (8, 192, 1, [[8, 4, 2, 56832], [8, 4, 3, 83456], [8, 2, 3, 43392]]),
    (8, 256, 2, [[8, 2, 2, 65664], [8, 2, 2, 65664], [8, 1, 2, 32896]]),
    (9, 64, 1, [[16, 4, 3, 33664], [16, 4, 3, 33664], [16, 4, 3, 33664]]),
    (9, 128, 2, [[16, 4, 2, 66048], [16, 4, 3, 98816], [16, 2, 3, 49408]]),
    (16, 192, 2, [[16, 2, 3, 73984], [16, 4, 2, 98816], [16, 2, 2, 49408]]),
    (16, 256, 1, [[16, 2, 3, 57984], [16, 4, 3, 107392], [16, 1, 3, 33280]]),
];

fn decode(packed_rows: u64, head_dim: u64, kv_bytes: u64, limit: u64) -> Option<[u64; 4]> {
    let found = DecodeGeometry::choose(packed_rows, head_dim, kv_bytes, limit)?;
    Some([found.rows, found.warps, found.stages, found.shared_bytes])
}

#[test]
fn decode_blocks_of_every_card() {
    for (packed_rows, head_dim, kv_bytes, want) in DECODE_BLOCKS {
        let found = limits().map(|limit| decode(packed_rows, head_dim, kv_bytes, limit).unwrap());
        assert_eq!(found, want, "{packed_rows} rows of {head_dim}, {kv_bytes} bytes");
    }
}

#[test]
fn two_decode_blocks_share_a_multiprocessor_where_they_fit_to_the_byte() {
    assert_eq!(decode(1, 64, 2, 2 * (49_408 + 1024) - 1024), Some([8, 4, 3, 49_408]));
    assert_eq!(decode(1, 64, 2, 2 * (49_408 + 1024) - 1025), Some([8, 4, 2, 33_024]));
    // The smallest pair of blocks, then one block alone, as large as it may be.
    assert_eq!(decode(1, 256, 2, 2 * (32_896 + 1024) - 1024), Some([8, 1, 2, 32_896]));
    assert_eq!(decode(1, 256, 2, 2 * (32_896 + 1024) - 1025), Some([8, 2, 2, 65_664]));
    assert_eq!(decode(1, 256, 2, 32_896), Some([8, 1, 2, 32_896]));
    assert_eq!(decode(1, 256, 2, 32_895), None);
}
