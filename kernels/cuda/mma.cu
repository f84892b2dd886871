// Flash attention on tensor cores (sm_80 and later) over a paged cache, for bf16 and f16 queries.
//
// One instance per query format, cache format, head dim and tile sizes; everything else is run-time. Warp w of a block
// owns kWarpRows packed rows (query position x query head of one KV head) and all keys of its split:
//
//   per tile of kKeyTile keys:  S = Q K^T    online softmax in base 2    O = O decay + P V
//
// The scores of the next tile follow the weighted sum of this one with no barrier between, so that warps drift apart and
// one's matrix work overlaps another's softmax. K and V travel by asynchronous copies in two buffers each, K one tile
// further ahead than V, with one barrier per tile. A cache of the query's own format is copied as it lies. An fp8 cache is copied raw and cast on its
// way into the tile (the staged arms), at the price of a second barrier.
//
// With more than one split, each writes its unnormalised sums and combine.cu merges them.
//
// A key that some rows of a tile see and others do not has weight exactly 0 in the others; a finite value there adds
// nothing, but a NaN or infinite V of such a key does reach them: on a tensor core 0 * NaN is NaN. Keys that no row of
// the block sees are never read.

#include "cast.cuh"
#include "packed.cuh"

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
// An fp8 cache is cast by the software decoder unless CAST_HARDWARE is defined (sm_89 and later).

constexpr int kWarps = WARPS;
constexpr int kThreads = 32 * kWarps;
constexpr int kRowTiles = ROW_TILES;
constexpr int kWarpRows = 16 * kRowTiles;
constexpr int kRows = kWarpRows * kWarps;
constexpr int kKeyTile = KEY_TILE;
constexpr int kDim = HEAD_DIM;
constexpr bool kCast = KV_FORMAT::bytes == 1;
// Score modifiers cost registers even where they are not asked for, so they have instances of their own.
constexpr bool kModified = MODIFIED;
constexpr u32 kFullWarp = 0xffffffffu;
// Tiles whose key rows are known at once: copies are started for tiles t + 1 and t + 2 while those of t + 3 are found.
constexpr int kRowRing = 4;

// Rows in shared memory are one 16-byte access apart from a multiple of the dims, so that the eight rows of a matrix
// load fall into different banks.
constexpr int kRowBytes = 2 * kDim + 16;
constexpr int kTileBytes = kKeyTile * kRowBytes;
constexpr int kRawRowBytes = kDim;
constexpr int kRawTileBytes = kKeyTile * kRawRowBytes;

static_assert(kDim % 16 == 0, "a matrix instruction takes 16 dims");
static_assert(kKeyTile % 16 == 0, "a matrix instruction takes 16 keys");

// Where the parts of shared memory lie, in bytes.
struct Shared {
    static constexpr int rows = 0;  // byte offset of each key row in the cache, K and V, of kRowRing tiles
    static constexpr int q = kRowRing * 2 * kKeyTile * 8;
    static constexpr int k = q + kRows * kRowBytes;
    static constexpr int buffers = kCast ? 1 : 2;
    static constexpr int v = k + buffers * kTileBytes;
    static constexpr int raw_k = v + buffers * kTileBytes;
    static constexpr int raw_v = raw_k + 2 * kRawTileBytes;
};

using Scores = float[kRowTiles][kKeyTile / 8][4];
using Sums = float[kRowTiles][kDim / 8][4];

ATTEST_DEVICE i64* key_rows(u8* shared, i32 tile) {
    return reinterpret_cast<i64*>(shared + Shared::rows) + tile % kRowRing * 2 * kKeyTile;
}

// Finds where the key rows of a tile lie in the cache. Keys outside the block's range get -1 and are never read, nor are
// tiles of the next split.
ATTEST_DEVICE void find_key_rows(u8* shared, const MmaParams& p, const Work& w, const i32* block_table_row, i32 tile) {
    const AttentionParams& a = p.attention;
    i64* const rows = key_rows(shared, tile);
    for (i32 slot = threadIdx.x; slot < kKeyTile; slot += kThreads) {
        const i32 key = tile * kKeyTile + slot;
        i64 k_row = -1, v_row = -1;
        if (tile < w.end_tile && key >= w.keys.begin && key < w.keys.end) {
            const Slot at = find_slot(p, block_table_row, key);
            k_row = (at.page * a.k_page_stride + at.in_page * a.k_slot_stride) * KV_FORMAT::bytes;
            v_row = (at.page * a.v_page_stride + at.in_page * a.v_slot_stride) * KV_FORMAT::bytes;
        }
        rows[slot] = k_row;
        rows[kKeyTile + slot] = v_row;
    }
}

