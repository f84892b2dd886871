// How tiles of K and V, and the rows of Q, come from global to shared memory in mma.cu and mma_pairs.cu: pages are asked
// for some tiles ahead, the rows of their keys noted, and the rows' pieces copied asynchronously.
#pragma once

#include "packed.cuh"
#include "tile_shape.cuh"

// Number of this thread among those that copy; negative for others, which call nothing below.
ATTEST_DEVICE int copy_thread() { return static_cast<int>(threadIdx.x) - (kThreads - kCopyThreads); }

// Rows of a tile are moved in 16-byte pieces, dealt out to the threads in rounds.
constexpr int kPieces = kDim * KV_FORMAT::bytes / 16;
constexpr int kRounds = (kKeyTile * kPieces + kCopyThreads - 1) / kCopyThreads;
// Whether a thread's pieces differ in the row alone, and by a constant.
constexpr bool kEvenRounds = kCopyThreads % kPieces == 0 && kKeyTile % (kCopyThreads / kPieces) == 0;
constexpr int kRoundRows = kEvenRounds ? kCopyThreads / kPieces : 1;

// A thread's piece of one round: `more` rows below row `row`.
struct Piece {
    int row, index, more;
    bool exists;
};

ATTEST_DEVICE Piece piece_of(int round, int thread) {
    const int item = round * kCopyThreads + thread;
    if (kEvenRounds) {
        return Piece{thread / kPieces, thread % kPieces, round * kRoundRows, round < kRounds};
    }
    return Piece{item / kPieces, item % kPieces, 0, item < kKeyTile * kPieces};
}

// Keys that one thread looks up at a time.
constexpr int kLookups = kLookupTiles == 2 ? 1 : (kKeyTile + kCopyThreads - 1) / kCopyThreads;

// A key that a thread looks up: slot `slot` of tile `tile`.
struct Lookup {
    i32 tile, slot;
    bool exists;
};

// This thread's lookup `i` among those of the tiles from `first`.
ATTEST_DEVICE Lookup lookup_of(i32 first, int i) {
    constexpr int places = kLookupTiles * kKeyTile;
    const int place = i * kCopyThreads + recomputed(copy_thread());
    const i32 tile = first + (kLookupTiles == 2 ? place / kKeyTile : 0);
    const i32 slot = kLookupTiles == 2 ? place % kKeyTile : place;
    return Lookup{tile, slot, kLookups * kCopyThreads == places || place < places};
}

// The key whose row fills slot `slot` of a tile: slots beyond the block's range repeat its first or last key, so that
// nothing is read that no row of the block sees. Their scores are masked.
ATTEST_DEVICE i32 key_of_slot(const Work& w, i32 tile, i32 slot) {
    // Unsigned: tiles are looked up ahead of the last, and keys are numbered up to 2^31.
    const u32 key = static_cast<u32>(tile) * kKeyTile + static_cast<u32>(slot);
    const u32 begin = static_cast<u32>(w.keys.begin), end = static_cast<u32>(w.keys.end);
    const u32 not_before = key < begin ? begin : key;
    return static_cast<i32>(not_before < end ? not_before : end - 1);
}

// Where the page of a key is awaited, by the thread alone that looks it up.
ATTEST_DEVICE i32* awaited_page(u8* shared, const Lookup& at) {
    return reinterpret_cast<i32*>(shared + Shared::pages) + static_cast<u32>(at.tile) % kRowRing * kKeyTile + at.slot;
}

// Starts the copies of the page ids of the tiles from `first`. In shared memory, not in registers, they wait for matrix
// work to pass, which has better use for registers.
ATTEST_DEVICE void ask_pages(u8* shared, const MmaParams& p, const Work& w, i32 first) {
    const AttentionParams& a = p.attention;
    const i32* const block_table_row = a.block_table + recomputed(w.request) * a.block_table_stride;
    ATTEST_UNROLL_FULL
    for (int i = 0; i < kLookups; ++i) {
        const Lookup at = lookup_of(first, i);
        if (at.exists) {
            const i32 key = key_of_slot(w, at.tile, at.slot);
            copy_async4(awaited_page(shared, at), block_table_row + page_column(p, key));
        }
    }
}

// Where the key rows of a tile lie in the cache, in steps of RowSteps: those of K, then those of V.
ATTEST_DEVICE u32* key_rows(u8* shared, i32 tile) {
    return reinterpret_cast<u32*>(shared + Shared::rows) + static_cast<u32>(tile) % kRowRing * 2 * kKeyTile;
}

// Place of a slot's row among those of its tile: the rows whose pieces one thread copies lie side by side.
ATTEST_DEVICE int row_place(int slot) {
    return kEvenRounds ? slot % kRoundRows * kRounds + slot / kRoundRows : slot;
}

