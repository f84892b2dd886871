// What the prefill kernels mma.cu and mma_pairs.cu share: how tiles of K and V come from the paged cache into shared
// memory, how a warp scores its part of a tile, and how a row's results leave the block.
//
// Both own kWarpRows packed rows (query position x query head of one KV head) per warp or, with SHARES 2, per pair of
// warps; the warps of a pair score half of a tile's keys and sum up half of the dims each.
#pragma once

#include "cast.cuh"
#include "packed.cuh"

#ifndef SHARES
#error "the kernel that includes this defines SHARES: warps that own the same rows, 1 or 2"
#endif
#ifndef Q_FORMAT
#error "define Q_FORMAT: Bf16 or F16"
#endif
#ifndef KV_FORMAT
#error "define KV_FORMAT: Q_FORMAT's own, E4m3 or E5m2"
#endif
#ifndef HEAD_DIM
#error "define HEAD_DIM: a multiple of 16"
#endif
#ifndef WARPS
#error "define WARPS: 1 to 8"
#endif
#ifndef ROW_TILES
#error "define ROW_TILES: 16-row tiles of a warp, 1 or 2"
#endif
#ifndef KEY_TILE
#error "define KEY_TILE: a multiple of 16"
#endif
#ifndef MODIFIED
#error "define MODIFIED: 1 where softcap or ALiBi may be asked for, else 0"
#endif
#ifndef ENTRY
#error "define ENTRY: the kernel's name"
#endif
// DENSE is defined where a request has one page, and each KV head's keys lie in it one after another without gaps: the
// block table is not read then, and a tile is one stretch of memory.
// An fp8 cache is cast by the software decoder unless CAST_HARDWARE is defined (sm_89 and later).

constexpr int kWarps = WARPS;
constexpr int kThreads = 32 * kWarps;
constexpr int kShares = SHARES;
constexpr int kRowTiles = ROW_TILES;
constexpr int kWarpRows = 16 * kRowTiles;
constexpr int kRows = kWarpRows * kWarps / kShares;
constexpr int kKeyTile = KEY_TILE;
constexpr int kWarpKeys = kKeyTile / kShares;
constexpr int kDim = HEAD_DIM;
constexpr int kWarpDims = kDim / kShares;
constexpr bool kCast = KV_FORMAT::bytes == 1;
// Score modifiers cost registers even where they are not asked for, so they have instances of their own.
constexpr bool kModified = MODIFIED;
#ifdef DENSE
constexpr bool kDense = true;
#else
constexpr bool kDense = false;
#endif
constexpr u32 kFullWarp = 0xffffffffu;
// The threads that look up keys and start copies: all, or where warps share rows the half that has the time (see there).
constexpr int kCopyThreads = kThreads / kShares;

// Rows in shared memory are one 16-byte access apart from a multiple of the dims, so that the eight rows of a matrix
// load fall into different banks.
constexpr int kRowBytes = 2 * kDim + 16;
constexpr int kTileBytes = kKeyTile * kRowBytes;
constexpr int kRawRowBytes = kDim;
constexpr int kRawTileBytes = kKeyTile * kRawRowBytes;
// Tiles of K and of V in shared memory. Cast tiles have one: their raw bytes, which wait beside them, are the second.
constexpr int kBuffers = kCast ? 1 : 2;
// Tiles whose key rows are known at once.
constexpr int kRowRing = 4;

static_assert(!kDense || !kCast, "dense scratch holds 16-bit elements");
static_assert(kWarpDims % 16 == 0, "a matrix instruction takes 16 dims");
static_assert(kWarpKeys % 16 == 0, "a matrix instruction takes 16 keys");

// Where the parts of shared memory lie, in bytes.
struct Shared {
    static constexpr int rows = 0;  // address of each key row in the cache, K and V, of kRowRing tiles
    static constexpr int q = kRowRing * 2 * kKeyTile * 8;
    static constexpr int k = q + kRows * kRowBytes;
    static constexpr int v = k + kBuffers * kTileBytes;
    static constexpr int raw_k = v + kBuffers * kTileBytes;
    static constexpr int raw_v = raw_k + (kCast ? kRawTileBytes : 0);
    static constexpr int end = raw_v + (kCast ? kRawTileBytes : 0);
};

