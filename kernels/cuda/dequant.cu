// One-time dequantisation of an fp8 cache into a dense 16-bit scratch, K and V in one launch, values unscaled. A cache
// that is 16-bit already is copied: the same layout without the cast.
//
// The tokens of a call itself (the last of each request, as many as it has query rows) and those of earlier calls may be
// covered apart: the latter are known before the former.
//
// The scratch holds one page per request: [num_requests, num_kv_heads, page (the longest sequence), head_dim], so with an
// identity block table its paged address is its dense address, and the keys of a head lie one after another. Slots beyond a sequence's length are not written.

#include "cast.cuh"

#ifndef CODES
#error "define CODES: elements of one access, 16 or 8 for an fp8 cache, 8 for a 16-bit one"
#endif

struct DequantParams {
    const u8* k;             // pages of the fp8 cache
    const u8* v;
    u8* dense_k;             // [num_requests, num_kv_heads, dense_page, head_dim] of TO_FORMAT
    u8* dense_v;
    const i32* block_table;
    const i32* seq_lens;
    const i32* query_start_loc;
    i64 block_table_stride;
    i64 k_page_stride, k_slot_stride, k_head_stride;
    i64 v_page_stride, v_slot_stride, v_head_stride;
    i64 dense_page;          // slots of one request
    i32 num_kv_heads, head_dim, page_size;
    i32 page_shift;          // log2 of the page size, or -1
    i32 tokens_per_block;
    i32 blocks_per_request;
    i32 earlier, own;        // whether to cover the tokens before those of this call, and those of this call
};

// Casts or copies CODES consecutive elements.
ATTEST_DEVICE void dequantise(u8* to, const u8* from) {
#if CODES == 16
    const Vec16 raw = load16(from);
    const u64 low = ATTEST_VEC16_WORD(raw, 0) | static_cast<u64>(ATTEST_VEC16_WORD(raw, 1)) << 32;
    const u64 high = ATTEST_VEC16_WORD(raw, 2) | static_cast<u64>(ATTEST_VEC16_WORD(raw, 3)) << 32;
    store16(to, cast_eight<TO_FORMAT, KV_FORMAT>(low));
    store16(to + 16, cast_eight<TO_FORMAT, KV_FORMAT>(high));
#elif defined(COPY)
    store16(to, load16(from));
#else
    store16(to, cast_eight<TO_FORMAT, KV_FORMAT>(load8(from)));
#endif
}

ATTEST_KERNEL(dequantise_dense, DequantParams, 256) {
    const i32 request = static_cast<i32>(blockIdx.x) / p.blocks_per_request;
    const i32 kv_len = p.seq_lens[request];
    const i32 q_len = p.query_start_loc[request + 1] - p.query_start_loc[request];
    const i32 first_own = kv_len > q_len ? kv_len - q_len : 0;
    const i32 begin = p.earlier ? 0 : first_own, end = p.own ? kv_len : first_own;
    const i32 first = begin + static_cast<i32>(blockIdx.x) % p.blocks_per_request * p.tokens_per_block;
    const i32 tokens = end - first < p.tokens_per_block ? end - first : p.tokens_per_block;
    const i32 per_head = p.head_dim / CODES;
    const i32 per_token = p.num_kv_heads * per_head;
    const i32* const block_table_row = p.block_table + request * p.block_table_stride;
    for (i32 item = threadIdx.x; item < tokens * per_token; item += 256) {
        const i32 token = first + item / per_token;
        const i32 head = item % per_token / per_head, dim = item % per_head * CODES;
        const i32 column = p.page_shift >= 0 ? token >> p.page_shift : token / p.page_size;
        const i64 slot = token - column * p.page_size;
        const i64 page = block_table_row[column];
        const i64 to = ((request * p.num_kv_heads + head) * p.dense_page + token) * p.head_dim + dim;
        const i64 from_k = page * p.k_page_stride + slot * p.k_slot_stride + head * p.k_head_stride + dim;
        const i64 from_v = page * p.v_page_stride + slot * p.v_slot_stride + head * p.v_head_stride + dim;
        dequantise(p.dense_k + to * 2, p.k + from_k * KV_FORMAT::bytes);
        dequantise(p.dense_v + to * 2, p.v + from_v * KV_FORMAT::bytes);
    }
}
