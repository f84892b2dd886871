// Merges the partial sums of a split-KV attention: one block per row of q and query head, one thread per dim.

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
    i32 splits, total_q, num_q_heads, num_kv_heads, head_dim;
};

ATTEST_KERNEL(combine_splits, CombineParams, 256) {
    const i64 query = static_cast<i64>(blockIdx.x) / p.num_q_heads;
    const i32 head = static_cast<i32>(blockIdx.x % static_cast<u32>(p.num_q_heads));
    const i64 entry = query * p.num_q_heads + head;
    const i64 entries = static_cast<i64>(p.total_q) * p.num_q_heads;

    float max = negative_infinity();
    for (i32 split = 0; split < p.splits; ++split) {
        max = max_keeping_nan(max, p.partial_state[(split * entries + entry) * 2]);
    }
    // With no key in any split every maximum is -inf: any finite shift makes every weight 0.
    const float shift = max == negative_infinity() ? 0.0f : -max;
    float sum = 0.0f, out = 0.0f;
    const i32 dim = static_cast<i32>(threadIdx.x);
    for (i32 split = 0; split < p.splits; ++split) {
        const i64 at = split * entries + entry;
        const float weight = exp2_weight(p.partial_state[at * 2] + shift);
        sum = fmaf(p.partial_state[at * 2 + 1], weight, sum);
        if (dim < p.head_dim) {
            out = fmaf(p.partial_out[at * p.head_dim + dim], weight, out);
        }
    }
    const float v_scale = p.v_scales ? p.v_scales[head / (p.num_q_heads / p.num_kv_heads)] : p.v_scale;
    const RowEnd end = finish_row(max, sum, p.sinks ? p.sinks[head] : negative_infinity(), v_scale);
    if (dim < p.head_dim) {
        u8* const to = p.out + (query * p.out_row_stride + head * p.out_head_stride + dim) * OUT_FORMAT::bytes;
        store_code<OUT_FORMAT>(to, pack_pair(OUT_FORMAT{}, out * end.factor, 0.0f) & 0xffffu);
    }
    if (dim == 0 && p.lse) {
        p.lse[query * p.lse_row_stride + head * p.lse_head_stride] = end.lse;
    }
}