// Element i of scores[m][n] is row 16m + g + 8 (i / 2) and key 8n + 2t + i % 2 of the warp's part of a tile, with
// g = lane / 4 and t = lane % 4; of sums[m][n], that row and dim 8n + 2t + i % 2 of the warp's part.
using Scores = float[kRowTiles][kWarpKeys / 8][4];
using Sums = float[kRowTiles][kWarpDims / 8][4];

// ---------------------------------------------------------------------------------------------------------------
// From the cache to shared memory
// ---------------------------------------------------------------------------------------------------------------

// Number of this thread among those that copy; negative for others, which call nothing below.
ATTEST_DEVICE int copy_thread() { return static_cast<int>(threadIdx.x) - (kThreads - kCopyThreads); }

// Keys of a tile that one thread looks up.
constexpr int kLookups = (kKeyTile + kCopyThreads - 1) / kCopyThreads;

// Pages of the keys that this thread looks up. They are asked for before they are needed, so that the time until they
// arrive passes beside matrix work.
using Pages = i32[kLookups];

// The key whose row fills slot `slot` of a tile: slots beyond the block's range repeat its first or last key, so that
// nothing is read that no row of the block sees. Their scores are masked.
ATTEST_DEVICE i32 key_of_slot(const Work& w, i32 tile, i32 slot) {
    const i32 key = tile * kKeyTile + slot;
    const i32 not_before = key < w.keys.begin ? w.keys.begin : key;
    return not_before < w.keys.end ? not_before : w.keys.end - 1;
}

ATTEST_DEVICE void ask_pages(Pages& pages, const MmaParams& p, const Work& w, i32 tile) {
    if (kDense) {
        return;
    }
    const AttentionParams& a = p.attention;
    const i32* const block_table_row = a.block_table + w.request * a.block_table_stride;
    ATTEST_UNROLL_FULL
    for (int i = 0; i < kLookups; ++i) {
        const i32 slot = i * kCopyThreads + copy_thread();
        if (slot < kKeyTile && tile < w.end_tile) {
            pages[i] = block_table_row[page_column(p, key_of_slot(w, tile, slot))];
        }
    }
}

// Where the key rows of a tile lie in the cache: those of K, then those of V.
ATTEST_DEVICE const u8** key_rows(u8* shared, i32 tile) {
    return reinterpret_cast<const u8**>(shared + Shared::rows) + tile % kRowRing * 2 * kKeyTile;
}

// Notes the key rows of a tile, once their pages are known.
ATTEST_DEVICE void note_key_rows(u8* shared, const Pages& pages, const MmaParams& p, const Work& w, i32 tile) {
    if (kDense) {
        return;
    }
    const AttentionParams& a = p.attention;
    const u8** const rows = key_rows(shared, tile);
    ATTEST_UNROLL_FULL
    for (int i = 0; i < kLookups; ++i) {
        const i32 slot = i * kCopyThreads + copy_thread();
        if (slot < kKeyTile && tile < w.end_tile) {
            const i32 key = key_of_slot(w, tile, slot);
            const i64 page = pages[i], in_page = key - page_column(p, key) * a.page_size;
            const i64 k = page * a.k_page_stride + in_page * a.k_slot_stride + w.kv_head * a.k_head_stride;
            const i64 v = page * a.v_page_stride + in_page * a.v_slot_stride + w.kv_head * a.v_head_stride;
            rows[slot] = a.k + k * KV_FORMAT::bytes;
            rows[kKeyTile + slot] = a.v + v * KV_FORMAT::bytes;
        }
    }
}

// Rows of a tile are moved in 16-byte pieces, dealt out to the threads in rounds.
constexpr int kPieces = kDim * KV_FORMAT::bytes / 16;
constexpr int kRounds = (kKeyTile * kPieces + kCopyThreads - 1) / kCopyThreads;
// Whether a thread's pieces differ in the row alone, and by a constant.
constexpr bool kEvenRounds = kCopyThreads % kPieces == 0 && kKeyTile % (kCopyThreads / kPieces) == 0;
constexpr int kRoundRows = kEvenRounds ? kCopyThreads / kPieces : 0;

