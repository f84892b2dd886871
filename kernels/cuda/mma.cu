// Flash attention on tensor cores (sm_80 and later) over a paged cache, for bf16 and f16 queries.
//
// One instance per query format, cache format, head dim and tile sizes; everything else is run-time. Warp w of a block
// owns kWarpRows packed rows (query position x query head of one KV head) and all keys of its split:
//
//   per tile of kKeyTile keys:  S = Q K^T    online softmax in base 2    O = O decay + P V
//
// K and V travel by asynchronous copies, two buffers each, with one barrier per tile. An fp8 cache is copied raw and
// cast on its way into the tile (the staged arms) by the threads that copied it, at the price of a second barrier.
// Where two blocks fit a multiprocessor, one's matrix work overlaps the other's softmax.
//
// With more than one split, each writes its unnormalised sums and combine.cu merges them.
//
// A key that some rows of a tile see and others do not has weight exactly 0 in the others; a finite value there adds
// nothing, but a NaN or infinite V of such a key does reach them: on a tensor core 0 * NaN is NaN. Keys that no row of
// the block sees are never read.

#define SHARES 1
#include "tiles.cuh"

// Casts the pieces of one operand's raw tile that this thread has copied itself.
ATTEST_DEVICE void cast_tile(u8* to, const u8* from) {
    ATTEST_UNROLL(2)
    for (int round = 0; round < kRounds; ++round) {
        const Piece piece = piece_of(round, copy_thread());
        if (piece.exists) {
            const int row = piece.row + piece.more;
            const u8* const codes = from + row * kRawRowBytes + piece.index * 16;
            u8* const cast = to + row * kRowBytes + piece.index * 32;
            store16(cast, cast_eight<Q_FORMAT, KV_FORMAT>(load8(codes)));
            store16(cast + 16, cast_eight<Q_FORMAT, KV_FORMAT>(load8(codes + 8)));
        }
    }
}

// Turns raw scores of a tile into weights and scales earlier sums down to the new maximum.
ATTEST_DEVICE void softmax_tile(Scores& scores, ThreadRows& rows, Sums& out, float to_base_2) {
    float decay[kRowTiles][2];
    bool settled = true;
    ATTEST_UNROLL_FULL
    for (int m = 0; m < kRowTiles; ++m) {
        ATTEST_UNROLL_FULL
        for (int r = 0; r < 2; ++r) {
            ThreadRow& row = rows[m][r];
            float max = row.max;
            ATTEST_UNROLL_FULL
            for (int n = 0; n < kKeyTile / 8; ++n) {
                max = max_keeping_nan(max, max_keeping_nan(scores[m][n][2 * r], scores[m][n][2 * r + 1]));
            }
            max = max_keeping_nan(max, __shfl_xor_sync(kFullWarp, max, 1));
            max = max_keeping_nan(max, __shfl_xor_sync(kFullWarp, max, 2));
            // With nothing seen yet the maximum is -inf, and -inf - -inf would be NaN: any finite shift serves.
            const float shift = max == negative_infinity() ? 0.0f : -max * to_base_2;
            decay[m][r] = exp2_weight(fmaf(row.max, to_base_2, shift));
            settled = settled && decay[m][r] == 1.0f;
            row.max = max;
            float sum = row.sum * decay[m][r];
            ATTEST_UNROLL_FULL
            for (int n = 0; n < kKeyTile / 8; ++n) {
                scores[m][n][2 * r] = exp2_weight(fmaf(scores[m][n][2 * r], to_base_2, shift));
                scores[m][n][2 * r + 1] = exp2_weight(fmaf(scores[m][n][2 * r + 1], to_base_2, shift));
                sum += scores[m][n][2 * r] + scores[m][n][2 * r + 1];
            }
            row.sum = sum;
        }
    }
    // Once the maxima have settled the factors are 1, and multiplying by 1 changes no bit.
    if (!__all_sync(kFullWarp, settled)) {
        scale_sums(out, decay);
    }
}