// Starts the copies of one operand's tile.
ATTEST_DEVICE void start_tile(u8* to, const u8* head, const i64* rows) {
    constexpr int chunks = kDim * KV_FORMAT::bytes / 16;
    constexpr int row_bytes = kCast ? kRawRowBytes : kRowBytes;
    constexpr int rounds = (kKeyTile * chunks + kThreads - 1) / kThreads;
    ATTEST_UNROLL_FULL
    for (int round = 0; round < rounds; ++round) {
        const int item = round * kThreads + threadIdx.x;
        if (kKeyTile * chunks % kThreads != 0 && item >= kKeyTile * chunks) {
            break;
        }
        const int row = item / chunks, chunk = item % chunks;
        const i64 at = rows[row];
        copy_async16(to + row * row_bytes + chunk * 16, head + (at < 0 ? 0 : at) + chunk * 16, at < 0 ? 0 : 16);
    }
}

ATTEST_DEVICE void start_k(u8* shared, const u8* k_head, i32 tile) {
    u8* const to = kCast ? shared + Shared::raw_k + tile % 2 * kRawTileBytes : shared + Shared::k + tile % 2 * kTileBytes;
    start_tile(to, k_head, key_rows(shared, tile));
}

ATTEST_DEVICE void start_v(u8* shared, const u8* v_head, i32 tile) {
    u8* const to = kCast ? shared + Shared::raw_v + tile % 2 * kRawTileBytes : shared + Shared::v + tile % 2 * kTileBytes;
    start_tile(to, v_head, key_rows(shared, tile) + kKeyTile);
}

ATTEST_DEVICE const u8* k_tile(const u8* shared, i32 tile) {
    return shared + Shared::k + (kCast ? 0 : tile % 2 * kTileBytes);
}

ATTEST_DEVICE const u8* v_tile(const u8* shared, i32 tile) {
    return shared + Shared::v + (kCast ? 0 : tile % 2 * kTileBytes);
}

// Casts one operand's raw tile, eight codes at a time.
ATTEST_DEVICE void cast_tile(u8* to, const u8* from) {
    constexpr int chunks = kDim / 8;
    for (int item = threadIdx.x; item < kKeyTile * chunks; item += kThreads) {
        const int row = item / chunks, chunk = item % chunks;
        const u64 codes = load8(from + row * kRawRowBytes + chunk * 8);
        store16(to + row * kRowBytes + chunk * 16, cast_eight<Q_FORMAT, KV_FORMAT>(codes));
    }
}

// Copies the block's rows of q; rows beyond the request's last become zero.
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