// Notes the key rows of the tiles from `first`, whose pages have arrived.
ATTEST_DEVICE void note_key_rows(u8* shared, const MmaParams& p, const Work& w, i32 first) {
    ATTEST_UNROLL_FULL
    for (int i = 0; i < kLookups; ++i) {
        const Lookup at = lookup_of(first, i);
        if (at.exists) {
            const i32 page = *awaited_page(shared, at), key = key_of_slot(w, at.tile, at.slot);
            const i32 in_page = key - page_column(p, key) * p.attention.page_size;
            u32* const row = key_rows(shared, at.tile) + row_place(at.slot);
            row[0] = row_steps(p.k_steps, page, in_page, w.kv_head);
            row[kKeyTile] = row_steps(p.v_steps, page, in_page, w.kv_head);
        }
    }
}

// Looks up the block's first tiles, and asks for the pages of those that follow.
ATTEST_DEVICE void look_up_first(u8* shared, const MmaParams& p, const Work& w) {
    if (kDense) {
        return;
    }
    const i32 first = w.first_tile - w.first_tile % kLookupTiles;
    ATTEST_UNROLL(1)
    for (i32 tile = first; tile < first + kKnownTiles; tile += kLookupTiles) {
        ask_pages(shared, p, w, tile);
    }
    copy_async_commit();
    copy_async_wait<0>();
    ATTEST_UNROLL(1)
    for (i32 tile = first; tile < first + kKnownTiles; tile += kLookupTiles) {
        note_key_rows(shared, p, w, tile);
    }
    ask_pages(shared, p, w, first + kKnownTiles);
}

// Looks tiles up while `tile` is worked on: those after the next two, whose places in the ring nobody needs any more. The
// pages that it asks for have arrived at the next call, for all copies before have.
ATTEST_DEVICE void look_up(u8* shared, const MmaParams& p, const Work& w, i32 tile) {
    if (!kDense && static_cast<u32>(tile) % kLookupTiles == kLookupTiles - 1) {
        note_key_rows(shared, p, w, tile + 3);
        ask_pages(shared, p, w, tile + 3 + kLookupTiles);
    }
}

// The copies of one operand's tile that a thread starts: some rounds at a time, so that between them the warp can do
// other work. Made anew for each tile: else every round's place would occupy a register throughout the loop.
struct TileCopy {
    bool exists;
    int thread;
    const u8* from;   // the cache, or the tile in it where it is one stretch; at the thread's piece where rounds are even
    u8* to;           // the tile in shared memory; likewise
    const u32* rows;  // those noted for the tile; likewise
    u32 step;         // bytes of a step of the rows
};

// Copies a tile of which the block does not see all keys; the others become zero.
ATTEST_DEVICE void start_partial_dense_tile(u8* to, const u8* keys, const Work& w, i32 tile) {
    const i32 first = tile * kKeyTile;
    ATTEST_UNROLL(1)
    for (int item = recomputed(copy_thread()); item < kKeyTile * kPieces; item += kCopyThreads) {
        const i32 key = first + item / kPieces;
        const bool seen = key >= w.keys.begin && key < w.keys.end;
        const u8* const row = keys + (seen ? static_cast<i64>(first) * (kPieces * 16) + item * 16 : 0);
        copy_async16(to + item / kPieces * kRowBytes + item % kPieces * 16, row, seen ? 16 : 0);
    }
}

// The copies of a tile to `to`. `cache` is the operand's first key of the head where keys are one stretch, and where they
// are not, the cache, in which `rows` are the tile's. There are none for the tile after the last, and none are left for a
// partial tile of a dense cache.
ATTEST_DEVICE TileCopy make_copy(u8* to, const u8* cache, const u32* rows, u32 step, const Work& w, i32 tile) {
    constexpr int row_bytes = kCast ? kRawRowBytes : kRowBytes;
    TileCopy copy;
    copy.exists = tile < w.end_tile;
    copy.thread = recomputed(copy_thread());
    copy.step = step;
    const Piece even = piece_of(0, copy.thread);
    copy.to = to + (kEvenRounds ? even.row * row_bytes + even.index * 16 : 0);
    if (kDense) {
        const i32 first = tile * kKeyTile;
        if (copy.exists && (first < w.keys.begin || first + kKeyTile > w.keys.end)) {
            start_partial_dense_tile(to, cache, w, tile);
            copy.exists = false;
        }
        copy.from = cache + static_cast<i64>(first) * (kPieces * 16) + copy.thread * 16;
        copy.rows = nullptr;
        return copy;
    }
    copy.from = cache + (kEvenRounds ? even.index * 16 : 0);
    // Held, so that the address of a piece is one multiplication added to it.
    ATTEST_KEEP_ADDRESS(copy.from);
    copy.rows = rows + (kEvenRounds ? even.row * kRounds : 0);
    return copy;
}

