// Decode attention on tensor cores (sm_80 and later): at most 16 packed rows, many keys. Reading the cache is all that it
// costs, so the work is laid out around the reads.
//
// Each warp walks steps of 16 keys of its own, s, s + kWarps, ..., with its own ring of asynchronous copies: no barrier
// until the end. K and V go from shared memory into matrix fragments by 16-byte reads, without a second pass through
// shared memory even where fp8 codes are cast: which dim or key stands at which place of a fragment is free, as long as
// both operands agree, so the places are chosen for the reads.
//
//   S = Q K^T   lane (g, t) reads 16 bytes of key g: dims of its own in steps of four lanes; Q is held in the same order
//   O = P V     lane (g, t) reads 16 bytes of keys 2t, 2t+1, 2t+8, 2t+9: column g of matrix j is dim g * kVDims + j
//
// At the end the warps' sums are merged in shared memory, warp by warp in order.

#include "cast.cuh"
#include "packed.cuh"

#ifndef Q_FORMAT
#error "define Q_FORMAT: Bf16 or F16"
#endif
#ifndef KV_FORMAT
#error "define KV_FORMAT: Q_FORMAT's own, E4m3 or E5m2"
#endif
#ifndef HEAD_DIM
#error "define HEAD_DIM: a multiple of 64"
#endif
#ifndef WARPS
#error "define WARPS: 1 to 8"
#endif
#ifndef STAGES
#error "define STAGES: steps on their way or in use per warp, 2 or more"
#endif
#ifndef MODIFIED
#error "define MODIFIED: 1 where softcap or ALiBi may be asked for, else 0"
#endif

constexpr int kWarps = WARPS;
constexpr int kThreads = 32 * kWarps;
constexpr int kRows = 16;
constexpr int kKeys = 16;
constexpr int kDim = HEAD_DIM;
constexpr int kStages = STAGES;
constexpr bool kModified = MODIFIED;
constexpr u32 kFullWarp = 0xffffffffu;

constexpr int kBytes = KV_FORMAT::bytes;
constexpr int kRowBytes = kDim * kBytes;
constexpr int kChunks = kRowBytes / 16;
// Dims that one 16-byte read of K brings, and matrix steps that they feed.
constexpr int kKDims = 16 / kBytes;
constexpr int kKSteps = kKDims / 4;
// Dims that one read of V brings: eight lanes side by side must stay within a row.
constexpr int kVDims = kDim % (8 * kKDims) == 0 ? kKDims : kKDims / 2;
constexpr int kVBlocks = kDim / (8 * kVDims);
constexpr int kVWords = kVDims * kBytes / 4;

static_assert(kDim % 64 == 0, "reads of K and V tile the row");
static_assert(kBytes <= 2, "8-bit and 16-bit caches");

// The format of P and V. Every fp8 value is exact in f16, one conversion away, where bf16 takes three; and P, at most 1,
// is rounded eight times more finely.
template <bool fp8>
struct WeightFormatOf {
    using Format = Q_FORMAT;
};
template <>
struct WeightFormatOf<true> {
    using Format = F16;
};
using WeightFormat = WeightFormatOf<kBytes == 1>::Format;

// Rows of 128 bytes and multiples keep their length and exchange 16-byte chunks so that the rows read together lie in
// different banks; shorter rows are set apart instead.
constexpr bool kSwizzle = kChunks % 8 == 0;
constexpr int kSharedRow = kSwizzle ? kRowBytes : kRowBytes + 16;
constexpr int kTileBytes = kKeys * kSharedRow;
constexpr int kStageBytes = 2 * kTileBytes;

constexpr int kQRow = 2 * kDim + 16;

struct Shared {
    static constexpr int q = 0;
    static constexpr int state = q + kRows * kQRow;  // maximum and sum of each warp's rows
    static constexpr int ring = state + kWarps * kRows * 8;
};

// A warp's sums take the place of its ring at the end.
static_assert(kRows * kDim * 4 <= kStages * kStageBytes, "a warp's sums fit its ring");

ATTEST_DEVICE int k_chunk(int row, int chunk) { return kSwizzle ? chunk ^ (row & 1) << 2 : chunk; }
ATTEST_DEVICE int v_chunk(int row, int chunk) { return kSwizzle ? chunk ^ (row & 6) : chunk; }

