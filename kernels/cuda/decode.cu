// Decode attention on tensor cores (sm_80 and later): at most 16 packed rows, many keys. Reading the cache is all that it
// costs, so the work is laid out around the reads.
//
// Each warp walks steps of 16 keys of its own, s, s + kWarps, ..., with its own ring of asynchronous copies: no barrier
// until the end. Both products are computed transposed, so that the keys, not the few rows, fill the 16 rows of a matrix
// instruction and eight packed rows cost one instruction instead of two. Which dim stands at which place of a fragment is
// free, as long as both operands agree, so the places are chosen for the reads.
//
//   S^T = K Q^T   lane (g, t) reads 16 bytes of keys g and g + 8: dims of its own in steps of four lanes; Q stays in
//                 registers, in the same order
//   O^T = V^T P^T of an fp8 cache, lane (g, t) reads 16 bytes of keys 2t, 2t + 1, 2t + 8 and 2t + 9; of a 16-bit one,
//                 the transposing matrix load does it
//
// At the end the warps' sums are merged in shared memory, warp by warp in order.

#include "decode_queries.cuh"
#include "decode_tiles.cuh"
#include "packed.cuh"

using Scores = float[kRowTiles][4];
using Sums = float[kVTiles][kRowTiles][4];

// One of a thread's rows: of row tile n, 2t and 2t + 1.
struct ThreadRow {
    KeyRange keys;
    float to_base_2;  // of a raw score
    float max;        // the reference of its weights: the largest raw score when it was last raised
    float shift;      // minus the reference in base 2, 0 before the first key
    float limit;      // of a weight in base 2 before the reference must be raised: -inf before the first key
    float sum;        // of this thread's weights
};
using ThreadRows = ThreadRow[2 * kRowTiles];

// A weight may reach 2^8 before the reference of its row is raised: that spares most steps the search for a maximum, and
// rounding is relative.
constexpr float kHeadroom = 8.0f;

// S^T of one step. Element i of scores[n] is key g + 8 (i / 2), row 8n + 2t + i % 2.
template <class Format>
ATTEST_DEVICE void score_step(Scores& scores, const Queries& queries, const u8* stage, const Places& places) {
    ATTEST_UNROLL_FULL
    for (int n = 0; n < kRowTiles; ++n) {
        scores[n][0] = scores[n][1] = scores[n][2] = scores[n][3] = 0.0f;
    }
    ATTEST_UNROLL_FULL
    for (int group = 0; group < kKGroups; ++group) {
        u32 upper[kKSteps][2], lower[kKSteps][2];
        k_operands<Format>(upper, k_group(stage, places, group));
        k_operands<Format>(lower, k_group(stage, places, group) + 8 * kSharedRow);
        ATTEST_UNROLL_FULL
        for (int step = 0; step < kKSteps; ++step) {
            const u32 a[4] = {upper[step][0], lower[step][0], upper[step][1], lower[step][1]};
            ATTEST_UNROLL_FULL
            for (int n = 0; n < kRowTiles; ++n) {
                const u32 b[2] = {queries[n][group][2 * step], queries[n][group][2 * step + 1]};
                mma(Format{}, scores[n], a, b);
            }
        }
    }
}

// O^T += V^T P^T of one step. Element i of out[tile][n] is dim v_dim(tile, i / 2), row 8n + 2t + i % 2.
ATTEST_DEVICE void weigh_step(Sums& out, const Scores& weights, const u8* stage, const Places& places) {
    u32 b[kRowTiles][2];
    ATTEST_UNROLL_FULL
    for (int n = 0; n < kRowTiles; ++n) {
        b[n][0] = transpose_matrix(pack_pair(WeightFormat{}, weights[n][0], weights[n][1]));
        b[n][1] = transpose_matrix(pack_pair(WeightFormat{}, weights[n][2], weights[n][3]));
    }
    ATTEST_UNROLL_FULL
    for (int block = 0; block < kVBlocks; ++block) {
        u32 a[kVBlockTiles][4];
        v_operands(a, stage, places, block);
        ATTEST_UNROLL_FULL
        for (int tile = 0; tile < kVBlockTiles; ++tile) {
            ATTEST_UNROLL_FULL
            for (int n = 0; n < kRowTiles; ++n) {
                mma(WeightFormat{}, out[block * kVBlockTiles + tile][n], a[tile], b[n]);
            }
        }
    }
}

