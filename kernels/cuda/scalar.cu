// Flash attention on CUDA cores over a paged cache. Stored codes are decoded at each read: a tile is kept in shared
// memory as it lies in the cache. One instance per format of q (and out) and of the cache; everything else is run-time.
//
// A block of 128 threads serves 16 packed rows (query position x query head of one KV head) and walks tiles of up to
// 64 keys:
//
//   scores   warp w owns rows 4w..4w+3, lane l owns keys l and l + 32 of the tile
//   P V      thread (g, c) owns dims 4c..4c+3 of all rows and every G-th key, G = 128 / (head_dim_v / 4) at most 32
//
// Tiles start at multiples of the tile length, whatever the window: a row's arithmetic depends on its own keys only.

#include "attention.cuh"

constexpr int kThreads = 128;
// Leaves a thread the registers that its 64 accumulators and 8 scores need: with a third block they would spill.
constexpr int kBlocksPerMultiprocessor = 2;
constexpr int kRows = 16;
constexpr int kRowsPerWarp = 4;
constexpr int kKeysPerLane = 2;
constexpr int kMaxKeyGroups = 32;
constexpr int kDimsPerThread = 4;
constexpr u32 kFullWarp = 0xffffffffu;

// In P: the row does not see the key. Probabilities are never negative, and a NaN must stay visible.
constexpr float kMasked = -1.0f;

struct ScalarParams {
    AttentionParams attention;
    i32 row_tiles;          // blocks per request and KV head
    i32 key_tile;           // keys per tile: a power of two, 8 to 64
    i32 k_copy_bytes;       // widest access that suits every key row of K: 1, 2, 4, 8 or 16
    i32 v_copy_bytes;
    i32 k_row_bytes;        // distance of key rows in shared memory, a multiple of 16
    i32 v_row_bytes;
    i32 q_quads_aligned;    // whether four elements of q can be read at once
    i32 out_quads_aligned;
    i32 v_tile_offset;      // of shared memory, in bytes
    i32 k_tile_offset;
};

// The request, KV head and rows that a block serves.
struct Work {
    i32 request, kv_head;
    i32 group;         // query heads per KV head
    i32 first_packed;  // of the block
    i32 first_query;   // of the request, a row of q and out
    i32 q_len, kv_len;
};

// One packed row.
struct Row {
    KeyRange keys;
    i32 position;
    i32 query_head;
    i32 query_row;  // row of q and out; -1 beyond the request's last
};

ATTEST_DEVICE Work block_work(const AttentionParams& a, i32 row_tiles) {
    const i32 pair = static_cast<i32>(blockIdx.x / static_cast<u32>(row_tiles));
    Work work;
    work.request = pair / a.num_kv_heads;
    work.kv_head = pair % a.num_kv_heads;
    work.group = a.num_q_heads / a.num_kv_heads;
    work.first_packed = static_cast<i32>(blockIdx.x % static_cast<u32>(row_tiles)) * kRows;
    work.first_query = a.query_start_loc[work.request];
    work.q_len = a.query_start_loc[work.request + 1] - work.first_query;
    work.kv_len = a.seq_lens[work.request];
    return work;
}

ATTEST_DEVICE Row packed_row(const AttentionParams& a, const Work& work, i32 in_block) {
    const i32 packed = work.first_packed + in_block;
    const i32 index = packed / work.group;
    Row row;
    row.query_head = work.kv_head * work.group + packed % work.group;
    row.position = work.kv_len - work.q_len + index;
    row.query_row = index < work.q_len ? work.first_query + index : -1;
    row.keys = KeyRange{0, 0};
    if (index < work.q_len) {
        row.keys = visible_keys(row.position, work.kv_len, a.causal, a.window_left, a.window_right);
    }
    return row;
}

// One of the two cache tensors as the block reads it, and its tile in shared memory.
struct Staged {
    const u8* cache;  // at the block's KV head
    i64 page_stride, slot_stride;
    u8* tile;
    i32 row_bytes, shared_row_bytes, copy_bytes;
};