// Byte offset of the row that this lane looks after in a step: key lane % 16, of K for lanes 0 to 15, of V for the rest.
// -1 for keys that nobody sees.
ATTEST_DEVICE i64 find_row(const MmaParams& p, const Work& w, const i32* block_table_row, i32 step) {
    const AttentionParams& a = p.attention;
    const int lane = threadIdx.x % 32;
    const i32 key = step * kKeys + lane % 16;
    if (step >= w.end_tile || key < w.keys.begin || key >= w.keys.end) {
        return -1;
    }
    const Slot at = find_slot(p, block_table_row, key);
    const i64 row = lane < 16 ? at.page * a.k_page_stride + at.in_page * a.k_slot_stride
                              : at.page * a.v_page_stride + at.in_page * a.v_slot_stride;
    return row * kBytes;
}

ATTEST_DEVICE i64 shuffle_row(i64 row, int lane) {
    const u32 low = __shfl_sync(kFullWarp, static_cast<u32>(row), lane);
    const u32 high = __shfl_sync(kFullWarp, static_cast<u32>(row >> 32), lane);
    return static_cast<i64>(static_cast<u64>(high) << 32 | low);
}

// Starts the copies of one step into a stage.
ATTEST_DEVICE void start_step(u8* stage, const u8* k_head, const u8* v_head, i64 row) {
    const int lane = threadIdx.x % 32;
    constexpr int items = kKeys * kChunks;
    ATTEST_UNROLL_FULL
    for (int round = 0; round < (items + 31) / 32; ++round) {
        const int item = round * 32 + lane;
        const int slot = item / kChunks % kKeys, chunk = item % kChunks;
        const i64 k_row = shuffle_row(row, slot), v_row = shuffle_row(row, slot + 16);
        if (items % 32 == 0 || item < items) {
            copy_async16(stage + slot * kSharedRow + k_chunk(slot, chunk) * 16,
                         k_head + (k_row < 0 ? 0 : k_row) + chunk * 16, k_row < 0 ? 0 : 16);
            copy_async16(stage + kTileBytes + slot * kSharedRow + v_chunk(slot, chunk) * 16,
                         v_head + (v_row < 0 ? 0 : v_row) + chunk * 16, v_row < 0 ? 0 : 16);
        }
    }
}

// Copies the rows of q; rows beyond the request's last become zero.
ATTEST_DEVICE void copy_queries(u8* shared, const AttentionParams& a, const Work& w) {
    constexpr int chunks = kDim * 2 / 16;
    for (int item = threadIdx.x; item < kRows * chunks; item += kThreads) {
        const int row = item / chunks, chunk = item % chunks;
        const bool exists = w.first_packed + row < w.packed_rows;
        const Destination at = find_destination(a, w, exists ? w.first_packed + row : w.first_packed);
        const u8* from = a.q + (at.query * a.q_row_stride + at.head * a.q_head_stride + chunk * 8) * 2;
        copy_async16(shared + Shared::q + row * kQRow + chunk * 16, from, exists ? 16 : 0);
    }
}

// How fp8 codes become operands. Whole words at once by integer arithmetic, which pairs codes 0 and 2, and 1 and 3; or
// neighbours by the conversion instruction.
#ifdef CAST_HARDWARE
constexpr bool kCastWords = false;
#else
constexpr bool kCastWords = kBytes == 1;
#endif

// Puts each four dims of q into the order in which casting by words leaves those of K.
ATTEST_DEVICE void reorder_queries(u8* shared) {
    for (int item = threadIdx.x; item < kRows * kDim / 4; item += kThreads) {
        u8* const at = shared + Shared::q + item / (kDim / 4) * kQRow + item % (kDim / 4) * 8;
        const u64 dims = load8(at);
        const u32 low = static_cast<u32>(dims), high = static_cast<u32>(dims >> 32);
        store8(at, __byte_perm(low, high, 0x5410) | static_cast<u64>(__byte_perm(low, high, 0x7632)) << 32);
    }
}

template <int words>
ATTEST_DEVICE void load_words(u32 (&to)[words], const u8* from) {
    if (words == 4) {
        const Vec16 raw = load16(from);
        ATTEST_UNROLL_FULL
        for (int i = 0; i < words; ++i) {
            to[i] = ATTEST_VEC16_WORD(raw, i);
        }
    } else {
        const u64 raw = load8(from);
        to[0] = static_cast<u32>(raw);
        to[words - 1] = static_cast<u32>(raw >> 32);
    }
}