// Raises each row's reference to its largest score so far and scales what was summed down to it.
ATTEST_DEVICE void raise_references(const Scores& scores, ThreadRows& rows, Sums& out) {
    float decay[2 * kRowTiles];
    ATTEST_UNROLL_FULL
    for (int r = 0; r < 2 * kRowTiles; ++r) {
        float max = max_keeping_nan(scores[r / 2][r % 2], scores[r / 2][r % 2 + 2]);
        max = max_keeping_nan(max, __shfl_xor_sync(kFullWarp, max, 4));
        max = max_keeping_nan(max, __shfl_xor_sync(kFullWarp, max, 8));
        max = max_keeping_nan(max, __shfl_xor_sync(kFullWarp, max, 16));
        max = max_keeping_nan(max, rows[r].max);
        // With nothing seen yet -inf - -inf would be NaN: any finite shift gives weights of 0.
        const bool unseen = max == negative_infinity();
        rows[r].shift = unseen ? 0.0f : -max * rows[r].to_base_2;
        rows[r].limit = unseen ? max : kHeadroom;
        decay[r] = exp2_weight(fmaf(rows[r].max, rows[r].to_base_2, rows[r].shift));
        rows[r].max = max;
        rows[r].sum *= decay[r];
    }
    ATTEST_UNROLL_FULL
    for (int tile = 0; tile < kVTiles; ++tile) {
        ATTEST_UNROLL_FULL
        for (int r = 0; r < 2 * kRowTiles; ++r) {
            out[tile][r / 2][r % 2] *= decay[r];
            out[tile][r / 2][r % 2 + 2] *= decay[r];
        }
    }
}

// Weights of raw scores in base 2, and whether none calls for a higher reference.
ATTEST_DEVICE bool weights_in_base_2(Scores& to, const Scores& scores, const ThreadRows& rows) {
    bool fits = true;
    ATTEST_UNROLL_FULL
    for (int i = 0; i < 4 * kRowTiles; ++i) {
        const ThreadRow& row = rows[i / 4 * 2 + i % 2];
        to[i / 4][i % 4] = fmaf(scores[i / 4][i % 4], row.to_base_2, row.shift);
        // False for NaN as well.
        fits = fits & (to[i / 4][i % 4] <= row.limit);
    }
    return fits;
}

// Turns raw scores of a step into weights, relative to their row's reference.
ATTEST_DEVICE void softmax_step(Scores& scores, ThreadRows& rows, Sums& out) {
    Scores weights;
    const bool fits = weights_in_base_2(weights, scores, rows);
    if (!__all_sync(kFullWarp, fits)) {
        raise_references(scores, rows, out);
        weights_in_base_2(weights, scores, rows);
    }
    ATTEST_UNROLL_FULL
    for (int i = 0; i < 4 * kRowTiles; ++i) {
        scores[i / 4][i % 4] = exp2_weight(weights[i / 4][i % 4]);
    }
    ATTEST_UNROLL_FULL
    for (int r = 0; r < 2 * kRowTiles; ++r) {
        rows[r].sum += scores[r / 2][r % 2] + scores[r / 2][r % 2 + 2];
    }
}

// Applies softcap and ALiBi where asked for, and the mask.
ATTEST_DEVICE void prepare_scores(Scores& scores, const ThreadRows& rows, const AttentionParams& a, const Work& w,
                                  i32 step, const float (&scale)[2 * kRowTiles], bool all_visible) {
    const int lane = threadIdx.x % 32;
    const i32 first = step * kKeys + lane / 4;
    if (kModified) {
        const i32 group = a.num_q_heads / a.num_kv_heads;
        ATTEST_UNROLL_FULL
        for (int r = 0; r < 2 * kRowTiles; ++r) {
            const i32 packed = w.first_packed + r / 2 * 8 + lane % 4 * 2 + r % 2;
            const i32 row = packed < w.packed_rows ? packed : w.packed_rows - 1;
            const i64 position = static_cast<i64>(w.kv_len) - w.q_len + row / group;
            const float slope = a.alibi_slopes ? a.alibi_slopes[w.kv_head * group + row % group] : 0.0f;
            ATTEST_UNROLL_FULL
            for (int half = 0; half < 2; ++half) {
                float& score = scores[r / 2][r % 2 + 2 * half];
                score = modify_score(score * scale[r], a.softcap, slope, first + 8 * half - position);
            }
        }
    }
    if (!all_visible) {
        ATTEST_UNROLL_FULL
        for (int i = 0; i < 4 * kRowTiles; ++i) {
            const i32 key = first + i % 4 / 2 * 8;
            const KeyRange keys = rows[i / 4 * 2 + i % 2].keys;
            if (key < keys.begin || key >= keys.end) {
                scores[i / 4][i % 4] = negative_infinity();
            }
        }
    }
}