// Copies the rows of keys [begin, end) of the tile that starts at `tile`, several threads to a key. Slots outside the
// range are not read: nobody may own them.
ATTEST_DEVICE void stage_keys(const Staged& side, const i32* block_table_row, i32 page_size, i32 tile, KeyRange range,
                              i32 threads_per_key) {
    const i32 slot = threadIdx.x / threads_per_key;
    const i32 key = tile + slot;
    if (key < range.begin || key >= range.end) {
        return;
    }
    const u8* from = side.cache + key_offset(block_table_row, key, page_size, side.page_stride, side.slot_stride) *
                                      KV_FORMAT::bytes;
    u8* to = side.tile + slot * side.shared_row_bytes;
    const i32 step = threads_per_key * side.copy_bytes;
    for (i32 at = threadIdx.x % threads_per_key * side.copy_bytes; at < side.row_bytes; at += step) {
        copy_bytes(to + at, from + at, side.copy_bytes);
    }
}

// Decodes the block's rows of q into shared memory; rows beyond the request's last become zero.
ATTEST_DEVICE void stage_queries(u8* shared, const AttentionParams& a, const Work& work, i32 aligned) {
    const i32 quads = a.head_dim_k / 4;
    for (i32 item = threadIdx.x; item < kRows * quads; item += kThreads) {
        const i32 packed = work.first_packed + item / quads;
        const i32 index = packed / work.group;
        Quad value = Quad{0.0f, 0.0f, 0.0f, 0.0f};
        if (index < work.q_len) {
            const i64 row = work.first_query + index;
            const i64 head = work.kv_head * work.group + packed % work.group;
            const u8* from = a.q + (row * a.q_row_stride + head * a.q_head_stride + item % quads * 4) * Q_FORMAT::bytes;
            value = aligned ? load_quad<Q_FORMAT>(from) : load_quad_unaligned<Q_FORMAT>(from);
        }
        store_quad_f32(shared + item * 16, value);
    }
}

// The keys of the tile that starts at `tile` which some row of the block may see.
ATTEST_DEVICE KeyRange tile_keys(KeyRange block_keys, i32 tile, i32 key_tile) {
    return KeyRange{block_keys.begin > tile ? block_keys.begin : tile,
                    block_keys.end < tile + key_tile ? block_keys.end : tile + key_tile};
}

ATTEST_DEVICE float larger(float a, float b) { return a > b ? a : b; }

template <bool sum>
ATTEST_DEVICE float combine(float a, float b) {
    return sum ? a + b : larger(a, b);
}

// Reduces the values of a warp's four rows over its lanes in one pass: each of the first two exchanges leaves half as
// many rows to a lane. Lanes 8r to 8r + 7 return row r.
template <bool sum>
ATTEST_DEVICE float reduce_rows(const float (&values)[kRowsPerWarp]) {
    const bool upper = threadIdx.x & 16, odd = threadIdx.x & 8;
    const float low = __shfl_xor_sync(kFullWarp, upper ? values[0] : values[2], 16);
    const float high = __shfl_xor_sync(kFullWarp, upper ? values[1] : values[3], 16);
    const float first = combine<sum>(upper ? values[2] : values[0], low);
    const float second = combine<sum>(upper ? values[3] : values[1], high);
    float value = combine<sum>(odd ? second : first, __shfl_xor_sync(kFullWarp, odd ? first : second, 8));
    ATTEST_UNROLL(3)
    for (int distance = 4; distance > 0; distance /= 2) {
        value = combine<sum>(value, __shfl_xor_sync(kFullWarp, value, distance));
    }
    return value;
}