// Operand registers of the matrix steps that one 16-byte read of K feeds.
ATTEST_DEVICE void k_operands(u32 (&to)[kKSteps][2], const u8* from) {
    u32 raw[4];
    load_words(raw, from);
    if (kBytes == 2) {
        ATTEST_UNROLL_FULL
        for (int step = 0; step < kKSteps; ++step) {
            to[step][0] = raw[2 * step % 4];
            to[step][1] = raw[(2 * step + 1) % 4];
        }
        return;
    }
    WordCast cast[4];
    if (kCastWords) {
        cast_words<Q_FORMAT, KV_FORMAT, 4>(cast, raw);
    }
    ATTEST_UNROLL_FULL
    for (int step = 0; step < kKSteps; ++step) {
        to[step][0] = kCastWords ? cast[step].even : cast_pair<Q_FORMAT, KV_FORMAT>(raw[step]);
        to[step][1] = kCastWords ? cast[step].odd : cast_pair<Q_FORMAT, KV_FORMAT>(raw[step] >> 16);
    }
}

// S = Q K^T of one step. Element i of scores[n] is row g + 8 (i / 2), key 8n + 2t + i % 2.
ATTEST_DEVICE void score_step(float (&scores)[2][4], const u8* queries, const u8* keys) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    ATTEST_UNROLL_FULL
    for (int n = 0; n < 2; ++n) {
        scores[n][0] = scores[n][1] = scores[n][2] = scores[n][3] = 0.0f;
    }
    ATTEST_UNROLL_FULL
    for (int group = 0; group < kChunks / 4; ++group) {
        u32 b[2][kKSteps][2];
        ATTEST_UNROLL_FULL
        for (int n = 0; n < 2; ++n) {
            k_operands(b[n], keys + (8 * n + g) * kSharedRow + k_chunk(8 * n + g, 4 * group + t) * 16);
        }
        ATTEST_UNROLL_FULL
        for (int step = 0; step < kKSteps; ++step) {
            const u8* const at = queries + g * kQRow + (group * 4 * kKDims + t * kKDims + step * 4) * 2;
            const u64 upper = load8(at), lower = load8(at + 8 * kQRow);
            const u32 a[4] = {static_cast<u32>(upper), static_cast<u32>(lower), static_cast<u32>(upper >> 32),
                              static_cast<u32>(lower >> 32)};
            ATTEST_UNROLL_FULL
            for (int n = 0; n < 2; ++n) {
                mma(Q_FORMAT{}, scores[n], a, b[n][step]);
            }
        }
    }
}

using Sums = float[kVBlocks][kVDims][4];

// One dim of two keys as an operand register; `dim` counts within a read of each.
ATTEST_DEVICE u32 v_pair(const u32 (&first)[kVWords], const u32 (&second)[kVWords], int dim) {
    const int word = dim * kBytes / 4, byte = dim * kBytes % 4;
    if (kBytes == 2) {
        return __byte_perm(first[word], second[word], byte == 0 ? 0x5410 : 0x7632);
    }
    return cast_pair<WeightFormat, KV_FORMAT>(__byte_perm(first[word], second[word], (4 + byte) << 4 | byte));
}

ATTEST_DEVICE u32 v_pair(const WordCast (&first)[kVWords], const WordCast (&second)[kVWords], int dim) {
    const int word = dim / 4;
    const u32 low = dim % 2 == 0 ? first[word].even : first[word].odd;
    const u32 high = dim % 2 == 0 ? second[word].even : second[word].odd;
    return __byte_perm(low, high, dim % 4 < 2 ? 0x5410 : 0x7632);
}