ATTEST_DEVICE TileCopy copy_of_k(u8* shared, const MmaParams& p, const Work& w, i32 tile) {
    const AttentionParams& a = p.attention;
    u8* const to = shared + (kCast ? Shared::raw_k : Shared::k + static_cast<u32>(tile) % 2 * kTileBytes);
    const i64 head = kDense ? recomputed(w.request) * a.k_page_stride + recomputed(w.kv_head) * a.k_head_stride : 0;
    return make_copy(to, a.k + head * KV_FORMAT::bytes, key_rows(shared, tile), p.k_steps.bytes, w, tile);
}

ATTEST_DEVICE TileCopy copy_of_v(u8* shared, const MmaParams& p, const Work& w, i32 tile) {
    const AttentionParams& a = p.attention;
    u8* const to = shared + (kCast ? Shared::raw_v : Shared::v + static_cast<u32>(tile) % 2 * kTileBytes);
    const i64 head = kDense ? recomputed(w.request) * a.v_page_stride + recomputed(w.kv_head) * a.v_head_stride : 0;
    return make_copy(to, a.v + head * KV_FORMAT::bytes, key_rows(shared, tile) + kKeyTile, p.v_steps.bytes, w, tile);
}

// Reads `count` of the thread's rows from round `first`, at once where they lie side by side and are as wide as an access.
template <int count>
ATTEST_DEVICE void read_rows(u32 (&rows)[count], const TileCopy& copy, int first) {
    constexpr bool wide = kEvenRounds && kRounds % count == 0;
    if (wide && count % 4 == 0) {
        ATTEST_UNROLL_FULL
        for (int i = 0; i < count; i += 4) {
            const Vec16 four = load16(copy.rows + first + i);
            rows[i] = ATTEST_VEC16_WORD(four, 0);
            rows[i + 1] = ATTEST_VEC16_WORD(four, 1);
            rows[i + 2] = ATTEST_VEC16_WORD(four, 2);
            rows[i + 3] = ATTEST_VEC16_WORD(four, 3);
        }
    } else if (wide && count == 2) {
        const u64 two = load8(copy.rows + first);
        rows[0] = static_cast<u32>(two);
        rows[1] = static_cast<u32>(two >> 32);
    } else {
        ATTEST_UNROLL_FULL
        for (int i = 0; i < count; ++i) {
            const Piece piece = piece_of(first + i, copy.thread);
            rows[i] = piece.exists ? copy.rows[kEvenRounds ? first + i : row_place(piece.row)] : 0;
        }
    }
}

// Starts the copies of `count` rounds from round `first`.
template <int count>
ATTEST_DEVICE void start_rounds(const TileCopy& copy, int first) {
    constexpr int row_bytes = kCast ? kRawRowBytes : kRowBytes;
    u32 rows[count] = {};
    if (!kDense) {
        read_rows(rows, copy, first);
    }
    ATTEST_UNROLL_FULL
    for (int i = 0; i < count; ++i) {
        const int round = first + i;
        const Piece piece = piece_of(round, copy.thread);
        if (!piece.exists) {
            continue;
        }
        const int offset = (kEvenRounds ? 0 : piece.row * row_bytes + piece.index * 16) + piece.more * row_bytes;
        const u8* const from = kDense ? copy.from + round * kCopyThreads * 16
                                      : copy.from + (kEvenRounds ? 0 : piece.index * 16) +
                                            static_cast<u64>(rows[i]) * copy.step;
        if (copy.exists) {
            copy_async16(copy.to + offset, from);
        }
    }
}

// Starts all copies of a tile.
ATTEST_DEVICE void start_tile(const TileCopy& copy) {
    constexpr int batch = kRounds % 8 == 0 ? 8 : kRounds % 4 == 0 ? 4 : 1;
    ATTEST_UNROLL_FULL
    for (int round = 0; round < kRounds; round += batch) {
        start_rounds<batch>(copy, round);
    }
}

// Copies the block's rows of q, all threads together; rows beyond the request's last become zero.
ATTEST_DEVICE void copy_queries(u8* shared, const AttentionParams& a, const Work& w) {
    constexpr int chunks = kDim * 2 / 16;
    const i32 group = a.num_q_heads / a.num_kv_heads;
    for (int item = threadIdx.x; item < kRows * chunks; item += kThreads) {
        const int row = item / chunks, chunk = item % chunks;
        const i32 packed = w.first_packed + row;
        const bool exists = packed < w.packed_rows;
        const i64 query = w.first_query + packed / group, head = w.kv_head * group + packed % group;
        const u8* from = a.q + (exists ? (query * a.q_row_stride + head * a.q_head_stride + chunk * 8) * 2 : 0);
        copy_async16(shared + Shared::q + row * kRowBytes + chunk * 16, from, exists ? 16 : 0);
    }
}