// S = Q K^T for the warp's rows and one tile. Element i of scores[m][n] is row 16m + g + 8 (i / 2), key 8n + 2t + i % 2,
// with g = lane / 4 and t = lane % 4.
ATTEST_DEVICE void score_tile(Scores& scores, const u8* q_tile, const u8* k_tile) {
    const int lane = threadIdx.x % 32;
    const u8* const q_row = q_tile + (lane % 16) * kRowBytes + lane / 16 * 16;
    const u8* const k_row = k_tile + (lane / 16 * 8 + lane % 8) * kRowBytes + lane / 8 % 2 * 16;
    ATTEST_UNROLL_FULL
    for (int m = 0; m < kRowTiles; ++m) {
        ATTEST_UNROLL_FULL
        for (int n = 0; n < kKeyTile / 8; ++n) {
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
        for (int n = 0; n < kKeyTile / 16; ++n) {
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

// O += P V for one tile. Element i of out[m][n] is row 16m + g + 8 (i / 2), dim 8n + 2t + i % 2.
ATTEST_DEVICE void weigh_tile(Sums& out, const Scores& weights, const u8* v_tile) {
    const int lane = threadIdx.x % 32;
    const u8* const v_row = v_tile + (lane % 16) * kRowBytes + lane / 16 * 16;
    ATTEST_UNROLL_FULL
    for (int j = 0; j < kKeyTile / 16; ++j) {
        u32 a[kRowTiles][4];
        ATTEST_UNROLL_FULL
        for (int m = 0; m < kRowTiles; ++m) {
            a[m][0] = pack_pair(Q_FORMAT{}, weights[m][2 * j][0], weights[m][2 * j][1]);
            a[m][1] = pack_pair(Q_FORMAT{}, weights[m][2 * j][2], weights[m][2 * j][3]);
            a[m][2] = pack_pair(Q_FORMAT{}, weights[m][2 * j + 1][0], weights[m][2 * j + 1][1]);
            a[m][3] = pack_pair(Q_FORMAT{}, weights[m][2 * j + 1][2], weights[m][2 * j + 1][3]);
        }
        ATTEST_UNROLL_FULL
        for (int d = 0; d < kDim / 16; ++d) {
            u32 b[4];
            load_matrix_x4_transposed(b, v_row + j * 16 * kRowBytes + d * 32);
            const u32 first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
            ATTEST_UNROLL_FULL
            for (int m = 0; m < kRowTiles; ++m) {
                mma(Q_FORMAT{}, out[m][2 * d], a[m], first);
                mma(Q_FORMAT{}, out[m][2 * d + 1], a[m], second);
            }
        }
    }
}

// One of a thread's rows.
struct ThreadRow {
    KeyRange keys;
    float max, sum;  // maximum of the raw scores so far; sum of this thread's weights
};

using ThreadRows = ThreadRow[kRowTiles][2];

// Turns raw scores of a tile into weights and scales earlier sums down to the new maximum.
ATTEST_DEVICE void softmax_tile(Scores& scores, ThreadRows& rows, Sums& out, float to_base_2) {
    float decay[kRowTiles][2];
    bool settled = true;
    ATTEST_UNROLL_FULL
    for (int m = 0; m < kRowTiles; ++m) {
        ATTEST_UNROLL_FULL
        for (int r = 0; r < 2; ++r) {
            ThreadRow& row = rows[m][r];
            float max = row.max;
            ATTEST_UNROLL_FULL
            for (int n = 0; n < kKeyTile / 8; ++n) {
                max = max_keeping_nan(max, max_keeping_nan(scores[m][n][2 * r], scores[m][n][2 * r + 1]));
            }
            max = max_keeping_nan(max, __shfl_xor_sync(kFullWarp, max, 1));
            max = max_keeping_nan(max, __shfl_xor_sync(kFullWarp, max, 2));
            // With nothing seen yet the maximum is -inf, and -inf - -inf would be NaN: any finite shift serves.
            const float shift = max == negative_infinity() ? 0.0f : -max * to_base_2;
            decay[m][r] = exp2_weight(fmaf(row.max, to_base_2, shift));
            settled = settled && decay[m][r] == 1.0f;
            row.max = max;
            float sum = row.sum * decay[m][r];
            ATTEST_UNROLL_FULL
            for (int n = 0; n < kKeyTile / 8; ++n) {
                scores[m][n][2 * r] = exp2_weight(fmaf(scores[m][n][2 * r], to_base_2, shift));
                scores[m][n][2 * r + 1] = exp2_weight(fmaf(scores[m][n][2 * r + 1], to_base_2, shift));
                sum += scores[m][n][2 * r] + scores[m][n][2 * r + 1];
            }
            row.sum = sum;
        }
    }
    // Once the maxima have settled the factors are 1, and multiplying by 1 changes no bit.
    if (__all_sync(kFullWarp, settled)) {
        return;
    }
    ATTEST_UNROLL_FULL
    for (int m = 0; m < kRowTiles; ++m) {
        ATTEST_UNROLL_FULL
        for (int n = 0; n < kDim / 8; ++n) {
            out[m][n][0] *= decay[m][0];
            out[m][n][1] *= decay[m][0];
            out[m][n][2] *= decay[m][1];
            out[m][n][3] *= decay[m][1];
        }
    }
}

// Applies softcap and ALiBi; the scores then carry their whole scale.
ATTEST_DEVICE void modify_tile(Scores& scores, const AttentionParams& a, const Work& w, i32 tile, i32 packed,
                               float scale) {
    const i32 group = a.num_q_heads / a.num_kv_heads;
    const int lane = threadIdx.x % 32;
    ATTEST_UNROLL_FULL
    for (int m = 0; m < kRowTiles; ++m) {
        ATTEST_UNROLL_FULL
        for (int r = 0; r < 2; ++r) {
            const i32 row = packed + 16 * m + 8 * r < w.packed_rows ? packed + 16 * m + 8 * r : w.packed_rows - 1;
            const i64 position = static_cast<i64>(w.kv_len) - w.q_len + row / group;
            const float slope = a.alibi_slopes ? a.alibi_slopes[w.kv_head * group + row % group] : 0.0f;
            ATTEST_UNROLL_FULL
            for (int n = 0; n < kKeyTile / 8; ++n) {
                const i64 distance = tile * kKeyTile + n * 8 + lane % 4 * 2 - position;
                float(&pair)[4] = scores[m][n];
                pair[2 * r] = modify_score(pair[2 * r] * scale, a.softcap, slope, distance);
                pair[2 * r + 1] = modify_score(pair[2 * r + 1] * scale, a.softcap, slope, distance + 1);
            }
        }
    }
}

ATTEST_DEVICE void mask_tile(Scores& scores, const ThreadRows& rows, i32 tile) {
    const i32 first = tile * kKeyTile + static_cast<i32>(threadIdx.x) % 4 * 2;
    ATTEST_UNROLL_FULL
    for (int m = 0; m < kRowTiles; ++m) {
        ATTEST_UNROLL_FULL
        for (int n = 0; n < kKeyTile / 8; ++n) {
            ATTEST_UNROLL_FULL
            for (int i = 0; i < 4; ++i) {
                const i32 key = first + n * 8 + i % 2;
                const KeyRange keys = rows[m][i / 2].keys;
                if (key < keys.begin || key >= keys.end) {
                    scores[m][n][i] = negative_infinity();
                }
            }
        }
    }
}

// Writes one row's pair of neighbouring dims per n.
ATTEST_DEVICE void write_row(const MmaParams& p, const Work& w, i32 packed, const float (&out)[kDim / 8][4], int r,
                             float max, float sum, float to_base_2) {
    const AttentionParams& a = p.attention;
    const Destination at = find_destination(a, w, packed);
    const int lane = threadIdx.x % 32;
    const float base_2 = max == negative_infinity() ? max : max * to_base_2;
    if (p.splits > 1) {
        const i64 entry = partial_entry(p, w, at);
        float* const to = p.partial_out + entry * kDim + lane % 4 * 2;
        ATTEST_UNROLL_FULL
        for (int n = 0; n < kDim / 8; ++n) {
            store8(to + n * 8, f32_bits(out[n][2 * r]) | static_cast<u64>(f32_bits(out[n][2 * r + 1])) << 32);
        }
        if (lane % 4 == 0) {
            p.partial_state[entry * 2] = base_2;
            p.partial_state[entry * 2 + 1] = sum;
        }
        return;
    }
    const RowEnd end = finish_packed_row(a, w, at, base_2, sum);
    u8* const to = a.out + (at.query * a.out_row_stride + at.head * a.out_head_stride + lane % 4 * 2) * 2;
    ATTEST_UNROLL_FULL
    for (int n = 0; n < kDim / 8; ++n) {
        store4(to + n * 16, pack_pair(Q_FORMAT{}, out[n][2 * r] * end.factor, out[n][2 * r + 1] * end.factor));
    }
    if (a.lse && lane % 4 == 0) {
        a.lse[at.query * a.lse_row_stride + at.head * a.lse_head_stride] = end.lse;
    }
}

// What stays the same over a block's tiles, for one warp.
struct Warp {
    const u8* q_tile;
    float scale, to_base_2;
    i32 packed;         // this thread's first row
    i32 full_begin, full_end;  // keys that every row of the warp sees
    bool has_rows;
};

// The tile's scores as the softmax takes them: scaled where modified, and -inf where masked.
ATTEST_DEVICE void prepare_scores(Scores& scores, const ThreadRows& rows, const Warp& warp, const AttentionParams& a,
                                  const Work& w, i32 tile) {
    if (kModified) {
        modify_tile(scores, a, w, tile, warp.packed, warp.scale);
    }
    if (tile * kKeyTile < warp.full_begin || (tile + 1) * kKeyTile > warp.full_end) {
        mask_tile(scores, rows, tile);
    }
}

ATTEST_DEVICE Warp start_warp(ThreadRows& rows, u8* shared, const AttentionParams& a, const Work& w) {
    const int index = threadIdx.x / 32, lane = threadIdx.x % 32;
    Warp warp;
    warp.q_tile = shared + Shared::q + index * kWarpRows * kRowBytes;
    warp.packed = w.first_packed + index * kWarpRows + lane / 4;
    warp.has_rows = w.first_packed + index * kWarpRows < w.packed_rows;
    warp.scale = a.softmax_scale * (a.k_scales ? a.k_scales[w.kv_head] : a.k_scale);
    warp.to_base_2 = kModified ? kLog2E : warp.scale * kLog2E;
    ATTEST_UNROLL_FULL
    for (int m = 0; m < kRowTiles; ++m) {
        ATTEST_UNROLL_FULL
        for (int r = 0; r < 2; ++r) {
            const i32 packed = warp.packed + 16 * m + 8 * r;
            rows[m][r] = ThreadRow{KeyRange{0, 0}, negative_infinity(), 0.0f};
            if (packed < w.packed_rows) {
                rows[m][r].keys = packed_row_keys(a, packed, w.q_len, w.kv_len);
            }
        }
    }
    // Ranges grow with the row: what the first row still sees and the last sees already, all see. A row that does not
    // exist sees nothing, which masks every tile.
    warp.full_end = __shfl_sync(kFullWarp, rows[0][0].keys.end, 0);
    warp.full_begin = __shfl_sync(kFullWarp, rows[kRowTiles - 1][1].keys.begin, 31);
    const i32 last_end = __shfl_sync(kFullWarp, rows[kRowTiles - 1][1].keys.end, 31);
    warp.full_end = last_end < warp.full_end ? last_end : warp.full_end;
    return warp;
}

// The entry's name tells prefill and decode instances apart in launch counts.
#define MMA_KERNEL(name) ATTEST_KERNEL(name, MmaParams, kThreads)

MMA_KERNEL(ENTRY) {
    ATTEST_SHARED(shared);
    const AttentionParams& a = p.attention;
    const Work w = find_work<kRows, kKeyTile>(p);
    if (w.first_packed >= w.packed_rows) {
        return;
    }
    const i32* const block_table_row = a.block_table + w.request * a.block_table_stride;
    const u8* const k_head = a.k + w.kv_head * a.k_head_stride * KV_FORMAT::bytes;
    const u8* const v_head = a.v + w.kv_head * a.v_head_stride * KV_FORMAT::bytes;
    ThreadRows rows;
    const Warp warp = start_warp(rows, shared, a, w);
    Sums out;
    ATTEST_UNROLL_FULL
    for (int m = 0; m < kRowTiles; ++m) {
        ATTEST_UNROLL_FULL
        for (int n = 0; n < kDim / 8; ++n) {
            out[m][n][0] = out[m][n][1] = out[m][n][2] = out[m][n][3] = 0.0f;
        }
    }

    if (w.first_tile < w.end_tile) {
        ATTEST_UNROLL_FULL
        for (int ahead = 0; ahead < 3; ++ahead) {
            find_key_rows(shared, p, w, block_table_row, w.first_tile + ahead);
        }
        copy_queries(shared, a, w);
        __syncthreads();
        start_k(shared, k_head, w.first_tile);
        copy_async_commit();
        start_k(shared, k_head, w.first_tile + 1);
        start_v(shared, v_head, w.first_tile);
        copy_async_commit();
        copy_async_wait<1>();
        // Q and the first K have arrived for everybody.
        __syncthreads();
        if (kCast) {
            cast_tile(shared + Shared::k, shared + Shared::raw_k + w.first_tile % 2 * kRawTileBytes);
            __syncthreads();
        }
        Scores scores;
        if (warp.has_rows) {
            score_tile(scores, warp.q_tile, k_tile(shared, w.first_tile));
            prepare_scores(scores, rows, warp, a, w, w.first_tile);
        }
        for (i32 tile = w.first_tile; tile < w.end_tile; ++tile) {
            copy_async_wait<0>();
            // V of this tile and K of the next have arrived for everybody; everybody has done with those before.
            __syncthreads();
            start_k(shared, k_head, tile + 2);
            start_v(shared, v_head, tile + 1);
            copy_async_commit();
            find_key_rows(shared, p, w, block_table_row, tile + 3);
            if (kCast) {
                cast_tile(shared + Shared::k, shared + Shared::raw_k + (tile + 1) % 2 * kRawTileBytes);
                cast_tile(shared + Shared::v, shared + Shared::raw_v + tile % 2 * kRawTileBytes);
                // The cast tiles are complete.
                __syncthreads();
            }
            if (warp.has_rows) {
                softmax_tile(scores, rows, out, warp.to_base_2);
                weigh_tile(out, scores, v_tile(shared, tile));
                if (tile + 1 < w.end_tile) {
                    score_tile(scores, warp.q_tile, k_tile(shared, tile + 1));
                    prepare_scores(scores, rows, warp, a, w, tile + 1);
                }
            }
        }
    }

    if (!warp.has_rows) {
        return;
    }
    ATTEST_UNROLL_FULL
    for (int m = 0; m < kRowTiles; ++m) {
        ATTEST_UNROLL_FULL
        for (int r = 0; r < 2; ++r) {
            const i32 packed = warp.packed + 16 * m + 8 * r;
            float sum = rows[m][r].sum;
            sum += __shfl_xor_sync(kFullWarp, sum, 1);
            sum += __shfl_xor_sync(kFullWarp, sum, 2);
            if (packed < w.packed_rows) {
                write_row(p, w, packed, out[m], r, rows[m][r].max, sum, warp.to_base_2);
            }
        }
    }
}