// O += P V of one step. Element i of out[block][j] is row g + 8 (i / 2), dim block * 8 kVDims + (2t + i % 2) kVDims + j.
ATTEST_DEVICE void weigh_step(Sums& out, const float (&weights)[2][4], const u8* values) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const u32 a[4] = {pack_pair(WeightFormat{}, weights[0][0], weights[0][1]),
                      pack_pair(WeightFormat{}, weights[0][2], weights[0][3]),
                      pack_pair(WeightFormat{}, weights[1][0], weights[1][1]),
                      pack_pair(WeightFormat{}, weights[1][2], weights[1][3])};
    ATTEST_UNROLL_FULL
    for (int block = 0; block < kVBlocks; ++block) {
        u32 raw[4][kVWords];
        WordCast cast[4][kVWords];
        ATTEST_UNROLL_FULL
        for (int i = 0; i < 4; ++i) {
            const int key = 2 * t + i % 2 + i / 2 * 8;
            const int byte = (block * 8 + g) * kVWords * 4;
            load_words(raw[i], values + key * kSharedRow + v_chunk(key, byte / 16) * 16 + byte % 16);
            if (kCastWords) {
                cast_words<WeightFormat, KV_FORMAT, kVWords>(cast[i], raw[i]);
            }
        }
        ATTEST_UNROLL_FULL
        for (int j = 0; j < kVDims; ++j) {
            const u32 b[2] = {kCastWords ? v_pair(cast[0], cast[1], j) : v_pair(raw[0], raw[1], j),
                              kCastWords ? v_pair(cast[2], cast[3], j) : v_pair(raw[2], raw[3], j)};
            mma(WeightFormat{}, out[block][j], a, b);
        }
    }
}

// One of a thread's two rows.
struct ThreadRow {
    KeyRange keys;
    float max, sum;  // maximum of the raw scores so far; sum of this thread's weights
};

// Turns raw scores of a step into weights and scales earlier sums down to the new maximum.
ATTEST_DEVICE void softmax_step(float (&scores)[2][4], ThreadRow (&rows)[2], Sums& out, float to_base_2) {
    float decay[2];
    bool settled = true;
    ATTEST_UNROLL_FULL
    for (int r = 0; r < 2; ++r) {
        float max = max_keeping_nan(max_keeping_nan(scores[0][2 * r], scores[0][2 * r + 1]),
                                    max_keeping_nan(scores[1][2 * r], scores[1][2 * r + 1]));
        max = max_keeping_nan(max, __shfl_xor_sync(kFullWarp, max, 1));
        max = max_keeping_nan(max, __shfl_xor_sync(kFullWarp, max, 2));
        max = max_keeping_nan(max, rows[r].max);
        // With nothing seen yet the maximum is -inf, and -inf - -inf would be NaN: any finite shift serves.
        const float shift = max == negative_infinity() ? 0.0f : -max * to_base_2;
        decay[r] = exp2_weight(fmaf(rows[r].max, to_base_2, shift));
        settled = settled && decay[r] == 1.0f;
        rows[r].max = max;
        rows[r].sum *= decay[r];
        ATTEST_UNROLL_FULL
        for (int n = 0; n < 2; ++n) {
            scores[n][2 * r] = exp2_weight(fmaf(scores[n][2 * r], to_base_2, shift));
            scores[n][2 * r + 1] = exp2_weight(fmaf(scores[n][2 * r + 1], to_base_2, shift));
            rows[r].sum += scores[n][2 * r] + scores[n][2 * r + 1];
        }
    }
    // Once the maxima have settled the factors are 1, and multiplying by 1 changes no bit.
    if (__all_sync(kFullWarp, settled)) {
        return;
    }
    ATTEST_UNROLL_FULL
    for (int block = 0; block < kVBlocks; ++block) {
        ATTEST_UNROLL_FULL
        for (int j = 0; j < kVDims; ++j) {
            out[block][j][0] *= decay[0];
            out[block][j][1] *= decay[0];
            out[block][j][2] *= decay[1];
            out[block][j][3] *= decay[1];
        }
    }
}

