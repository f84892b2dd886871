// One-time dequantisation of an fp8 cache into a dense 16-bit scratch, K and V in one launch, values unscaled. A cache
// that is 16-bit already is copied: the same layout without the cast.
//
// The tokens of a call itself (the last of each request, as many as it has query rows) and those of earlier calls may be
// covered apart: the latter are known before the former.
//
// The scratch holds one page per request: [num_requests, num_kv_heads, page (the longest sequence), head_dim], so with an
// identity block table its paged address is its dense address, and the keys of a head lie one after another. Slots beyond
// a sequence's length are not written.
//
// A block covers a stretch of one head's keys, a thread one access of K and of V.

#include "cast.cuh"
#include "pages.cuh"

#ifndef CODES
#error "define CODES: elements that a thread reads, 16 (an even number of times per row) or 8 of fp8, 8 of 16 bits"
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
    PageDivider pages;
    i32 num_kv_heads, head_dim, page_size;
    i32 tokens_per_block;    // as many rows of a head as 256 threads read
    i32 blocks_per_head;     // of one request
    i32 covers;              // 1 for the tokens before those of this call, 2 for those of this call, 3 for both
};

#ifdef COPY
typedef Vec16 Codes;
ATTEST_DEVICE Codes no_codes() { return make_vec16(0, 0, 0, 0); }
ATTEST_DEVICE Codes load_codes(const u8* from) { return load16(from); }
ATTEST_DEVICE Vec16 to_dense(Codes codes) { return codes; }
#else
// Eight codes, each in its place.
ATTEST_DEVICE Vec16 cast_in_order(u32 first, u32 second) {
    // The caster pairs every other code.
    const u32 codes[2] = {__byte_perm(first, 0, 0x3120), __byte_perm(second, 0, 0x3120)};
    WordCast pairs[2];
    cast_words<TO_FORMAT, KV_FORMAT>(pairs, codes);
    return make_vec16(pairs[0].first, pairs[0].second, pairs[1].first, pairs[1].second);
}
#if CODES == 16
typedef Vec16 Codes;
ATTEST_DEVICE Codes no_codes() { return make_vec16(0, 0, 0, 0); }
ATTEST_DEVICE Codes load_codes(const u8* from) { return load16(from); }
#else
typedef u64 Codes;
ATTEST_DEVICE Codes no_codes() { return 0; }
ATTEST_DEVICE Codes load_codes(const u8* from) { return load8(from); }
ATTEST_DEVICE Vec16 to_dense(Codes codes) {
    return cast_in_order(static_cast<u32>(codes), static_cast<u32>(codes >> 32));
}
#endif
#endif

// Writes a thread's part of a row; all lanes come here together, and those without a part say so.
#if CODES == 16
ATTEST_DEVICE void write_codes(u8* row, i32 chunk, Codes codes, bool exists) {
    // Sixteen codes become 32 bytes. Two lanes exchange halves, so that what they write at once lies side by side:
    // written half by half, every sector of 32 bytes would be written twice.
    const bool odd = chunk % 2 != 0;
    u32 low[2] = {ATTEST_VEC16_WORD(codes, 0), ATTEST_VEC16_WORD(codes, 1)};
    u32 high[2] = {ATTEST_VEC16_WORD(codes, 2), ATTEST_VEC16_WORD(codes, 3)};
    ATTEST_UNROLL_FULL
    for (int i = 0; i < 2; ++i) {
        const u32 got = __shfl_xor_sync(0xffffffffu, odd ? low[i] : high[i], 1);
        low[i] = odd ? got : low[i];
        high[i] = odd ? high[i] : got;
    }
    if (exists) {
        u8* const to = row + chunk / 2 * 64 + (odd ? 16 : 0);
        store16(to, cast_in_order(low[0], low[1]));
        store16(to + 32, cast_in_order(high[0], high[1]));
    }
}
#else
ATTEST_DEVICE void write_codes(u8* row, i32 chunk, Codes codes, bool exists) {
    if (exists) {
        store16(row + chunk * 16, to_dense(codes));
    }
}
#endif

// The tokens of a request that a launch covers.
struct Covered {
    i32 begin, end;
};

ATTEST_DEVICE Covered covered_tokens(const DequantParams& p, i32 request) {
    const i32 kv_len = p.seq_lens[request];
    const i32 q_len = p.query_start_loc[request + 1] - p.query_start_loc[request];
    const i32 first_own = kv_len > q_len ? kv_len - q_len : 0;
    return Covered{p.covers & 1 ? 0 : first_own, p.covers & 2 ? kv_len : first_own};
}

ATTEST_KERNEL(dequantise_dense, DequantParams, 256) {
    const i32 block = static_cast<i32>(blockIdx.x);
    // Heads side by side, so that blocks that run together read rows that lie side by side.
    const i32 head = block % p.num_kv_heads, stretch = block / p.num_kv_heads;
    const i32 request = stretch / p.blocks_per_head;
    const Covered tokens = covered_tokens(p, request);
    const i32 chunks = p.head_dim / CODES;
    const i32 row = static_cast<i32>(threadIdx.x) / chunks, chunk = static_cast<i32>(threadIdx.x) % chunks;
    const i32 token = tokens.begin + stretch % p.blocks_per_head * p.tokens_per_block + row;
    const bool exists = row < p.tokens_per_block && token < tokens.end;
    Codes k = no_codes(), v = no_codes();
    if (exists) {
        const i32 column = page_of_key(p.pages, token);
        const i64 page = p.block_table[request * p.block_table_stride + column], slot = token - column * p.page_size;
        const i64 from_k = page * p.k_page_stride + slot * p.k_slot_stride + head * p.k_head_stride + chunk * CODES;
        const i64 from_v = page * p.v_page_stride + slot * p.v_slot_stride + head * p.v_head_stride + chunk * CODES;
        k = load_codes(p.k + from_k * KV_FORMAT::bytes);
        v = load_codes(p.v + from_v * KV_FORMAT::bytes);
    }
    const i64 dense_row = (static_cast<i64>(request) * p.num_kv_heads + head) * p.dense_page + token;
    write_codes(p.dense_k + dense_row * p.head_dim * 2, chunk, k, exists);
    write_codes(p.dense_v + dense_row * p.head_dim * 2, chunk, v, exists);
}