ATTEST_DEVICE float dot(Quad a, Quad b, float sum) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// Dot products of a lane's keys, the first at `key` and others `key_distance` bytes apart, with the four rows of its
// warp.
template <int keys>
ATTEST_DEVICE void score_keys(const u8* key, i32 key_distance, const u8* queries, i32 dims,
                              float (&scores)[keys][kRowsPerWarp]) {
    ATTEST_UNROLL(2)
    for (i32 d = 0; d < dims; d += 4) {
        Quad k[keys];
        ATTEST_UNROLL(2)
        for (int i = 0; i < keys; ++i) {
            k[i] = load_quad<KV_FORMAT>(key + i * key_distance + d * KV_FORMAT::bytes);
        }
        ATTEST_UNROLL(4)
        for (int r = 0; r < kRowsPerWarp; ++r) {
            const Quad q = load_quad_f32(queries + (r * dims + d) * 4);
            ATTEST_UNROLL(2)
            for (int i = 0; i < keys; ++i) {
                scores[i][r] = dot(k[i], q, scores[i][r]);
            }
        }
    }
}

// What a lane knows of its warp's four rows: which keys they see, and their running softmax. `max` is the row's over
// all keys so far, `sum` over this lane's keys only.
struct WarpRows {
    KeyRange keys[kRowsPerWarp];
    i32 position[kRowsPerWarp];
    float slope[kRowsPerWarp];
    float max[kRowsPerWarp], sum[kRowsPerWarp];
};

ATTEST_DEVICE WarpRows open_rows(const AttentionParams& a, const Work& work, i32 warp_row, i32 lane) {
    WarpRows rows;
    ATTEST_UNROLL(4)
    for (int r = 0; r < kRowsPerWarp; ++r) {
        const Row row = packed_row(a, work, warp_row + r);
        const bool exists = row.query_row >= 0;
        rows.keys[r] = row.keys;
        rows.position[r] = row.position;
        rows.slope[r] = exists && a.alibi_slopes ? a.alibi_slopes[row.query_head] : 0.0f;
        // A sink is a key of value zero: it opens the running sum, in one lane.
        const bool sink = exists && a.sinks;
        rows.max[r] = sink ? a.sinks[row.query_head] : negative_infinity();
        rows.sum[r] = sink && lane == 0 ? 1.0f : 0.0f;
    }
    return rows;
}

// A lane's two keys of a tile against its warp's rows.
struct TileScores {
    float score[kKeysPerLane][kRowsPerWarp];
    bool visible[kKeysPerLane][kRowsPerWarp];
};

ATTEST_DEVICE TileScores score_tile(const AttentionParams& a, const WarpRows& rows, const u8* own_key, i32 row_bytes,
                                    const u8* own_queries, i32 tile, i32 key_tile, i32 lane, float scale) {
    TileScores result = {};
    bool any[kKeysPerLane] = {false, false};
    ATTEST_UNROLL(2)
    for (int i = 0; i < kKeysPerLane; ++i) {
        const i32 slot = lane + 32 * i, key = tile + slot;
        ATTEST_UNROLL(4)
        for (int r = 0; r < kRowsPerWarp; ++r) {
            result.visible[i][r] = slot < key_tile && key >= rows.keys[r].begin && key < rows.keys[r].end;
            any[i] = any[i] || result.visible[i][r];
        }
    }
    if (any[0] && any[1]) {
        score_keys<2>(own_key, 32 * row_bytes, own_queries, a.head_dim_k, result.score);
    } else if (any[0] || any[1]) {
        float single[1][kRowsPerWarp] = {};
        score_keys<1>(own_key + (any[1] ? 32 * row_bytes : 0), 0, own_queries, a.head_dim_k, single);
        ATTEST_UNROLL(4)
        for (int r = 0; r < kRowsPerWarp; ++r) {
            result.score[0][r] = result.score[1][r] = single[0][r];
        }
    }
    ATTEST_UNROLL(2)
    for (int i = 0; i < kKeysPerLane; ++i) {
        ATTEST_UNROLL(4)
        for (int r = 0; r < kRowsPerWarp; ++r) {
            const i64 distance = static_cast<i64>(tile + lane + 32 * i) - rows.position[r];
            result.score[i][r] = modify_score(result.score[i][r] * scale, a.softcap, rows.slope[r], distance);
        }
    }
    return result;
}