// Applies softcap and ALiBi where asked for, and the mask.
ATTEST_DEVICE void prepare_scores(float (&scores)[2][4], const ThreadRow (&rows)[2], const AttentionParams& a,
                                  const Work& w, i32 step, float scale, bool all_visible) {
    const int lane = threadIdx.x % 32;
    const i32 first = step * kKeys + lane % 4 * 2;
    if (kModified) {
        const i32 group = a.num_q_heads / a.num_kv_heads;
        ATTEST_UNROLL_FULL
        for (int r = 0; r < 2; ++r) {
            const i32 packed = w.first_packed + lane / 4 + 8 * r;
            const i32 row = packed < w.packed_rows ? packed : w.packed_rows - 1;
            const i64 position = static_cast<i64>(w.kv_len) - w.q_len + row / group;
            const float slope = a.alibi_slopes ? a.alibi_slopes[w.kv_head * group + row % group] : 0.0f;
            ATTEST_UNROLL_FULL
            for (int i = 0; i < 4; ++i) {
                float& score = scores[i / 2][2 * r + i % 2];
                score = modify_score(score * scale, a.softcap, slope, first + i / 2 * 8 + i % 2 - position);
            }
        }
    }
    if (!all_visible) {
        ATTEST_UNROLL_FULL
        for (int i = 0; i < 8; ++i) {
            const i32 key = first + i / 4 * 8 + i % 2;
            const KeyRange keys = rows[i / 2 % 2].keys;
            if (key < keys.begin || key >= keys.end) {
                scores[i / 4][i % 4] = negative_infinity();
            }
        }
    }
}