// A thread's piece of one round: `more` rows below row `row`.
struct Piece {
    int row, index, more;
    bool exists;
};

ATTEST_DEVICE Piece piece_of(int round) {
    const int thread = copy_thread(), item = round * kCopyThreads + thread;
    if (kEvenRounds) {
        return Piece{thread / kPieces, thread % kPieces, round * kRoundRows, round < kRounds};
    }
    return Piece{item / kPieces, item % kPieces, 0, item < kKeyTile * kPieces};
}

// Starts the copies of one operand's tile.
ATTEST_DEVICE void start_tile(u8* to, const u8* const* rows) {
    constexpr int row_bytes = kCast ? kRawRowBytes : kRowBytes;
    // Addresses are read a few at a time and then used, so that their latencies overlap.
    constexpr int batch = kRounds < 8 ? kRounds : 8;
    // Recomputed here, for else every round's place would occupy a register throughout the loop over the tiles.
    const Piece even = piece_of(0);
    const int even_offset = recomputed(even.row * row_bytes + even.index * 16);
    ATTEST_UNROLL_FULL
    for (int first = 0; first < kRounds; first += batch) {
        const u8* from[batch];
        ATTEST_UNROLL_FULL
        for (int i = 0; i < batch; ++i) {
            const Piece piece = piece_of(first + i);
            from[i] = piece.exists ? (rows + piece.row)[piece.more] + piece.index * 16 : nullptr;
        }
        ATTEST_UNROLL_FULL
        for (int i = 0; i < batch; ++i) {
            const Piece piece = piece_of(first + i);
            const int offset = kEvenRounds ? even_offset : piece.row * row_bytes + piece.index * 16;
            if (piece.exists) {
                copy_async16(to + offset + piece.more * row_bytes, from[i]);
            }
        }
    }
}

// The same where a tile is one stretch of memory, `keys` being the head's first key.
ATTEST_DEVICE void start_dense_tile(u8* to, const u8* keys, const Work& w, i32 tile) {
    const i32 first = tile * kKeyTile, thread = recomputed(copy_thread());
    const u8* const from = keys + static_cast<i64>(first) * (kPieces * 16) + thread * 16;
    if (first >= w.keys.begin && first + kKeyTile <= w.keys.end) {
        const Piece even = piece_of(0);
        const int even_offset = recomputed(even.row * kRowBytes + even.index * 16);
        ATTEST_UNROLL_FULL
        for (int round = 0; round < kRounds; ++round) {
            const Piece piece = piece_of(round);
            const int offset = kEvenRounds ? even_offset : piece.row * kRowBytes + piece.index * 16;
            if (piece.exists) {
                copy_async16(to + offset + piece.more * kRowBytes, from + round * kCopyThreads * 16);
            }
        }
        return;
    }
    // Rows that no row of the block sees become zero.
    ATTEST_UNROLL(1)
    for (int item = thread; item < kKeyTile * kPieces; item += kCopyThreads) {
        const i32 key = first + item / kPieces;
        const bool seen = key >= w.keys.begin && key < w.keys.end;
        const u8* const row = keys + (seen ? static_cast<i64>(first) * (kPieces * 16) + item * 16 : 0);
        copy_async16(to + item / kPieces * kRowBytes + item % kPieces * 16, row, seen ? 16 : 0);
    }
}

// Starts the copies of a tile of K; none are left for the tile after the last.
ATTEST_DEVICE void start_k(u8* shared, const AttentionParams& a, const Work& w, i32 tile) {
    if (tile >= w.end_tile) {
        return;
    }
    u8* const to = shared + (kCast ? Shared::raw_k : Shared::k + tile % 2 * kTileBytes);
    if (kDense) {
        const i64 head = recomputed(w.request) * a.k_page_stride + recomputed(w.kv_head) * a.k_head_stride;
        start_dense_tile(to, a.k + head * KV_FORMAT::bytes, w, tile);
    } else {
        start_tile(to, key_rows(shared, tile));
    }
}

