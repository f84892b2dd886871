// Flash attention on CUDA cores over a paged cache. Stored codes are decoded at each read: a tile is kept in shared
// memory as it lies in the cache. One instance per format of q (and out) and of the cache; everything else is run-time.
//
// A block of 128 threads serves 8 packed rows (query position x query head of one KV head) and walks tiles of up to 32 keys:
//
//   scores   warp w owns rows 2w and 2w + 1, lane l owns key l of the tile
//   P V      thread (g, c) owns dims 4c..4c+3 of all 8 rows and every G-th key, G = 128 / (head_dim_v / 4) at most 32
//
// Tiles start at multiples of the tile length, whatever the window: a row's arithmetic depends on its own keys only.

#include "attention.cuh"

constexpr int kThreads = 128;
constexpr int kRows = 8;
constexpr int kRowsPerWarp = 2;
constexpr int kThreadsPerKey = 4;
constexpr int kMaxKeyTile = 32;
constexpr int kDimsPerThread = 4;
constexpr u32 kFullWarp = 0xffffffffu;

// In P: the row does not see the key. Probabilities are never negative, and a NaN must stay visible.
constexpr float kMasked = -1.0f;

struct ScalarParams {
    AttentionParams attention;
    i32 row_tiles;             // blocks per request and KV head
    i32 key_tile;              // keys per tile, at most 32
    i32 k_copy_bytes;          // widest access that suits every key row of K: 1, 2, 4, 8 or 16
    i32 v_copy_bytes;
    i32 k_row_bytes;           // distance of key rows in shared memory, a multiple of 16
    i32 v_row_bytes;
    i32 q_quads_aligned;       // whether four elements of q can be read at once
    i32 out_quads_aligned;
    i32 v_tile_offset;         // of shared memory, in bytes
    i32 k_tile_offset;
};

// What a thread knows of one packed row.
struct Row {
    KeyRange keys;
    i64 position;
    i32 query_head;
    i32 query_row;  // row of q and out; -1 for a row beyond the request's last
};

ATTEST_DEVICE Row packed_row(const AttentionParams& a, i32 packed, i32 first_query, i32 q_len, i32 kv_len, i32 kv_head) {
    const i32 group = a.num_q_heads / a.num_kv_heads;
    const i32 index = packed / group;
    Row row;
    row.query_head = kv_head * group + packed % group;
    row.position = static_cast<i64>(kv_len) - q_len + index;
    row.query_row = index < q_len ? first_query + index : -1;
    row.keys = KeyRange{0, 0};
    if (index < q_len) {
        row.keys = visible_keys(row.position, kv_len, a.causal, a.window_left, a.window_right);
    }
    return row;
}

// Copies the rows of keys [begin, end) of a tile that starts at `tile` into shared memory, four threads to a key.
// Slots outside the range are not read: nobody may own them.
template <class Format>
ATTEST_DEVICE void stage_keys(u8* shared, const u8* cache, const i32* block_table_row, i32 tile, KeyRange range,
                              i32 page_size, i64 page_stride, i64 slot_stride, i32 row_bytes, i32 shared_row_bytes,
                              i32 copy_width) {
    const i32 slot = threadIdx.x / kThreadsPerKey;
    const i32 key = tile + slot;
    if (key < range.begin || key >= range.end) {
        return;
    }
    const u8* from = cache + key_offset(block_table_row, key, page_size, page_stride, slot_stride) * Format::bytes;
    u8* to = shared + slot * shared_row_bytes;
    for (i32 at = (threadIdx.x % kThreadsPerKey) * copy_width; at < row_bytes; at += kThreadsPerKey * copy_width) {
        copy_bytes(to + at, from + at, copy_width);
    }
}