// Moves the rows' maxima on to include the tile; `decay` receives the factor that everything summed so far needs, and
// `shift` what exponents are taken against.
ATTEST_DEVICE void raise_maxima(WarpRows& rows, const TileScores& tile, float (&decay)[kRowsPerWarp],
                                float (&shift)[kRowsPerWarp]) {
    float candidates[kRowsPerWarp];
    ATTEST_UNROLL(4)
    for (int r = 0; r < kRowsPerWarp; ++r) {
        candidates[r] = negative_infinity();
        ATTEST_UNROLL(2)
        for (int i = 0; i < kKeysPerLane; ++i) {
            // A NaN is no candidate for the maximum: it reaches the row through its probability.
            candidates[r] = tile.visible[i][r] ? larger(tile.score[i][r], candidates[r]) : candidates[r];
        }
    }
    const float own_max = reduce_rows<false>(candidates);
    ATTEST_UNROLL(4)
    for (int r = 0; r < kRowsPerWarp; ++r) {
        const float old_max = rows.max[r];
        rows.max[r] = larger(__shfl_sync(kFullWarp, own_max, 8 * r), old_max);
        // With nothing seen yet the maximum is -inf, and -inf - -inf would be NaN: any finite shift serves.
        shift[r] = rows.max[r] == negative_infinity() ? 0.0f : rows.max[r];
        decay[r] = exp_f32(old_max - shift[r]);
        rows.sum[r] *= decay[r];
    }
}

// Writes this lane's part of P and, in one lane, the rows' decay factors.
ATTEST_DEVICE void write_probabilities(WarpRows& rows, const TileScores& tile, float* probabilities, float* decays,
                                       i32 key_tile, i32 warp_row, i32 lane) {
    float decay[kRowsPerWarp], shift[kRowsPerWarp];
    raise_maxima(rows, tile, decay, shift);
    ATTEST_UNROLL(2)
    for (int i = 0; i < kKeysPerLane; ++i) {
        if (lane + 32 * i >= key_tile) {
            continue;
        }
        float p[kRowsPerWarp];
        ATTEST_UNROLL(4)
        for (int r = 0; r < kRowsPerWarp; ++r) {
            p[r] = tile.visible[i][r] ? exp_f32(tile.score[i][r] - shift[r]) : kMasked;
            rows.sum[r] += tile.visible[i][r] ? p[r] : 0.0f;
        }
        store_quad_f32(probabilities + (lane + 32 * i) * kRows + warp_row, Quad{p[0], p[1], p[2], p[3]});
    }
    if (lane == 0) {
        store_quad_f32(decays + warp_row, Quad{decay[0], decay[1], decay[2], decay[3]});
    }
}

// Sums the rows' denominators over the warp and writes them, and lse where it is wanted.
ATTEST_DEVICE void close_rows(const AttentionParams& a, const Work& work, const WarpRows& rows, float* denominators,
                              i32 warp_row, i32 lane) {
    const float own_sum = reduce_rows<true>(rows.sum);
    ATTEST_UNROLL(4)
    for (int r = 0; r < kRowsPerWarp; ++r) {
        if (lane == 8 * r) {
            const Row row = packed_row(a, work, warp_row + r);
            store_f32(denominators + warp_row + r, own_sum);
            if (a.lse && row.query_row >= 0) {
                // Nothing visible: -inf + ln 0.
                a.lse[row.query_row * a.lse_row_stride + row.query_head * a.lse_head_stride] =
                    rows.max[r] + ln_f32(own_sum);
            }
        }
    }
}

// acc += p v unless the row does not see the key: then even a NaN in v must not reach it.
ATTEST_DEVICE void accumulate(Quad& acc, float p, Quad v) {
    if (!(p < 0.0f)) {
        acc.x = fmaf(p, v.x, acc.x);
        acc.y = fmaf(p, v.y, acc.y);
        acc.z = fmaf(p, v.z, acc.z);
        acc.w = fmaf(p, v.w, acc.w);
    }
}