// Leaves a warp's sums where the whole block can read them: f32 [kRows, kDim], relative to the block's maxima.
ATTEST_DEVICE void publish_sums(float* to, const Sums& out, const float (&factor)[2]) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    ATTEST_UNROLL_FULL
    for (int block = 0; block < kVBlocks; ++block) {
        ATTEST_UNROLL_FULL
        for (int j = 0; j < kVDims; ++j) {
            ATTEST_UNROLL_FULL
            for (int i = 0; i < 4; ++i) {
                const int dim = block * 8 * kVDims + (2 * t + i % 2) * kVDims + j;
                store_f32(to + (g + 8 * (i / 2)) * kDim + dim, out[block][j][i] * factor[i / 2]);
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

// Adds up the warps' sums and writes the block's rows, two dims to a thread.
ATTEST_DEVICE void write_rows(const MmaParams& p, const Work& w, const u8* shared) {
    const AttentionParams& a = p.attention;
    constexpr int pairs = kDim / 2;
    for (int item = threadIdx.x; item < kRows * pairs; item += kThreads) {
        const int row = item / pairs, dim = item % pairs * 2;
        const i32 packed = w.first_packed + row;
        if (packed >= w.packed_rows) {
            return;
        }
        float low = 0.0f, high = 0.0f;
        ATTEST_UNROLL_FULL
        for (int warp = 0; warp < kWarps; ++warp) {
            const u64 pair = load8(shared + Shared::ring + warp * kStages * kStageBytes + (row * kDim + dim) * 4);
            low += make_f32(static_cast<u32>(pair));
            high += make_f32(static_cast<u32>(pair >> 32));
        }
        const RowState state = merge_states(shared, row);
        const Destination at = find_destination(a, w, packed);
        if (p.splits > 1) {
            const i64 entry = partial_entry(p, w, at);
            store8(p.partial_out + entry * kDim + dim, f32_bits(low) | static_cast<u64>(f32_bits(high)) << 32);
            if (dim == 0) {
                p.partial_state[entry * 2] = state.max;
                p.partial_state[entry * 2 + 1] = state.sum;
            }
            continue;
        }
        const RowEnd end = finish_packed_row(a, w, at, state.max, state.sum);
        store4(a.out + (at.query * a.out_row_stride + at.head * a.out_head_stride + dim) * 2,
               pack_pair(Q_FORMAT{}, low * end.factor, high * end.factor));
        if (dim == 0 && a.lse) {
            a.lse[at.query * a.lse_row_stride + at.head * a.lse_head_stride] = end.lse;
        }
    }
}

ATTEST_KERNEL(decode_attention, MmaParams, kThreads) {
    ATTEST_SHARED(shared);
    const AttentionParams& a = p.attention;
    const Work w = find_work<kRows, kKeys>(p);
    if (w.first_packed >= w.packed_rows) {
        return;
    }
    const i32* const block_table_row = a.block_table + w.request * a.block_table_stride;
    const u8* const k_head = a.k + w.kv_head * a.k_head_stride * kBytes;
    const u8* const v_head = a.v + w.kv_head * a.v_head_stride * kBytes;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u8* const ring = shared + Shared::ring + warp * kStages * kStageBytes;

    ThreadRow rows[2];
    ATTEST_UNROLL_FULL
    for (int r = 0; r < 2; ++r) {
        const i32 packed = w.first_packed + lane / 4 + 8 * r;
        rows[r] = ThreadRow{KeyRange{0, 0}, negative_infinity(), 0.0f};
        if (packed < w.packed_rows) {
            rows[r].keys = packed_row_keys(a, packed, w.q_len, w.kv_len);
        }
    }
    // Rows that do not exist see nothing that matters, so what the existing ones all see needs no mask.
    const i32 last = w.packed_rows - 1 - w.first_packed < kRows - 1 ? w.packed_rows - 1 : w.first_packed + kRows - 1;
    const i32 all_begin = packed_row_keys(a, last, w.q_len, w.kv_len).begin;
    const i32 all_end = packed_row_keys(a, w.first_packed, w.q_len, w.kv_len).end;
    const float scale = a.softmax_scale * (a.k_scales ? a.k_scales[w.kv_head] : a.k_scale);
    const float to_base_2 = kModified ? kLog2E : scale * kLog2E;

    Sums out;
    ATTEST_UNROLL_FULL
    for (int block = 0; block < kVBlocks; ++block) {
        ATTEST_UNROLL_FULL
        for (int j = 0; j < kVDims; ++j) {
            out[block][j][0] = out[block][j][1] = out[block][j][2] = out[block][j][3] = 0.0f;
        }
    }

    copy_queries(shared, a, w);
    copy_async_commit();
    i32 ahead = w.first_tile + warp;
    ATTEST_UNROLL_FULL
    for (int stage = 0; stage < kStages - 1; ++stage) {
        start_step(ring + stage * kStageBytes, k_head, v_head, find_row(p, w, block_table_row, ahead));
        copy_async_commit();
        ahead += kWarps;
    }
    i64 next_row = find_row(p, w, block_table_row, ahead);
    copy_async_wait<kStages - 1>();
    // Q has arrived for everybody.
    __syncthreads();
    if (kCastWords) {
        reorder_queries(shared);
        __syncthreads();
    }
    int stage = 0;
    for (i32 step = w.first_tile + warp; step < w.end_tile; step += kWarps) {
        copy_async_wait<kStages - 2>();
        // This step has arrived for the whole warp; the whole warp has done with the one before.
        __syncwarp();
        const int free = stage == 0 ? kStages - 1 : stage - 1;
        start_step(ring + free * kStageBytes, k_head, v_head, next_row);
        copy_async_commit();
        ahead += kWarps;
        next_row = find_row(p, w, block_table_row, ahead);

        const u8* const keys = ring + stage * kStageBytes;
        float scores[2][4];
        score_step(scores, shared + Shared::q, keys);
        const bool all_visible = step * kKeys >= all_begin && (step + 1) * kKeys <= all_end;
        prepare_scores(scores, rows, a, w, step, scale, all_visible);
        softmax_step(scores, rows, out, to_base_2);
        weigh_step(out, scores, keys + kTileBytes);
        stage = stage + 1 == kStages ? 0 : stage + 1;
    }

    copy_async_wait<0>();
    float* const states = reinterpret_cast<float*>(shared + Shared::state) + warp * kRows * 2;
    ATTEST_UNROLL_FULL
    for (int r = 0; r < 2; ++r) {
        float sum = rows[r].sum;
        sum += __shfl_xor_sync(kFullWarp, sum, 1);
        sum += __shfl_xor_sync(kFullWarp, sum, 2);
        rows[r].max = rows[r].max == negative_infinity() ? rows[r].max : rows[r].max * to_base_2;
        if (lane % 4 == 0) {
            store_f32(states + (lane / 4 + 8 * r) * 2, rows[r].max);
            store_f32(states + (lane / 4 + 8 * r) * 2 + 1, sum);
        }
    }
    // Every warp's state is there, and the whole warp has done with its ring.
    __syncthreads();
    float factor[2];
    ATTEST_UNROLL_FULL
    for (int r = 0; r < 2; ++r) {
        const float max = merge_states(shared, lane / 4 + 8 * r).max;
        factor[r] = exp2_weight(rows[r].max + (max == negative_infinity() ? 0.0f : -max));
    }
    publish_sums(reinterpret_cast<float*>(ring), out, factor);
    // Every warp's sums are there.
    __syncthreads();
    write_rows(p, w, shared);
}
