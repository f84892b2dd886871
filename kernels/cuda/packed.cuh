// What the tensor-core kernels share: their arguments, how packed rows and key tiles are dealt out to blocks, and how a
// row's results leave the block.
//
// Packed rows are the query rows of one request times the query heads of one KV head, position by position: packed row r
// is query row r / group, head r % group. They see keys alike but for their positions, so a block reads each key once
// for all of them.
#pragma once

#include "pages.cuh"
#include "softmax.cuh"

// Strides of K or V as multiples of a number of bytes that divides them all, so that 32 bits hold the place of any row and
// one multiplication makes its address.
struct RowSteps {
    u32 bytes, page, slot, head;
};

struct MmaParams {
    AttentionParams attention;
    RowSteps k_steps, v_steps;
    PageDivider pages;
    float* partial_out;    // [splits, total_q, num_q_heads, head_dim] sums of P V, with splits > 1
    float* partial_state;  // [splits, total_q, num_q_heads, 2] maximum in base 2 and sum of P
    i32 row_tiles;         // blocks per request and KV head, splits apart
    i32 splits;
    i32 total_q;
    i32 page_shift;        // log2 of the page size, or -1
};

// One block's share of the work.
struct Work {
    i32 request, kv_head, first_packed, packed_rows, first_query, q_len, kv_len, split;
    i32 first_tile, end_tile;
    KeyRange keys;  // what some row of the block sees
};

// The keys that packed row `packed` sees.
ATTEST_DEVICE KeyRange packed_row_keys(const AttentionParams& a, i32 packed, i32 q_len, i32 kv_len) {
    const i32 index = packed / (a.num_q_heads / a.num_kv_heads);
    const i64 position = static_cast<i64>(kv_len) - q_len + index;
    return visible_keys(position, kv_len, a.causal, a.window_left, a.window_right);
}

// The work of block `block` of a KV head: `rows` packed rows against key tiles of `key_tile` keys.
template <int rows, int key_tile>
ATTEST_DEVICE Work find_work(const MmaParams& p, i32 block, i32 kv_head) {
    const AttentionParams& a = p.attention;
    Work w;
    const i32 blocks = p.row_tiles * p.splits;
    const i32 in_request = block % blocks;
    w.request = block / blocks;
    w.kv_head = kv_head;
    w.split = in_request % p.splits;
    // Later rows see more keys under a causal mask: the long blocks start first.
    w.first_packed = (p.row_tiles - 1 - in_request / p.splits) * rows;
    w.first_query = a.query_start_loc[w.request];
    w.q_len = a.query_start_loc[w.request + 1] - w.first_query;
    w.kv_len = a.seq_lens[w.request];
    w.packed_rows = w.q_len * (a.num_q_heads / a.num_kv_heads);
    if (w.first_packed >= w.packed_rows) {
        return w;
    }
    const i32 last = w.first_packed + rows < w.packed_rows ? w.first_packed + rows - 1 : w.packed_rows - 1;
    // Both ends of a row's range grow with its position, so the first and the last row bound the block's.
    w.keys = KeyRange{packed_row_keys(a, w.first_packed, w.q_len, w.kv_len).begin,
                      packed_row_keys(a, last, w.q_len, w.kv_len).end};
    const i32 begin = w.keys.begin / key_tile;
    const i32 end = w.keys.end > w.keys.begin ? (w.keys.end + key_tile - 1) / key_tile : begin;
    const i32 share = (end - begin + p.splits - 1) / p.splits;
    w.first_tile = begin + w.split * share < end ? begin + w.split * share : end;
    w.end_tile = w.first_tile + share < end ? w.first_tile + share : end;
    return w;
}

// The work of this block, request by request within a KV head.
template <int rows, int key_tile>
ATTEST_DEVICE Work find_work(const MmaParams& p) {
    return find_work<rows, key_tile>(p, static_cast<i32>(blockIdx.x), static_cast<i32>(blockIdx.y));
}

// The same, KV head by KV head within a request, so that blocks that run together read rows that lie side by side.
template <int rows, int key_tile>
ATTEST_DEVICE Work find_work_by_head(const MmaParams& p) {
    const u32 block = blockIdx.y * gridDim.x + blockIdx.x;
    return find_work<rows, key_tile>(p, static_cast<i32>(block / gridDim.y), static_cast<i32>(block % gridDim.y));
}

// Column of the block table that names a key's page.
ATTEST_DEVICE i32 page_column(const MmaParams& p, i32 key) {
    return page_of_key(p.pages, key);
}

// Where a key's row lies: page and slot, found through the block table.
struct Slot {
    i64 page, in_page;
};

ATTEST_DEVICE Slot find_slot(const MmaParams& p, const i32* block_table_row, i32 key) {
    const i32 column = page_column(p, key);
    return Slot{block_table_row[column], key - column * p.attention.page_size};
}

// Place of a key row in the cache; the host has checked that it fits. (Unsigned: a page id of a cache with one page may
// be multiplied by any stride.)
ATTEST_DEVICE u32 row_steps(const RowSteps& steps, i32 page, i32 in_page, i32 kv_head) {
    return static_cast<u32>(page) * steps.page + static_cast<u32>(in_page) * steps.slot +
           static_cast<u32>(kv_head) * steps.head;
}

// Where a packed row's results go.
struct Destination {
    i64 query;
    i32 head;
};

ATTEST_DEVICE Destination find_destination(const AttentionParams& a, const Work& w, i32 packed) {
    const i32 group = a.num_q_heads / a.num_kv_heads;
    return Destination{w.first_query + packed / group, w.kv_head * group + packed % group};
}

// Entry of one split's partial sums.
ATTEST_DEVICE i64 partial_entry(const MmaParams& p, const Work& w, Destination to) {
    return (static_cast<i64>(w.split) * p.total_q + to.query) * p.attention.num_q_heads + to.head;
}

ATTEST_DEVICE RowEnd finish_packed_row(const AttentionParams& a, const Work& w, Destination to, float max, float sum) {
    const float v_scale = a.v_scales ? a.v_scales[w.kv_head] : a.v_scale;
    return finish_row(max, sum, a.sinks ? a.sinks[to.head] : negative_infinity(), v_scale);
}
