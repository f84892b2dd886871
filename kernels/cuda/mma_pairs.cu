// Flash attention on tensor cores over a paged cache for long queries and large head dims (192 and 256), where reading
// shared memory would be what the matrix instructions wait for.
//
// One warp's registers hold the sums of 16 rows of 256 dims, and with 16 rows every fragment of K and V serves only once.
// So two warps share 32 rows: each scores half of a tile's keys and sums up half of the dims, the weights pass through
// shared memory, and every fragment serves twice. Else the arithmetic is that of mma.cu.
//
// Half of the block's pairs runs one phase behind the other, so that on each scheduler one warp computes weights while
// another multiplies. Phases end at block barriers, two to a tile:
//
//   early half   weigh tile - 1, score tile | weights of tile          | weigh tile, score tile + 1 | ...
//   late half    weights of tile - 1        | weigh tile - 1, score tile | weights of tile          | ...
//
// While it computes weights the late half also starts the copies of K of the next tile and V of this one, whose buffers
// everybody has then left: half a tile's time later than the early half could use them, and a whole phase before it does.

#define SHARES 2
#include "tiles.cuh"

static_assert(!kCast, "an fp8 cache has no room for its raw tiles here");
static_assert(kWarps % 4 == 0, "two halves of whole pairs");

// Rows of weights are padded like those of the tiles.
constexpr int kWeightBytes = 2 * kKeyTile + 16;

// What the pairs add to shared memory, in bytes.
struct PairShared {
    static constexpr int weights = Shared::end;
    static constexpr int maxima = weights + kRows * kWeightBytes;  // of each row over either half of a tile's keys
};

// A pair's part of what passes between its warps.
struct Exchange {
    u8* weights;
    float* maxima;  // of the first warp's keys; the second's lie kRows further
};

ATTEST_DEVICE Exchange exchange_of(u8* shared, const Warp& warp) {
    float* const maxima = reinterpret_cast<float*>(shared + PairShared::maxima);
    return Exchange{shared + PairShared::weights + warp.group * kWarpRows * kWeightBytes,
                    maxima + warp.group * kWarpRows};
}

// Hands a value of each row to the other warp: the first of every four lanes writes it.
ATTEST_DEVICE void publish(const float (&values)[kRowTiles][2], float* own) {
    const int lane = threadIdx.x % 32;
    if (lane % 4 == 0) {
        ATTEST_UNROLL_FULL
        for (int m = 0; m < kRowTiles; ++m) {
            own[16 * m + lane / 4] = values[m][0];
            own[16 * m + 8 + lane / 4] = values[m][1];
        }
    }
}

// Scores the warp's keys of a tile and publishes each row's maximum over them.
ATTEST_DEVICE void score_and_publish(Scores& scores, u8* shared, const MmaParams& p, const Work& w, const Warp& warp,
                                     i32 tile) {
    const u8* const k_tile = shared + Shared::k + tile % 2 * kTileBytes;
    score_tile(scores, warp.q_tile, k_tile + warp.share * kWarpKeys * kRowBytes, [](int) {});
    prepare_scores(scores, p.attention, w, warp, tile);
    float maxima[kRowTiles][2];
    ATTEST_UNROLL_FULL
    for (int m = 0; m < kRowTiles; ++m) {
        ATTEST_UNROLL_FULL
        for (int r = 0; r < 2; ++r) {
            float max = negative_infinity();
            ATTEST_UNROLL_FULL
            for (int n = 0; n < kWarpKeys / 8; ++n) {
                max = max_keeping_nan(max, max_keeping_nan(scores[m][n][2 * r], scores[m][n][2 * r + 1]));
            }
            max = max_keeping_nan(max, __shfl_xor_sync(kFullWarp, max, 1));
            maxima[m][r] = max_keeping_nan(max, __shfl_xor_sync(kFullWarp, max, 2));
        }
    }
    publish(maxima, exchange_of(shared, warp).maxima + warp.share * kRows);
}

// Takes the maxima of a tile into account: gives the shift of each row's exponents and scales earlier sums down.
ATTEST_DEVICE void raise_maxima(float (&shift)[kRowTiles][2], ThreadRows& rows, Sums& sums, const float* maxima,
                                float to_base_2) {
    const int lane = threadIdx.x % 32;
    float decay[kRowTiles][2];
    bool settled = true;
    ATTEST_UNROLL_FULL
    for (int m = 0; m < kRowTiles; ++m) {
        ATTEST_UNROLL_FULL
        for (int r = 0; r < 2; ++r) {
            const float* const of_row = maxima + 16 * m + 8 * r + lane / 4;
            ThreadRow& row = rows[m][r];
            const float max = max_keeping_nan(row.max, max_keeping_nan(of_row[0], of_row[kRows]));
            // With nothing seen yet the maximum is -inf, and -inf - -inf would be NaN: any finite shift serves.
            shift[m][r] = max == negative_infinity() ? 0.0f : -max * to_base_2;
            decay[m][r] = exp2_weight(fmaf(row.max, to_base_2, shift[m][r]));
            settled = settled && decay[m][r] == 1.0f;
            row.max = max;
            row.sum *= decay[m][r];
        }
    }
    // Once the maxima have settled the factors are 1, and multiplying by 1 changes no bit.
    if (!__all_sync(kFullWarp, settled)) {
        scale_sums(sums, decay);
    }
}