// Leaves a warp's sums where the whole block can read them: f32 [kRows, kSumRow], relative to the block's maxima.
ATTEST_DEVICE void publish_sums(u8* to, const Sums& out, const float (&factor)[2 * kRowTiles]) {
    const int t = threadIdx.x % 4;
    ATTEST_UNROLL_FULL
    for (int r = 0; r < 2 * kRowTiles; ++r) {
        u8* const row = to + (r / 2 * 8 + 2 * t + r % 2) * kSumRow * 4;
        ATTEST_UNROLL_FULL
        for (int tile = 0; tile < kVTiles; ++tile) {
            const float first = out[tile][r / 2][r % 2] * factor[r], second = out[tile][r / 2][r % 2 + 2] * factor[r];
            if (kBytes == 1) {
                store8(row + v_dim(tile, 0) * 4, f32_bits(first) | static_cast<u64>(f32_bits(second)) << 32);
            } else {
                store_f32(row + v_dim(tile, 0) * 4, first);
                store_f32(row + v_dim(tile, 1) * 4, second);
            }
        }
    }
}

// A row's state over all warps: the largest maximum, in base 2, and the sum relative to it.
struct RowState {
    float max, sum;
};

ATTEST_DEVICE RowState merge_states(const u8* shared, int row) {
    const float* const states = reinterpret_cast<const float*>(shared + Shared::state);
    RowState merged = RowState{negative_infinity(), 0.0f};
    ATTEST_UNROLL_FULL
    for (int warp = 0; warp < kWarps; ++warp) {
        merged.max = max_keeping_nan(merged.max, states[(warp * kRows + row) * 2]);
    }
    const float shift = merged.max == negative_infinity() ? 0.0f : -merged.max;
    ATTEST_UNROLL_FULL
    for (int warp = 0; warp < kWarps; ++warp) {
        const float* const state = states + (warp * kRows + row) * 2;
        merged.sum = fmaf(state[1], exp2_weight(state[0] + shift), merged.sum);
    }
    return merged;
}

// Adds up the warps' sums and writes the block's rows, one after another to a warp.
ATTEST_DEVICE void write_rows(const MmaParams& p, const Work& w, const u8* shared) {
    const AttentionParams& a = p.attention;
    const int lane = threadIdx.x % 32;
    constexpr int pairs = kDim / 64;  // of dims, of a lane
    ATTEST_UNROLL(1)
    for (int row = threadIdx.x / 32; row < kRows && w.first_packed + row < w.packed_rows; row += kWarps) {
        float sums[pairs][2] = {};
        ATTEST_UNROLL_FULL
        for (int i = 0; i < kWarps * pairs; ++i) {
            const u8* const from = shared + Shared::ring + i / pairs * kStages * kStageBytes + row * kSumRow * 4;
            const u64 pair = load8(from + (i % pairs * 32 + lane) * 8);
            sums[i % pairs][0] += make_f32(static_cast<u32>(pair));
            sums[i % pairs][1] += make_f32(static_cast<u32>(pair >> 32));
        }
        const RowState state = merge_states(shared, row);
        const Destination at = find_destination(a, w, w.first_packed + row);
        if (p.splits > 1) {
            const i64 entry = partial_entry(p, w, at);
            ATTEST_UNROLL_FULL
            for (int i = 0; i < pairs; ++i) {
                store8(p.partial_out + entry * kDim + (i * 32 + lane) * 2,
                       f32_bits(sums[i][0]) | static_cast<u64>(f32_bits(sums[i][1])) << 32);
            }
            if (lane == 0) {
                p.partial_state[entry * 2] = state.max;
                p.partial_state[entry * 2 + 1] = state.sum;
            }
            continue;
        }
        const RowEnd end = finish_packed_row(a, w, at, state.max, state.sum);
        u8* const to = a.out + (at.query * a.out_row_stride + at.head * a.out_head_stride) * 2;
        ATTEST_UNROLL_FULL
        for (int i = 0; i < pairs; ++i) {
            store4(to + (i * 32 + lane) * 4, pack_pair(Q_FORMAT{}, sums[i][0] * end.factor, sums[i][1] * end.factor));
        }
        if (lane == 0 && a.lse) {
            a.lse[at.query * a.lse_row_stride + at.head * a.lse_head_stride] = end.lse;
        }
    }
}

