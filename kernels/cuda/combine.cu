// Merges the partial sums of a split-KV attention: one block per row of q and query head.
//
// The block is dealt out to (part, quad): each thread adds up four dims over every kParts-th split, and the parts are added
// up in shared memory, in order. All loads of a block are independent, so they are on their way together: the merge follows
// a kernel of some 30 microseconds, and two trips to memory are what it may cost.

#include "cast.cuh"
#include "softmax.cuh"

struct CombineParams {
    const float* partial_out;    // [splits, total_q, num_q_heads, head_dim]
    const float* partial_state;  // [splits, total_q, num_q_heads, 2] maximum in base 2 and sum of weights
    u8* out;                     // [total_q, num_q_heads, head_dim] of OUT_FORMAT
    float* lse;                  // optional [total_q, num_q_heads]
    const float* sinks;          // optional [num_q_heads]
    const float* v_scales;       // optional [num_kv_heads], else v_scale
    i64 out_row_stride, out_head_stride;
    i64 lse_row_stride, lse_head_stride;
    float v_scale;
    i32 splits, total_q, num_q_heads, num_kv_heads, head_dim;  // head_dim: a multiple of 4, at most 256
};

constexpr int kThreads = 256;
constexpr u32 kFullWarp = 0xffffffffu;
// Splits of a part that are loaded before the first is used.
constexpr int kBatch = 4;

struct Row {
    const float* out;
    const float* state;
    i64 out_stride, state_stride;  // from one split to the next
    i32 splits;
};

// The maximum over all splits and the sum relative to it. Every warp finds the same.
struct RowState {
    float max, sum;
};

ATTEST_DEVICE RowState merge_states(const Row& row) {
    const i32 lane = static_cast<i32>(threadIdx.x % 32);
    float max = negative_infinity();
    for (i32 split = lane; split < row.splits; split += 32) {
        max = max_keeping_nan(max, row.state[split * row.state_stride]);
    }
    ATTEST_UNROLL_FULL
    for (int mask = 16; mask > 0; mask /= 2) {
        max = max_keeping_nan(max, __shfl_xor_sync(kFullWarp, max, mask));
    }
    // With no key in any split every maximum is -inf: any finite shift makes every weight 0.
    const float shift = max == negative_infinity() ? 0.0f : -max;
    float sum = 0.0f;
    for (i32 split = lane; split < row.splits; split += 32) {
        const float* const state = row.state + split * row.state_stride;
        sum = fmaf(state[1], exp2_weight(state[0] + shift), sum);
    }
    ATTEST_UNROLL_FULL
    for (int mask = 16; mask > 0; mask /= 2) {
        sum += __shfl_xor_sync(kFullWarp, sum, mask);
    }
    return RowState{max, sum};
}

ATTEST_DEVICE Quad add_scaled(Quad sum, Quad value, float weight) {
    return Quad{fmaf(value.x, weight, sum.x), fmaf(value.y, weight, sum.y), fmaf(value.z, weight, sum.z),
                fmaf(value.w, weight, sum.w)};
}

ATTEST_KERNEL(combine_splits, CombineParams, kThreads) {
    ATTEST_SHARED(shared);
    const i64 query = static_cast<i64>(blockIdx.x) / p.num_q_heads;
    const i32 head = static_cast<i32>(blockIdx.x % static_cast<u32>(p.num_q_heads));
    const i64 entry = query * p.num_q_heads + head;
    const i64 entries = static_cast<i64>(p.total_q) * p.num_q_heads;
    const i32 quads = p.head_dim / 4, parts = kThreads / quads;
    const i32 part = static_cast<i32>(threadIdx.x) / quads, quad = static_cast<i32>(threadIdx.x) % quads;
    const Row row = Row{p.partial_out + entry * p.head_dim + quad * 4, p.partial_state + entry * 2,
                        entries * p.head_dim, entries * 2, part < parts ? p.splits : 0};

    Quad first[kBatch];
    float first_max[kBatch];
    ATTEST_UNROLL_FULL
    for (int i = 0; i < kBatch; ++i) {
        const i32 split = part + i * parts;
        const bool exists = split < row.splits;
        first[i] = exists ? load_quad_f32(row.out + split * row.out_stride) : Quad{0.0f, 0.0f, 0.0f, 0.0f};
        first_max[i] = exists ? row.state[split * row.state_stride] : 0.0f;
    }
    Row all = row;
    all.splits = p.splits;
    const RowState state = merge_states(all);
    const float shift = state.max == negative_infinity() ? 0.0f : -state.max;
    Quad sum = Quad{0.0f, 0.0f, 0.0f, 0.0f};
    ATTEST_UNROLL_FULL
    for (int i = 0; i < kBatch; ++i) {
        if (part + i * parts < row.splits) {
            sum = add_scaled(sum, first[i], exp2_weight(first_max[i] + shift));
        }
    }
    ATTEST_UNROLL(4)
    for (i32 split = part + kBatch * parts; split < row.splits; split += parts) {
        const float weight = exp2_weight(row.state[split * row.state_stride] + shift);
        sum = add_scaled(sum, load_quad_f32(row.out + split * row.out_stride), weight);
    }

    if (part < parts) {
        store_quad_f32(shared + threadIdx.x * 16, sum);
    }
    // Every part's sums are there.
    __syncthreads();
    if (part > 0) {
        return;
    }
    for (i32 other = 1; other < parts; ++other) {
        sum = add_scaled(sum, load_quad_f32(shared + (other * quads + quad) * 16), 1.0f);
    }
    const float v_scale = p.v_scales ? p.v_scales[head / (p.num_q_heads / p.num_kv_heads)] : p.v_scale;
    const RowEnd end = finish_row(state.max, state.sum, p.sinks ? p.sinks[head] : negative_infinity(), v_scale);
    u8* const to = p.out + (query * p.out_row_stride + head * p.out_head_stride + quad * 4) * OUT_FORMAT::bytes;
    const u32 low = pack_pair(OUT_FORMAT{}, sum.x * end.factor, sum.y * end.factor);
    const u32 high = pack_pair(OUT_FORMAT{}, sum.z * end.factor, sum.w * end.factor);
    store8(to, low | static_cast<u64>(high) << 32);
    if (quad == 0 && p.lse) {
        p.lse[query * p.lse_row_stride + head * p.lse_head_stride] = end.lse;
    }
}