// Decodes the block's rows of q into shared memory; rows beyond the request's last become zero.
template <class Format>
ATTEST_DEVICE void stage_queries(u8* shared, const AttentionParams& a, i32 first_packed, i32 first_query, i32 q_len,
                                 i32 kv_head, i32 aligned) {
    const i32 group = a.num_q_heads / a.num_kv_heads;
    const i32 quads = a.head_dim_k / 4;
    for (i32 item = threadIdx.x; item < kRows * quads; item += kThreads) {
        const i32 packed = first_packed + item / quads;
        const i32 index = packed / group;
        Quad value = Quad{0.0f, 0.0f, 0.0f, 0.0f};
        if (index < q_len) {
            const i64 row = first_query + index;
            const i64 head = kv_head * group + packed % group;
            const u8* from = a.q + (row * a.q_row_stride + head * a.q_head_stride + item % quads * 4) * Format::bytes;
            value = aligned ? load_quad<Format>(from) : load_quad_unaligned<Format>(from);
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

// Reduces two values over a warp in one pass: after the first exchange each half of the warp carries one of them.
// Lanes 0 to 15 return the first, lanes 16 to 31 the second.
template <bool sum>
ATTEST_DEVICE float reduce_pair(float first, float second) {
    const bool upper = threadIdx.x % 32 >= 16;
    const float received = __shfl_xor_sync(kFullWarp, upper ? first : second, 16);
    const float kept = upper ? second : first;
    float value = sum ? kept + received : larger(kept, received);
    ATTEST_UNROLL(4)
    for (int distance = 8; distance > 0; distance /= 2) {
        const float other = __shfl_xor_sync(kFullWarp, value, distance);
        value = sum ? value + other : larger(value, other);
    }
    return value;
}

// Dot products of one key with two rows of q.
template <class Format>
ATTEST_DEVICE void dot_two_rows(const u8* key, const u8* queries, i32 dims, float& first, float& second) {
    const u8* other = queries + dims * 4;
    ATTEST_UNROLL(4)
    for (i32 d = 0; d < dims; d += 4) {
        const Quad k = load_quad<Format>(key + d * Format::bytes);
        const Quad a = load_quad_f32(queries + d * 4);
        const Quad b = load_quad_f32(other + d * 4);
        first = fmaf(k.w, a.w, fmaf(k.z, a.z, fmaf(k.y, a.y, fmaf(k.x, a.x, first))));
        second = fmaf(k.w, b.w, fmaf(k.z, b.z, fmaf(k.y, b.y, fmaf(k.x, b.x, second))));
    }
}

// Running softmax of one row as one lane sees it: the row's maximum, and the sum over this lane's keys.
struct Softmax {
    float max, sum;
};

// Takes this lane's score (unless masked), with the row's maximum over the tile, and returns its P; `decay` receives the
// factor that everything summed so far needs.
ATTEST_DEVICE float update(Softmax& state, float score, bool visible, float tile_max, float& decay) {
    const float old_max = state.max;
    state.max = larger(tile_max, old_max);
    // With nothing seen yet the maximum is -inf, and -inf - -inf would be NaN: any finite shift serves.
    const float shift = state.max == negative_infinity() ? 0.0f : state.max;
    decay = exp_f32(old_max - shift);
    const float probability = visible ? exp_f32(score - shift) : kMasked;
    state.sum = fmaf(state.sum, decay, visible ? probability : 0.0f);
    return probability;
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

ATTEST_KERNEL(scalar_attention, ScalarParams, kThreads) {
    ATTEST_SHARED(shared);
    const AttentionParams& a = p.attention;
    const i32 head_dim_k = a.head_dim_k, head_dim_v = a.head_dim_v, page_size = a.page_size;
    const i32 key_tile = p.key_tile;

    const i32 row_tile = static_cast<i32>(blockIdx.x % static_cast<u32>(p.row_tiles));
    const i32 pair = static_cast<i32>(blockIdx.x / static_cast<u32>(p.row_tiles));
    const i32 kv_head = pair % a.num_kv_heads;
    const i32 request = pair / a.num_kv_heads;
    const i32 first_query = a.query_start_loc[request];
    const i32 q_len = a.query_start_loc[request + 1] - first_query;
    const i32 first_packed = row_tile * kRows;
    const i32 packed_rows = q_len * (a.num_q_heads / a.num_kv_heads);
    if (first_packed >= packed_rows) {
        return;
    }
    const i32 kv_len = a.seq_lens[request];
    const i32* block_table_row = a.block_table + request * a.block_table_stride;

    const i32 last_packed = first_packed + kRows < packed_rows ? first_packed + kRows - 1 : packed_rows - 1;
    // Both ends of a row's range grow with its position, so the first and the last row bound the block's.
    const KeyRange block_keys =
        KeyRange{packed_row(a, first_packed, first_query, q_len, kv_len, kv_head).keys.begin,
                 packed_row(a, last_packed, first_query, q_len, kv_len, kv_head).keys.end};

    u8* const queries = shared;
    float* const probabilities = reinterpret_cast<float*>(shared + kRows * head_dim_k * 4);
    float* const decays = probabilities + kMaxKeyTile * kRows;
    float* const denominators = decays + kRows;
    u8* const v_tile = shared + p.v_tile_offset;
    u8* const k_tile = shared + p.k_tile_offset;

    const i32 lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * kRowsPerWarp;
    const Row rows[kRowsPerWarp] = {
        packed_row(a, first_packed + warp_row, first_query, q_len, kv_len, kv_head),
        packed_row(a, first_packed + warp_row + 1, first_query, q_len, kv_len, kv_head)};
    float slopes[kRowsPerWarp];
    Softmax softmax[kRowsPerWarp];
    ATTEST_UNROLL(2)
    for (int r = 0; r < kRowsPerWarp; ++r) {
        const bool exists = rows[r].query_row >= 0;
        slopes[r] = exists && a.alibi_slopes ? a.alibi_slopes[rows[r].query_head] : 0.0f;
        softmax[r] = Softmax{negative_infinity(), 0.0f};
        if (exists && a.sinks) {
            // A sink is a key of value zero: it opens the running sum, in one lane.
            softmax[r].max = a.sinks[rows[r].query_head];
            softmax[r].sum = lane == 0 && softmax[r].max != negative_infinity() ? 1.0f : 0.0f;
        }
    }
    const float scale = a.softmax_scale * (a.k_scales ? a.k_scales[kv_head] : a.k_scale);
    const float softcap = a.softcap;

    const i32 chunks = head_dim_v / kDimsPerThread;
    const i32 groups = kThreads / chunks < kMaxKeyTile ? kThreads / chunks : kMaxKeyTile;
    const i32 chunk = threadIdx.x % chunks, group = threadIdx.x / chunks;
    Quad acc[kRows];
    ATTEST_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
        acc[r] = Quad{0.0f, 0.0f, 0.0f, 0.0f};
    }

    const u8* const k_head = a.k + kv_head * a.k_head_stride * KV_FORMAT::bytes;
    const u8* const v_head = a.v + kv_head * a.v_head_stride * KV_FORMAT::bytes;
    const i64 k_page_stride = a.k_page_stride, k_slot_stride = a.k_slot_stride;
    const i64 v_page_stride = a.v_page_stride, v_slot_stride = a.v_slot_stride;
    const i32 k_row_bytes = p.k_row_bytes, v_row_bytes = p.v_row_bytes;

    stage_queries<Q_FORMAT>(queries, a, first_packed, first_query, q_len, kv_head, p.q_quads_aligned);
    i32 tile = block_keys.begin / key_tile * key_tile;
    if (tile < block_keys.end) {
        stage_keys<KV_FORMAT>(k_tile, k_head, block_table_row, tile, tile_keys(block_keys, tile, key_tile), page_size,
                              k_page_stride, k_slot_stride, head_dim_k * KV_FORMAT::bytes, k_row_bytes, p.k_copy_bytes);
    }
    for (; tile < block_keys.end; tile += key_tile) {
        const KeyRange keys = tile_keys(block_keys, tile, key_tile);
        // K of this tile has arrived; P and V of the last one have been read.
        __syncthreads();
        stage_keys<KV_FORMAT>(v_tile, v_head, block_table_row, tile, keys, page_size, v_page_stride, v_slot_stride,
                              head_dim_v * KV_FORMAT::bytes, v_row_bytes, p.v_copy_bytes);

        const i32 key = tile + lane;
        float scores[kRowsPerWarp] = {0.0f, 0.0f};
        bool visible[kRowsPerWarp];
        ATTEST_UNROLL(2)
        for (int r = 0; r < kRowsPerWarp; ++r) {
            visible[r] = lane < key_tile && key >= rows[r].keys.begin && key < rows[r].keys.end;
        }
        if (visible[0] || visible[1]) {
            dot_two_rows<KV_FORMAT>(k_tile + lane * k_row_bytes, queries + warp_row * head_dim_k * 4, head_dim_k,
                                    scores[0], scores[1]);
        }
        float candidates[kRowsPerWarp];
        ATTEST_UNROLL(2)
        for (int r = 0; r < kRowsPerWarp; ++r) {
            scores[r] = modify_score(scores[r] * scale, softcap, slopes[r], key - rows[r].position);
            // A NaN is no candidate for the maximum: it reaches the row through its probability.
            candidates[r] = visible[r] ? larger(scores[r], negative_infinity()) : negative_infinity();
        }
        const float own_max = reduce_pair<false>(candidates[0], candidates[1]);
        const float other_max = __shfl_xor_sync(kFullWarp, own_max, 16);
        const float tile_max[kRowsPerWarp] = {lane < 16 ? own_max : other_max, lane < 16 ? other_max : own_max};
        ATTEST_UNROLL(2)
        for (int r = 0; r < kRowsPerWarp; ++r) {
            float decay;
            const float probability = update(softmax[r], scores[r], visible[r], tile_max[r], decay);
            if (lane < key_tile) {
                store_f32(probabilities + lane * kRows + warp_row + r, probability);
            }
            if (lane == 0) {
                store_f32(decays + warp_row + r, decay);
            }
        }
        // P and V of this tile have arrived; its K has been read.
        __syncthreads();
        const i32 next = tile + key_tile;
        if (next < block_keys.end) {
            stage_keys<KV_FORMAT>(k_tile, k_head, block_table_row, next, tile_keys(block_keys, next, key_tile), page_size,
                                  k_page_stride, k_slot_stride, head_dim_k * KV_FORMAT::bytes, k_row_bytes,
                                  p.k_copy_bytes);
        }
        if (group < groups) {
            const Quad low = load_quad_f32(decays), high = load_quad_f32(decays + 4);
            decay_by(acc[0], low.x);
            decay_by(acc[1], low.y);
            decay_by(acc[2], low.z);
            decay_by(acc[3], low.w);
            decay_by(acc[4], high.x);
            decay_by(acc[5], high.y);
            decay_by(acc[6], high.z);
            decay_by(acc[7], high.w);
            for (i32 slot = group; slot < keys.end - tile; slot += groups) {
                if (slot < keys.begin - tile) {
                    continue;
                }
                const Quad v = load_quad<KV_FORMAT>(v_tile + slot * v_row_bytes + chunk * kDimsPerThread * KV_FORMAT::bytes);
                const Quad p_low = load_quad_f32(probabilities + slot * kRows);
                const Quad p_high = load_quad_f32(probabilities + slot * kRows + 4);
                accumulate(acc[0], p_low.x, v);
                accumulate(acc[1], p_low.y, v);
                accumulate(acc[2], p_low.z, v);
                accumulate(acc[3], p_low.w, v);
                accumulate(acc[4], p_high.x, v);
                accumulate(acc[5], p_high.y, v);
                accumulate(acc[6], p_high.z, v);
                accumulate(acc[7], p_high.w, v);
            }
        }
    }

    const float sum = reduce_pair<true>(softmax[0].sum, softmax[1].sum);
    if (lane % 16 == 0) {
        const bool second = lane == 16;
        store_f32(denominators + warp_row + (second ? 1 : 0), sum);
        const i64 query_row = second ? rows[1].query_row : rows[0].query_row;
        if (a.lse && query_row >= 0) {
            const i32 query_head = second ? rows[1].query_head : rows[0].query_head;
            const float max = second ? softmax[1].max : softmax[0].max;
            a.lse[query_row * a.lse_row_stride + query_head * a.lse_head_stride] =
                sum == 0.0f ? negative_infinity() : max + ln_f32(sum);
        }
    }
    // The last K tile was read before the loop's last barrier: its place takes the partial sums of the key groups.
    u8* const partials = k_tile;
    if (group < groups) {
        ATTEST_UNROLL(8)
        for (int r = 0; r < kRows; ++r) {
            store_quad_f32(partials + ((group * kRows + r) * chunks + chunk) * 16, acc[r]);
        }
    }
    __syncthreads();
    const float v_scale = a.v_scales ? a.v_scales[kv_head] : a.v_scale;
    for (i32 item = threadIdx.x; item < kRows * chunks; item += kThreads) {
        const i32 r = item / chunks;
        const Row row = packed_row(a, first_packed + r, first_query, q_len, kv_len, kv_head);
        if (row.query_row < 0) {
            return;
        }
        Quad total = load_quad_f32(partials + item * 16);
        for (i32 g = 1; g < groups; ++g) {
            const Quad part = load_quad_f32(partials + (g * kRows * chunks + item) * 16);
            total = Quad{total.x + part.x, total.y + part.y, total.z + part.z, total.w + part.w};
        }
        // Nothing visible: the output is zero, not 0 / 0.
        const float denominator = load_f32(denominators + r);
        const float divisor = denominator == 0.0f ? 1.0f : denominator;
        total = Quad{__fdiv_rn(total.x, divisor) * v_scale, __fdiv_rn(total.y, divisor) * v_scale,
                     __fdiv_rn(total.z, divisor) * v_scale, __fdiv_rn(total.w, divisor) * v_scale};
        u8* to = a.out + (row.query_row * a.out_row_stride + row.query_head * a.out_head_stride +
                          item % chunks * kDimsPerThread) * Q_FORMAT::bytes;
        if (p.out_quads_aligned) {
            store_quad<Q_FORMAT>(to, total);
        } else {
            store_quad_unaligned<Q_FORMAT>(to, total);
        }
    }
}