ATTEST_DEVICE void start_v(u8* shared, const AttentionParams& a, const Work& w, i32 tile) {
    if (tile >= w.end_tile) {
        return;
    }
    u8* const to = shared + (kCast ? Shared::raw_v : Shared::v + tile % 2 * kTileBytes);
    if (kDense) {
        const i64 head = recomputed(w.request) * a.v_page_stride + recomputed(w.kv_head) * a.v_head_stride;
        start_dense_tile(to, a.v + head * KV_FORMAT::bytes, w, tile);
    } else {
        start_tile(to, key_rows(shared, tile) + kKeyTile);
    }
}

// Copies the block's rows of q, all threads together; rows beyond the request's last become zero.
ATTEST_DEVICE void copy_queries(u8* shared, const AttentionParams& a, const Work& w) {
    constexpr int chunks = kDim * 2 / 16;
    const i32 group = a.num_q_heads / a.num_kv_heads;
    for (int item = threadIdx.x; item < kRows * chunks; item += kThreads) {
        const int row = item / chunks, chunk = item % chunks;
        const i32 packed = w.first_packed + row;
        const bool exists = packed < w.packed_rows;
        const i64 query = w.first_query + packed / group, head = w.kv_head * group + packed % group;
        const u8* from = a.q + (exists ? (query * a.q_row_stride + head * a.q_head_stride + chunk * 8) * 2 : 0);
        copy_async16(shared + Shared::q + row * kRowBytes + chunk * 16, from, exists ? 16 : 0);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// A warp's rows and scores
// ---------------------------------------------------------------------------------------------------------------

// One of a thread's rows.
struct ThreadRow {
    float max, sum;  // maximum of the raw scores so far; sum of this thread's weights
};

using ThreadRows = ThreadRow[kRowTiles][2];

// What stays the same over a block's tiles, for one warp.
struct Warp {
    const u8* q_tile;
    float scale, to_base_2;
    i32 packed;                // this thread's first row
    i32 full_begin, full_end;  // keys that every row of the warp sees
    int group, share;          // which rows of the block, and which part of their keys and dims
    bool has_rows;
};

// The keys that a packed row sees: none if it does not exist.
ATTEST_DEVICE KeyRange keys_of_row(const AttentionParams& a, const Work& w, i32 packed) {
    return packed < w.packed_rows ? packed_row_keys(a, packed, w.q_len, w.kv_len) : KeyRange{0, 0};
}

ATTEST_DEVICE Warp start_warp(ThreadRows& rows, u8* shared, const AttentionParams& a, const Work& w) {
    const int index = threadIdx.x / 32, lane = threadIdx.x % 32;
    Warp warp;
    warp.group = index / kShares;
    warp.share = index % kShares;
    warp.q_tile = shared + Shared::q + warp.group * kWarpRows * kRowBytes;
    warp.packed = w.first_packed + warp.group * kWarpRows + lane / 4;
    warp.has_rows = w.first_packed + warp.group * kWarpRows < w.packed_rows;
    warp.scale = a.softmax_scale * (a.k_scales ? a.k_scales[w.kv_head] : a.k_scale);
    warp.to_base_2 = kModified ? kLog2E : warp.scale * kLog2E;
    ATTEST_UNROLL_FULL
    for (int m = 0; m < kRowTiles; ++m) {
        rows[m][0] = rows[m][1] = ThreadRow{negative_infinity(), 0.0f};
    }
    // Ranges grow with the row: what the first row still sees and the last sees already, all see. A row that does not
    // exist sees nothing, which masks every tile.
    const i32 first = w.first_packed + warp.group * kWarpRows;
    const KeyRange last_keys = keys_of_row(a, w, first + kWarpRows - 1);
    const i32 first_end = keys_of_row(a, w, first).end;
    warp.full_begin = last_keys.begin;
    warp.full_end = last_keys.end < first_end ? last_keys.end : first_end;
    return warp;
}

ATTEST_DEVICE void clear_sums(Sums& sums) {
    ATTEST_UNROLL_FULL
    for (int m = 0; m < kRowTiles; ++m) {
        ATTEST_UNROLL_FULL
        for (int n = 0; n < kWarpDims / 8; ++n) {
            sums[m][n][0] = sums[m][n][1] = sums[m][n][2] = sums[m][n][3] = 0.0f;
        }
    }
}

// Scales a row tile's sums down to new maxima: `decay` of the rows g and g + 8.
ATTEST_DEVICE void scale_sums(Sums& sums, const float (&decay)[kRowTiles][2]) {
    ATTEST_UNROLL_FULL
    for (int m = 0; m < kRowTiles; ++m) {
        ATTEST_UNROLL_FULL
        for (int n = 0; n < kWarpDims / 8; ++n) {
            sums[m][n][0] *= decay[m][0];
            sums[m][n][1] *= decay[m][0];
            sums[m][n][2] *= decay[m][1];
            sums[m][n][3] *= decay[m][1];
        }
    }
}

// S = Q K^T for the warp's rows and its part of a tile, whose first key row is `k_part`.
ATTEST_DEVICE void score_tile(Scores& scores, const u8* q_tile, const u8* k_part) {
    const int lane = threadIdx.x % 32;
    const u8* const q_row = q_tile + (lane % 16) * kRowBytes + lane / 16 * 16;
    const u8* const k_row = k_part + (lane / 16 * 8 + lane % 8) * kRowBytes + lane / 8 % 2 * 16;
    ATTEST_UNROLL_FULL
    for (int m = 0; m < kRowTiles; ++m) {
        ATTEST_UNROLL_FULL
        for (int n = 0; n < kWarpKeys / 8; ++n) {
            scores[m][n][0] = scores[m][n][1] = scores[m][n][2] = scores[m][n][3] = 0.0f;
        }
    }
    ATTEST_UNROLL_FULL
    for (int d = 0; d < kDim / 16; ++d) {
        u32 a[kRowTiles][4];
        ATTEST_UNROLL_FULL
        for (int m = 0; m < kRowTiles; ++m) {
            load_matrix_x4(a[m], q_row + m * 16 * kRowBytes + d * 32);
        }
        ATTEST_UNROLL_FULL
        for (int n = 0; n < kWarpKeys / 16; ++n) {
            u32 b[4];
            load_matrix_x4(b, k_row + n * 16 * kRowBytes + d * 32);
            const u32 first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
            ATTEST_UNROLL_FULL
            for (int m = 0; m < kRowTiles; ++m) {
                mma(Q_FORMAT{}, scores[m][2 * n], a[m], first);
                mma(Q_FORMAT{}, scores[m][2 * n + 1], a[m], second);
            }
        }
    }
}

// sums += P V for 16 keys: P as the fragments `weights`, V from the row `v_row` that this lane loads.
ATTEST_DEVICE void weigh_keys(Sums& sums, const u32 (&weights)[kRowTiles][4], const u8* v_row) {
    ATTEST_UNROLL_FULL
    for (int d = 0; d < kWarpDims / 16; ++d) {
        u32 b[4];
        load_matrix_x4_transposed(b, v_row + d * 32);
        const u32 first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
        ATTEST_UNROLL_FULL
        for (int m = 0; m < kRowTiles; ++m) {
            mma(Q_FORMAT{}, sums[m][2 * d], weights[m], first);
            mma(Q_FORMAT{}, sums[m][2 * d + 1], weights[m], second);
        }
    }
}

// Applies softcap and ALiBi; the scores then carry their whole scale.
ATTEST_DEVICE void modify_scores(Scores& scores, const AttentionParams& a, const Work& w, const Warp& warp,
                                 i32 first_key) {
    const i32 group = a.num_q_heads / a.num_kv_heads;
    const int lane = threadIdx.x % 32;
    ATTEST_UNROLL_FULL
    for (int m = 0; m < kRowTiles; ++m) {
        ATTEST_UNROLL_FULL
        for (int r = 0; r < 2; ++r) {
            const i32 packed = warp.packed + 16 * m + 8 * r;
            const i32 row = packed < w.packed_rows ? packed : w.packed_rows - 1;
            const i64 position = static_cast<i64>(w.kv_len) - w.q_len + row / group;
            const float slope = a.alibi_slopes ? a.alibi_slopes[w.kv_head * group + row % group] : 0.0f;
            ATTEST_UNROLL_FULL
            for (int n = 0; n < kWarpKeys / 8; ++n) {
                const i64 distance = first_key + n * 8 + lane % 4 * 2 - position;
                float(&pair)[4] = scores[m][n];
                pair[2 * r] = modify_score(pair[2 * r] * warp.scale, a.softcap, slope, distance);
                pair[2 * r + 1] = modify_score(pair[2 * r + 1] * warp.scale, a.softcap, slope, distance + 1);
            }
        }
    }
}

// Gives the keys that a row does not see the score -inf.
ATTEST_DEVICE void mask_scores(Scores& scores, const AttentionParams& a, const Work& w, const Warp& warp,
                               i32 first_key) {
    const i32 first = first_key + static_cast<i32>(threadIdx.x) % 4 * 2;
    ATTEST_UNROLL_FULL
    for (int m = 0; m < kRowTiles; ++m) {
        ATTEST_UNROLL_FULL
        for (int r = 0; r < 2; ++r) {
            const KeyRange keys = keys_of_row(a, w, warp.packed + 16 * m + 8 * r);
            ATTEST_UNROLL_FULL
            for (int n = 0; n < kWarpKeys / 8; ++n) {
                ATTEST_UNROLL_FULL
                for (int i = 0; i < 2; ++i) {
                    const i32 key = first + n * 8 + i;
                    if (key < keys.begin || key >= keys.end) {
                        scores[m][n][2 * r + i] = negative_infinity();
                    }
                }
            }
        }
    }
}

// A tile's scores as the softmax takes them: scaled where modified, and -inf where masked.
ATTEST_DEVICE void prepare_scores(Scores& scores, const AttentionParams& a, const Work& w, const Warp& warp,
                                  i32 tile) {
    const i32 first_key = tile * kKeyTile + warp.share * kWarpKeys;
    if (kModified) {
        modify_scores(scores, a, w, warp, first_key);
    }
    if (first_key < warp.full_begin || first_key + kWarpKeys > warp.full_end) {
        mask_scores(scores, a, w, warp, first_key);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// From the warp's registers to the output
// ---------------------------------------------------------------------------------------------------------------

// Writes the warp's dims of one row, a pair of neighbours per n.
ATTEST_DEVICE void write_row(const MmaParams& p, const Work& w, const Warp& warp, i32 packed,
                             const float (&sums)[kWarpDims / 8][4], int r, float max, float sum) {
    const AttentionParams& a = p.attention;
    const Destination at = find_destination(a, w, packed);
    const int lane = threadIdx.x % 32, first_dim = warp.share * kWarpDims + lane % 4 * 2;
    const bool writes_state = warp.share == 0 && lane % 4 == 0;
    const float base_2 = max == negative_infinity() ? max : max * warp.to_base_2;
    if (p.splits > 1) {
        const i64 entry = partial_entry(p, w, at);
        float* const to = p.partial_out + entry * kDim + first_dim;
        ATTEST_UNROLL_FULL
        for (int n = 0; n < kWarpDims / 8; ++n) {
            store8(to + n * 8, f32_bits(sums[n][2 * r]) | static_cast<u64>(f32_bits(sums[n][2 * r + 1])) << 32);
        }
        if (writes_state) {
            p.partial_state[entry * 2] = base_2;
            p.partial_state[entry * 2 + 1] = sum;
        }
        return;
    }
    const RowEnd end = finish_packed_row(a, w, at, base_2, sum);
    u8* const to = a.out + (at.query * a.out_row_stride + at.head * a.out_head_stride + first_dim) * 2;
    ATTEST_UNROLL_FULL
    for (int n = 0; n < kWarpDims / 8; ++n) {
        store4(to + n * 16, pack_pair(Q_FORMAT{}, sums[n][2 * r] * end.factor, sums[n][2 * r + 1] * end.factor));
    }
    if (a.lse && writes_state) {
        a.lse[at.query * a.lse_row_stride + at.head * a.lse_head_stride] = end.lse;
    }
}

// Sum of one row's weights over the four lanes that hold parts of it.
ATTEST_DEVICE float sum_over_lanes(float sum) {
    sum += __shfl_xor_sync(kFullWarp, sum, 1);
    sum += __shfl_xor_sync(kFullWarp, sum, 2);
    return sum;
}
