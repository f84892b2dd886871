// What the prefill kernels mma.cu and mma_pairs.cu share beside their tiles: how a warp scores its part of a tile, and how a
// row's results leave the block.
//
// Both own kWarpRows packed rows (query position x query head of one KV head) per warp or, with SHARES 2, per pair of
// warps; the warps of a pair score half of a tile's keys and sum up half of the dims each.
#pragma once

#include "cast.cuh"
#include "packed.cuh"
#include "tile_copies.cuh"

// Element i of scores[m][n] is row 16m + g + 8 (i / 2) and key 8n + 2t + i % 2 of the warp's part of a tile, with
// g = lane / 4 and t = lane % 4; of sums[m][n], that row and dim 8n + 2t + i % 2 of the warp's part.
using Scores = float[kRowTiles][kWarpKeys / 8][4];
using Sums = float[kRowTiles][kWarpDims / 8][4];

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

// Steps of `score_tile`.
constexpr int kScoreSteps = kDim / 16;

// S = Q K^T for the warp's rows and its part of a tile, whose first key row is `k_part`. `between(step)` does something else
// within each step.
template <class Between>
ATTEST_DEVICE void score_tile(Scores& scores, const u8* q_tile, const u8* k_part, const Between& between) {
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
    for (int d = 0; d < kScoreSteps; ++d) {
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
        between(d);
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