ATTEST_DEVICE void decay_by(Quad& acc, float factor) {
    acc.x *= factor;
    acc.y *= factor;
    acc.z *= factor;
    acc.w *= factor;
}

// Adds a tile to a thread's accumulators: the keys of its group, all rows, its four dims.
ATTEST_DEVICE void accumulate_tile(Quad (&acc)[kRows], const float* decays, const float* probabilities,
                                   const u8* v_column, i32 v_row_bytes, KeyRange slots, i32 group, i32 groups) {
    ATTEST_UNROLL(4)
    for (int i = 0; i < kRows; i += 4) {
        const Quad decay = load_quad_f32(decays + i);
        decay_by(acc[i], decay.x);
        decay_by(acc[i + 1], decay.y);
        decay_by(acc[i + 2], decay.z);
        decay_by(acc[i + 3], decay.w);
    }
    for (i32 slot = group; slot < slots.end; slot += groups) {
        if (slot < slots.begin) {
            continue;
        }
        const Quad v = load_quad<KV_FORMAT>(v_column + slot * v_row_bytes);
        ATTEST_UNROLL(4)
        for (int i = 0; i < kRows; i += 4) {
            const Quad p = load_quad_f32(probabilities + slot * kRows + i);
            accumulate(acc[i], p.x, v);
            accumulate(acc[i + 1], p.y, v);
            accumulate(acc[i + 2], p.z, v);
            accumulate(acc[i + 3], p.w, v);
        }
    }
}

// Sums the key groups, divides, scales and writes the block's rows of out.
ATTEST_DEVICE void write_out(const AttentionParams& a, const Work& work, const u8* partials, const float* denominators,
                             i32 chunks, i32 groups, i32 aligned) {
    const float v_scale = a.v_scales ? a.v_scales[work.kv_head] : a.v_scale;
    for (i32 item = threadIdx.x; item < kRows * chunks; item += kThreads) {
        const Row row = packed_row(a, work, item / chunks);
        if (row.query_row < 0) {
            return;
        }
        Quad total = load_quad_f32(partials + item * 16);
        for (i32 g = 1; g < groups; ++g) {
            const Quad part = load_quad_f32(partials + (g * kRows * chunks + item) * 16);
            total = Quad{total.x + part.x, total.y + part.y, total.z + part.z, total.w + part.w};
        }
        // Nothing visible: the output is zero, not 0 / 0.
        const float denominator = load_f32(denominators + item / chunks);
        const float divisor = denominator == 0.0f ? 1.0f : denominator;
        total = Quad{__fdiv_rn(total.x, divisor) * v_scale, __fdiv_rn(total.y, divisor) * v_scale,
                     __fdiv_rn(total.z, divisor) * v_scale, __fdiv_rn(total.w, divisor) * v_scale};
        const i64 at = row.query_row * a.out_row_stride + row.query_head * a.out_head_stride;
        u8* const to = a.out + (at + item % chunks * kDimsPerThread) * Q_FORMAT::bytes;
        if (aligned) {
            store_quad<Q_FORMAT>(to, total);
        } else {
            store_quad_unaligned<Q_FORMAT>(to, total);
        }
    }
}

