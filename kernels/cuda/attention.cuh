// What every paged-attention kernel shares: its arguments, which keys a row sees, where a key lies, how a score is
// modified.
#pragma once

#include "elementary.cuh"

// Arguments of one call. Strides are in elements; rows of head_dim elements are contiguous. Optional pointers are null.
struct AttentionParams {
    const u8* q;                // [total_q, num_q_heads, head_dim_k]
    u8* out;                    // [total_q, num_q_heads, head_dim_v], of q's format
    float* lse;                 // optional [total_q, num_q_heads], natural logarithm
    const u8* k;                // pages of [page_size, num_kv_heads, head_dim_k], any order of slot and head
    const u8* v;                // pages of [page_size, num_kv_heads, head_dim_v]
    const i32* block_table;     // [num_requests, width]
    const i32* seq_lens;        // [num_requests], keys of each request
    const i32* query_start_loc; // [num_requests + 1], first row of each request
    const float* alibi_slopes;  // optional [num_q_heads]
    const float* sinks;         // optional [num_q_heads], logits
    const float* k_scales;      // optional [num_kv_heads], else k_scale
    const float* v_scales;      // optional [num_kv_heads], else v_scale
    i64 q_row_stride, q_head_stride;
    i64 out_row_stride, out_head_stride;
    i64 lse_row_stride, lse_head_stride;
    i64 k_page_stride, k_slot_stride, k_head_stride;
    i64 v_page_stride, v_slot_stride, v_head_stride;
    i64 block_table_stride;
    i64 window_left, window_right;  // -1 for no limit, at most 2^40
    float softmax_scale;
    float softcap;  // 0 for none
    float k_scale, v_scale;
    i32 num_q_heads, num_kv_heads;
    i32 head_dim_k, head_dim_v;
    i32 page_size;
    i32 num_requests;
    i32 causal;
    i32 max_query_len;  // at least the longest query; decides the grid only
};

// Keys [begin, end) are visible to a row.
struct KeyRange {
    i32 begin, end;
};

// The row at `position` (bottom-right aligned: kv_len - q_len + row) sees keys up to itself if causal and those within
// the window. A position may be negative, and position + window_right + 1 needs more than 32 bits.
ATTEST_DEVICE KeyRange visible_keys(i64 position, i32 kv_len, i32 causal, i64 window_left, i64 window_right) {
    i64 begin = 0;
    i64 end = kv_len;
    if (window_left >= 0 && position - window_left > begin) {
        begin = position - window_left;
    }
    if (causal && position + 1 < end) {
        end = position + 1;
    }
    if (window_right >= 0 && position + window_right + 1 < end) {
        end = position + window_right + 1;
    }
    return KeyRange{begin < kv_len ? static_cast<i32>(begin) : kv_len, end > 0 ? static_cast<i32>(end) : 0};
}

// A scaled dot product with softcap and ALiBi applied. `distance` is key minus row position, at most 0 where causal.
ATTEST_DEVICE float modify_score(float score, float softcap, float alibi_slope, i64 distance) {
    if (softcap > 0.0f) {
        score = softcap * tanh_f32(__fdiv_rn(score, softcap));
    }
    return fmaf(alibi_slope, static_cast<float>(distance), score);
}

// Element offset of a key's first element of one KV head.
ATTEST_DEVICE i64 key_offset(const i32* block_table_row, i32 key, i32 page_size, i64 page_stride, i64 slot_stride) {
    const i32 page = block_table_row[key / page_size];
    return page * page_stride + (key % page_size) * slot_stride;
}