ATTEST_KERNEL(decode_attention, MmaParams, kThreads, kBlocks) {
    ATTEST_SHARED(shared);
    const AttentionParams& a = p.attention;
    const Work w = find_work_by_head<kRows, kKeys>(p);
    if (w.first_packed >= w.packed_rows) {
        return;
    }
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 ring = Shared::ring + warp * kStages * kStageBytes;
    ATTEST_KEEP(ring);
    const Reader reader = make_reader(p, w);

    i32 ahead = w.first_tile + warp;
    ATTEST_UNROLL(1)
    for (int stage = 0; stage < kStages - 1; ++stage) {
        start_step(shared + ring + stage * kStageBytes, p, w, reader, ahead, find_rows(p, w, reader, ahead));
        copy_async_commit();
        ahead += kWarps;
    }
    RawQueries raw_queries;
    if (kNarrows) {
        load_raw_queries(raw_queries, a, w);
    }
    i64 next_rows = find_rows(p, w, reader, ahead);

    float scale[2 * kRowTiles];
    ATTEST_UNROLL_FULL
    for (int r = 0; r < 2 * kRowTiles; ++r) {
        scale[r] = a.softmax_scale * (a.k_scales ? a.k_scales[w.kv_head] : a.k_scale);
    }
    Queries queries;
    bool narrowed = false;
    if (kNarrows) {
        narrow_queries(shared, raw_queries, scale[0]);
        // Every row is in shared memory.
        __syncthreads();
        narrowed = load_narrowed_queries(queries, scale, shared);
    }
    if (!narrowed) {
        load_queries(queries, a, w);
    }
    ThreadRows rows;
    ATTEST_UNROLL_FULL
    for (int r = 0; r < 2 * kRowTiles; ++r) {
        const i32 packed = w.first_packed + r / 2 * 8 + lane % 4 * 2 + r % 2;
        const float to_base_2 = kModified ? kLog2E : scale[r] * kLog2E;
        rows[r] = ThreadRow{KeyRange{0, 0}, to_base_2, negative_infinity(), 0.0f, negative_infinity(), 0.0f};
        if (packed < w.packed_rows) {
            rows[r].keys = packed_row_keys(a, packed, w.q_len, w.kv_len);
        }
    }
    // Rows that do not exist see nothing that matters, so what the existing ones all see needs no mask.
    const i32 last = w.packed_rows - 1 - w.first_packed < kRows - 1 ? w.packed_rows - 1 : w.first_packed + kRows - 1;
    const StepRange unmasked = steps_within(packed_row_keys(a, last, w.q_len, w.kv_len).begin,
                                            packed_row_keys(a, w.first_packed, w.q_len, w.kv_len).end);
    const Places places = find_places();

    Sums out;
    ATTEST_UNROLL_FULL
    for (int i = 0; i < kVTiles * kRowTiles; ++i) {
        float(&tile)[4] = out[i / kRowTiles][i % kRowTiles];
        tile[0] = tile[1] = tile[2] = tile[3] = 0.0f;
    }

    u32 at = ring, free = ring + (kStages - 1) * kStageBytes;
    for (i32 step = w.first_tile + warp; step < w.end_tile; step += kWarps) {
        copy_async_wait<kStages - 2>();
        // This step has arrived for the whole warp; the whole warp has done with the one before.
        __syncwarp();
        start_step(shared + free, p, w, reader, ahead, next_rows);
        copy_async_commit();
        ahead += kWarps;
        next_rows = find_rows(p, w, reader, ahead);

        Scores scores;
        if (narrowed) {
            score_step<WeightFormat>(scores, queries, shared + at, places);
        } else {
            score_step<Q_FORMAT>(scores, queries, shared + at, places);
        }
        prepare_scores(scores, rows, a, w, step, scale, holds(unmasked, step));
        softmax_step(scores, rows, out);
        weigh_step(out, scores, shared + at, places);
        free = at;
        at = at == ring + (kStages - 1) * kStageBytes ? ring : at + kStageBytes;
    }

    copy_async_wait<0>();
    float* const states = reinterpret_cast<float*>(shared + Shared::state) + warp * kRows * 2;
    ATTEST_UNROLL_FULL
    for (int r = 0; r < 2 * kRowTiles; ++r) {
        float sum = rows[r].sum;
        sum += __shfl_xor_sync(kFullWarp, sum, 4);
        sum += __shfl_xor_sync(kFullWarp, sum, 8);
        sum += __shfl_xor_sync(kFullWarp, sum, 16);
        rows[r].max = rows[r].max == negative_infinity() ? rows[r].max : rows[r].max * rows[r].to_base_2;
        if (lane / 4 == 0) {
            float* const state = states + (r / 2 * 8 + lane * 2 + r % 2) * 2;
            store_f32(state, rows[r].max);
            store_f32(state + 1, sum);
        }
    }
    // Every warp's state is there, and the whole warp has done with its ring.
    __syncthreads();
    float factor[2 * kRowTiles];
    ATTEST_UNROLL_FULL
    for (int r = 0; r < 2 * kRowTiles; ++r) {
        const float max = merge_states(shared, r / 2 * 8 + lane % 4 * 2 + r % 2).max;
        factor[r] = exp2_weight(rows[r].max + (max == negative_infinity() ? 0.0f : -max));
    }
    publish_sums(shared + ring, out, factor);
    // Every warp's sums are there.
    __syncthreads();
    write_rows(p, w, shared);
}