ATTEST_KERNEL(scalar_attention, ScalarParams, kThreads, kBlocksPerMultiprocessor) {
    ATTEST_SHARED(shared);
    // A copy that no store can alias: fields are read once.
    const ScalarParams s = p;
    const AttentionParams& a = s.attention;
    const Work work = block_work(a, s.row_tiles);
    const i32 packed_rows = work.q_len * work.group;
    if (work.first_packed >= packed_rows) {
        return;
    }
    const i32 rows_here = packed_rows - work.first_packed < kRows ? packed_rows - work.first_packed : kRows;
    // Both ends of a row's range grow with its position, so the first and the last row bound the block's.
    const KeyRange block_keys =
        KeyRange{packed_row(a, work, 0).keys.begin, packed_row(a, work, rows_here - 1).keys.end};

    u8* const queries = shared;
    float* const probabilities = reinterpret_cast<float*>(shared + kRows * a.head_dim_k * 4);
    float* const decays = probabilities + s.key_tile * kRows;
    float* const denominators = decays + kRows;

    const i32 lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * kRowsPerWarp;
    WarpRows rows = open_rows(a, work, warp_row, lane);
    const float scale = a.softmax_scale * (a.k_scales ? a.k_scales[work.kv_head] : a.k_scale);

    const i32 chunks = a.head_dim_v / kDimsPerThread;
    const i32 groups = kThreads / chunks < kMaxKeyGroups ? kThreads / chunks : kMaxKeyGroups;
    const i32 chunk = threadIdx.x % chunks, group = threadIdx.x / chunks;
    Quad acc[kRows];
    ATTEST_UNROLL(16)
    for (int r = 0; r < kRows; ++r) {
        acc[r] = Quad{0.0f, 0.0f, 0.0f, 0.0f};
    }

    const i32* const block_table_row = a.block_table + work.request * a.block_table_stride;
    const Staged k = Staged{a.k + work.kv_head * a.k_head_stride * KV_FORMAT::bytes, a.k_page_stride, a.k_slot_stride,
                            shared + s.k_tile_offset, a.head_dim_k * KV_FORMAT::bytes, s.k_row_bytes, s.k_copy_bytes};
    const Staged v = Staged{a.v + work.kv_head * a.v_head_stride * KV_FORMAT::bytes, a.v_page_stride, a.v_slot_stride,
                            shared + s.v_tile_offset, a.head_dim_v * KV_FORMAT::bytes, s.v_row_bytes, s.v_copy_bytes};
    const i32 threads_per_key = kThreads / s.key_tile;

    stage_queries(queries, a, work, s.q_quads_aligned);
    i32 tile = block_keys.begin / s.key_tile * s.key_tile;
    KeyRange keys = tile_keys(block_keys, tile, s.key_tile);
    stage_keys(k, block_table_row, a.page_size, tile, keys, threads_per_key);
    for (; tile < block_keys.end; tile += s.key_tile) {
        // K of this tile has arrived; P and V of the last one have been read.
        __syncthreads();
        stage_keys(v, block_table_row, a.page_size, tile, keys, threads_per_key);

        const TileScores scores = score_tile(a, rows, k.tile + lane * k.shared_row_bytes, k.shared_row_bytes,
                                             queries + warp_row * a.head_dim_k * 4, tile, s.key_tile, lane, scale);
        write_probabilities(rows, scores, probabilities, decays, s.key_tile, warp_row, lane);
        // P and V of this tile have arrived; its K has been read.
        __syncthreads();
        const KeyRange slots = KeyRange{keys.begin - tile, keys.end - tile};
        keys = tile_keys(block_keys, tile + s.key_tile, s.key_tile);
        stage_keys(k, block_table_row, a.page_size, tile + s.key_tile, keys, threads_per_key);
        if (group < groups) {
            accumulate_tile(acc, decays, probabilities, v.tile + chunk * kDimsPerThread * KV_FORMAT::bytes,
                            v.shared_row_bytes, slots, group, groups);
        }
    }

    close_rows(a, work, rows, denominators, warp_row, lane);
    // The last K tile was read before the loop's last barrier: its place takes the partial sums of the key groups.
    if (group < groups) {
        ATTEST_UNROLL(16)
        for (int r = 0; r < kRows; ++r) {
            store_quad_f32(k.tile + ((group * kRows + r) * chunks + chunk) * 16, acc[r]);
        }
    }
    __syncthreads();
    write_out(a, work, k.tile, denominators, chunks, groups, s.out_quads_aligned);
}