// Turns the warp's scores into weights, which the pair then shares.
ATTEST_DEVICE void share_weights(const Scores& scores, ThreadRows& rows, Sums& sums, const Exchange& pair,
                                 const Warp& warp) {
    const int lane = threadIdx.x % 32;
    float shift[kRowTiles][2];
    raise_maxima(shift, rows, sums, pair.maxima, warp.to_base_2);
    u8* const own = pair.weights + lane / 4 * kWeightBytes + warp.share * kWarpKeys * 2 + lane % 4 * 4;
    ATTEST_UNROLL_FULL
    for (int n = 0; n < kWarpKeys / 8; ++n) {
        ATTEST_UNROLL_FULL
        for (int m = 0; m < kRowTiles; ++m) {
            ATTEST_UNROLL_FULL
            for (int r = 0; r < 2; ++r) {
                const float first = exp2_weight(fmaf(scores[m][n][2 * r], warp.to_base_2, shift[m][r]));
                const float second = exp2_weight(fmaf(scores[m][n][2 * r + 1], warp.to_base_2, shift[m][r]));
                rows[m][r].sum += first + second;
                store4(own + (16 * m + 8 * r) * kWeightBytes + n * 16, pack_pair(Q_FORMAT{}, first, second));
            }
        }
    }
}

// sums += P V for one tile.
ATTEST_DEVICE void weigh_tile(Sums& sums, u8* shared, const Exchange& pair, const Warp& warp, i32 tile) {
    const int lane = threadIdx.x % 32;
    const u8* const v_tile = shared + Shared::v + tile % 2 * kTileBytes + warp.share * kWarpDims * 2;
    const u8* const v_row = v_tile + (lane % 16) * kRowBytes + lane / 16 * 16;
    const u8* const weight_row = pair.weights + (lane % 16) * kWeightBytes + lane / 16 * 16;
    ATTEST_UNROLL_FULL
    for (int j = 0; j < kKeyTile / 16; ++j) {
        u32 weights[kRowTiles][4];
        ATTEST_UNROLL_FULL
        for (int m = 0; m < kRowTiles; ++m) {
            load_matrix_x4(weights[m], weight_row + m * 16 * kWeightBytes + j * 32);
        }
        weigh_keys(sums, weights, v_row + j * 16 * kRowBytes);
    }
}

// Brings q and the first tile of K, and starts the copies that the late half's first phase starts.
ATTEST_DEVICE void start_block(u8* shared, const MmaParams& p, const Work& w, bool late) {
    if (late) {
        look_up_first(shared, p, w);
    }
    copy_queries(shared, p.attention, w);
    // The key rows are known to the late half.
    __syncthreads();
    if (late) {
        start_tile(copy_of_k(shared, p, w, w.first_tile));
    }
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
    if (late) {
        start_tile(copy_of_k(shared, p, w, w.first_tile + 1));
        start_tile(copy_of_v(shared, p, w, w.first_tile));
        copy_async_commit();
    }
}

// All tiles of the block. `rows` and `sums` receive the warp's maxima, sums of weights and sums of P V.
ATTEST_DEVICE void attend(u8* shared, ThreadRows& rows, Sums& sums, const MmaParams& p, const Work& w,
                          const Warp& warp) {
    const bool late = threadIdx.x >= kThreads / 2;
    const Exchange pair = exchange_of(shared, warp);
    start_block(shared, p, w, late);
    if (late) {
        sync_block();
    }
    Scores scores;
    if (warp.has_rows) {
        score_and_publish(scores, shared, p, w, warp, w.first_tile);
    }
    i32 tile = w.first_tile;
    for (;;) {
        if (late) {
            copy_async_wait<0>();
        }
        sync_block();
        if (late) {
            start_tile(copy_of_k(shared, p, w, tile + 2));
            start_tile(copy_of_v(shared, p, w, tile + 1));
            look_up(shared, p, w, tile);
            copy_async_commit();
        }
        if (warp.has_rows) {
            share_weights(scores, rows, sums, pair, warp);
        }
        sync_block();
        if (tile + 1 == w.end_tile) {
            break;
        }
        if (warp.has_rows) {
            weigh_tile(sums, shared, pair, warp, tile);
            score_and_publish(scores, shared, p, w, warp, tile + 1);
        }
        ++tile;
    }
    if (warp.has_rows) {
        weigh_tile(sums, shared, pair, warp, tile);
    }
    if (!late) {
        // The late half's last phase.
        sync_block();
    }
}

// Adds up the two warps' sums of weights.
ATTEST_DEVICE void join_sums(u8* shared, ThreadRows& rows, const Warp& warp) {
    const int lane = threadIdx.x % 32;
    float* const sums = exchange_of(shared, warp).maxima;
    float own[kRowTiles][2];
    ATTEST_UNROLL_FULL
    for (int m = 0; m < kRowTiles; ++m) {
        own[m][0] = sum_over_lanes(rows[m][0].sum);
        own[m][1] = sum_over_lanes(rows[m][1].sum);
    }
    publish(own, sums + warp.share * kRows);
    __syncthreads();
    ATTEST_UNROLL_FULL
    for (int m = 0; m < kRowTiles; ++m) {
        ATTEST_UNROLL_FULL
        for (int r = 0; r < 2; ++r) {
            const float* const of_row = sums + 16 * m + 8 * r + lane / 4;
            rows[m][r].sum = of_row[0] + of_row[kRows];
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
    Sums sums;
    clear_sums(sums);
    if (w.first_tile < w.end_tile) {
        attend(shared, rows, sums, p, w, warp);
        join_sums(shared, rows, warp);
    }
    if (!warp.has_rows) {
        return;
    }
    ATTEST_UNROLL_FULL
    for (int m = 0; m < kRowTiles; ++m) {
        ATTEST_UNROLL_FULL
        for (int r = 0; r < 2; ++r) {
            const i32 packed = warp.packed + 16 * m + 8 * r;
            if (packed < w.packed_rows) {
                write_row(p, w, warp, packed, sums[m], r, rows[m][r].max, rows[m][r].sum);
            }
        }
    }
}