// O += P V for one tile.
ATTEST_DEVICE void weigh_tile(Sums& out, const Scores& weights, const u8* v_tile) {
    const int lane = threadIdx.x % 32;
    const u8* const v_row = v_tile + (lane % 16) * kRowBytes + lane / 16 * 16;
    ATTEST_UNROLL_FULL
    for (int j = 0; j < kKeyTile / 16; ++j) {
        u32 a[kRowTiles][4];
        ATTEST_UNROLL_FULL
        for (int m = 0; m < kRowTiles; ++m) {
            a[m][0] = pack_pair(Q_FORMAT{}, weights[m][2 * j][0], weights[m][2 * j][1]);
            a[m][1] = pack_pair(Q_FORMAT{}, weights[m][2 * j][2], weights[m][2 * j][3]);
            a[m][2] = pack_pair(Q_FORMAT{}, weights[m][2 * j + 1][0], weights[m][2 * j + 1][1]);
            a[m][3] = pack_pair(Q_FORMAT{}, weights[m][2 * j + 1][2], weights[m][2 * j + 1][3]);
        }
        weigh_keys(out, a, v_row + j * 16 * kRowBytes);
    }
}

// Looks up the first tiles, and starts the copies of q and of the first tile.
ATTEST_DEVICE void start_block(u8* shared, const MmaParams& p, const Work& w) {
    look_up_first(shared, p, w);
    copy_queries(shared, p.attention, w);
    // The key rows are known to everybody.
    __syncthreads();
    start_tile(copy_of_k(shared, p, w, w.first_tile));
    start_tile(copy_of_v(shared, p, w, w.first_tile));
    copy_async_commit();
}

// The copies of the next tile of K and V.
struct NextTile {
    TileCopy k, v;
};

// Starts those of one step of the scores. All at once, copies fill the memory pipe, and matrix loads wait behind them.
ATTEST_DEVICE void start_step(const NextTile& next, int step) {
    constexpr int rounds = (2 * kRounds + kScoreSteps - 1) / kScoreSteps;
    constexpr int batch = kRounds % rounds == 0 ? rounds : 1;
    ATTEST_UNROLL_FULL
    for (int i = 0; i < rounds; i += batch) {
        const int round = step * rounds + i;
        if (round < kRounds) {
            start_rounds<batch>(next.k, round);
        } else if (round < 2 * kRounds) {
            start_rounds<batch>(next.v, round - kRounds);
        }
    }
}

// The entry's name tells prefill and verify instances apart in launch counts.
#define MMA_KERNEL(name) ATTEST_KERNEL(name, MmaParams, kThreads)

MMA_KERNEL(ENTRY) {
    ATTEST_SHARED(shared);
    const Work w = find_work<kRows, kKeyTile>(p);
    if (w.first_packed >= w.packed_rows) {
        return;
    }
    ThreadRows rows;
    const Warp warp = start_warp(rows, shared, p.attention, w);
    Sums out;
    clear_sums(out);
    if (w.first_tile < w.end_tile) {
        start_block(shared, p, w);
    }
    for (i32 tile = w.first_tile; tile < w.end_tile; ++tile) {
        copy_async_wait<0>();
        // Everybody has done with the tile before; this one has arrived for everybody, unless it is still to be cast.
        __syncthreads();
        if (kCast) {
            cast_tile(shared + Shared::k, shared + Shared::raw_k);
            cast_tile(shared + Shared::v, shared + Shared::raw_v);
            __syncthreads();
        }
        const NextTile next{copy_of_k(shared, p, w, tile + 1), copy_of_v(shared, p, w, tile + 1)};
        if (!warp.has_rows) {
            start_tile(next.k);
            start_tile(next.v);
            look_up(shared, p, w, tile);
            copy_async_commit();
            continue;
        }
        const int buffer = tile % kBuffers * kTileBytes;
        Scores scores;
        score_tile(scores, warp.q_tile, shared + Shared::k + buffer, [&](int step) { start_step(next, step); });
        look_up(shared, p, w, tile);
        copy_async_commit();
        prepare_scores(scores, p.attention, w, warp, tile);
        softmax_tile(scores, rows, out, warp.to_base_2);
        weigh_tile(out, scores, shared + Shared::v + buffer);
    }

    if (!warp.has_rows) {
        return;
    }
    ATTEST_UNROLL_FULL
    for (int m = 0; m < kRowTiles; ++m) {
        ATTEST_UNROLL_FULL
        for (int r = 0; r < 2; ++r) {
            const i32 packed = warp.packed + 16 * m + 8 * r;
            const float sum = sum_over_lanes(rows[m][r].sum);
            if (packed < w.packed_rows) {
                write_row(p, w, warp, packed, out[m], r, rows[m][r].max, sum);
            }
        }
    }
}
