// reshape_and_cache: writes the K and V rows of new tokens into their cache slots, encoded in the cache's format.
// One instance per source format and cache format; one block of threads per token.

#include "formats.cuh"

constexpr int kThreads = 128;

// Strides are in elements; rows of head_dim elements are contiguous.
struct StoreSide {
    const u8* source;     // [num_tokens, num_kv_heads, head_dim]
    u8* cache;            // pages of [page_size, num_kv_heads, head_dim], any order of slot and head
    const float* scales;  // optional [num_kv_heads], else scale
    i64 token_stride, source_head_stride;
    i64 page_stride, slot_stride, head_stride;
    float scale;
    i32 head_dim;
    i32 quads_aligned;  // whether four elements can be moved at once, on both sides
    i32 reserved;
};

struct StoreParams {
    StoreSide k, v;
    const i64* slot_mapping;  // [num_tokens]: page * page_size + slot, or -1 for a token that is not stored
    i32 num_kv_heads;
    i32 page_size;
};

// A GPU's division gives every NaN the same bits; its sign is to be kept, so it goes around. The quiet bit is set as a
// division would.
ATTEST_DEVICE float divide(float value, float scale) {
    return value != value ? make_f32(f32_bits(value) | 0x00400000u) : __fdiv_rn(value, scale);
}

ATTEST_DEVICE Quad divide(Quad value, float scale) {
    return Quad{divide(value.x, scale), divide(value.y, scale), divide(value.z, scale), divide(value.w, scale)};
}

// The scale divides: multiplying by its reciprocal rounds differently.
ATTEST_DEVICE void store_side(const StoreSide& side, i64 token, i64 page, i64 slot, i32 num_kv_heads) {
    const i32 width = side.quads_aligned ? 4 : 1;
    const i32 units = side.head_dim / width;
    for (i32 item = threadIdx.x; item < num_kv_heads * units; item += kThreads) {
        const i32 head = item / units;
        const i32 dim = item % units * width;
        const float scale = side.scales ? side.scales[head] : side.scale;
        const i64 from = token * side.token_stride + head * side.source_head_stride + dim;
        const i64 to = page * side.page_stride + slot * side.slot_stride + head * side.head_stride + dim;
        const u8* source = side.source + from * SOURCE_FORMAT::bytes;
        u8* cache = side.cache + to * KV_FORMAT::bytes;
        if (width == 4) {
            store_quad<KV_FORMAT>(cache, divide(load_quad<SOURCE_FORMAT>(source), scale));
        } else {
            const float value = SOURCE_FORMAT::decode(load_code<SOURCE_FORMAT>(source));
            store_code<KV_FORMAT>(cache, KV_FORMAT::encode(divide(value, scale)));
        }
    }
}

ATTEST_KERNEL(reshape_and_cache, StoreParams, kThreads) {
    const i64 token = blockIdx.x;
    const i64 slot = p.slot_mapping[token];
    if (slot < 0) {
        return;
    }
    store_side(p.k, token, slot / p.page_size, slot % p.page_size, p.num_kv_heads);
    store_side(p.v, token, slot / p.page_size, slot % p.page_size, p.num_kv_heads);
}
