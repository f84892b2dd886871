// Q of decode.cu as matrix fragments in registers.
//
// An fp8 code becomes f16 by one conversion and bf16 by four instructions. So bf16 queries of an fp8 cache become f16 as
// well wherever that rounds nothing: each row is multiplied by the power of two that brings its largest magnitude to
// [2^14, 2^15), which the scale of its scores undoes, and its other values lie within 2^-28 of that or are zero. Other
// rows are left as they are, and K is cast to bf16 for them.
#pragma once

#include "decode_tiles.cuh"

// Of row g of each row tile, the dims that meet this lane's reads of K.
using Queries = u32[kRowTiles][kKGroups][2 * kKSteps];

template <class Format>
struct IsBf16 {
    static constexpr bool value = false;
};
template <>
struct IsBf16<Bf16> {
    static constexpr bool value = true;
};

// Whether queries may be turned into f16.
constexpr bool kNarrows = kBytes == 1 && IsBf16<Q_FORMAT>::value;
constexpr int kRowsOfWarp = (kRows + kWarps - 1) / kWarps;

// A row of Q; null beyond the request's last.
ATTEST_DEVICE const u8* query_row(const AttentionParams& a, const Work& w, int row) {
    const i32 packed = w.first_packed + row;
    const Destination at = find_destination(a, w, packed);
    return packed < w.packed_rows ? a.q + (at.query * a.q_row_stride + at.head * a.q_head_stride) * 2 : nullptr;
}

// Puts two words, four dims, into the order in which casting leaves those of K.
ATTEST_DEVICE void order_four(u32& first, u32& second) {
    if (kBytes == 1 && !kCastNeighbours) {
        const u32 low = first, high = second;
        first = __byte_perm(low, high, 0x5410);
        second = __byte_perm(low, high, 0x7632);
    }
}

// Loads this lane's part of Q as it is.
ATTEST_DEVICE void load_queries(Queries& to, const AttentionParams& a, const Work& w) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    ATTEST_UNROLL_FULL
    for (int n = 0; n < kRowTiles; ++n) {
        const u8* const row = query_row(a, w, 8 * n + g);
        ATTEST_UNROLL_FULL
        for (int i = 0; i < kKGroups * kKSteps / 2; ++i) {
            const int group = i / (kKSteps / 2), part = i % (kKSteps / 2);
            const int dim = (4 * group + t) * kKDims + part * 8;
            const Vec16 dims = row ? load16(row + dim * 2) : make_vec16(0, 0, 0, 0);
            ATTEST_UNROLL_FULL
            for (int word = 0; word < 4; ++word) {
                to[n][group][part * 4 + word] = ATTEST_VEC16_WORD(dims, word);
            }
            order_four(to[n][group][part * 4], to[n][group][part * 4 + 1]);
            order_four(to[n][group][part * 4 + 2], to[n][group][part * 4 + 3]);
        }
    }
}

// The part of Q that this lane narrows: eight dims of each row that its warp looks after.
using RawQueries = Vec16[kRowsOfWarp];

ATTEST_DEVICE void load_raw_queries(RawQueries& to, const AttentionParams& a, const Work& w) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    ATTEST_UNROLL_FULL
    for (int i = 0; i < kRowsOfWarp; ++i) {
        const u8* const row = query_row(a, w, warp + i * kWarps);
        to[i] = row && lane * 8 < kDim ? load16(row + lane * 16) : make_vec16(0, 0, 0, 0);
    }
}

// The power of two for a row with the largest magnitude `most`, its inverse, and the least magnitude that stays a normal
// number; zeros where no such power is at hand.
struct RowPower {
    float power, inverse;
    u32 least;
};

ATTEST_DEVICE RowPower find_power(u32 most) {
    const u32 exponent = most >> 7;
    if (most == 0) {
        return RowPower{1.0f, 1.0f, 0};
    }
    if (exponent < 64 || exponent > 190) {
        return RowPower{0.0f, 0.0f, 0};
    }
    return RowPower{make_f32((268 - exponent) << 23), make_f32((exponent - 14) << 23), (exponent - 28) << 7};
}

ATTEST_DEVICE u32 largest_magnitude(const Vec16& dims) {
    u32 most = 0;
    ATTEST_UNROLL_FULL
    for (int i = 0; i < 8; ++i) {
        const u32 magnitude = ATTEST_VEC16_WORD(dims, i / 2) >> (i % 2 * 16) & 0x7fffu;
        most = magnitude > most ? magnitude : most;
    }
    ATTEST_UNROLL_FULL
    for (int mask = 16; mask > 0; mask /= 2) {
        const u32 other = __shfl_xor_sync(kFullWarp, most, mask);
        most = other > most ? other : most;
    }
    return most;
}

// Leaves the rows of Q in shared memory as f16, and the inverse of each row's power: 0 where some value would be rounded
// or where `scale` times the inverse leaves the middle of the range of f32.
ATTEST_DEVICE void narrow_queries(u8* shared, const RawQueries& raw, float scale) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    ATTEST_UNROLL_FULL
    for (int i = 0; i < kRowsOfWarp; ++i) {
        const int row = warp + i * kWarps;
        if (row >= kRows) {
            return;
        }
        const RowPower by = find_power(largest_magnitude(raw[i]));
        bool exact = (scale * by.inverse > 0x1p-100f) & (scale * by.inverse < 0x1p+100f);
        u32 halves[4];
        ATTEST_UNROLL_FULL
        for (int word = 0; word < 4; ++word) {
            const u32 pair = ATTEST_VEC16_WORD(raw[i], word);
            // Less one, a zero is the largest number.
            exact = exact & ((pair & 0x7fffu) - 1 >= by.least - 1) & ((pair >> 16 & 0x7fffu) - 1 >= by.least - 1);
            halves[word] = pack_pair(F16{}, Bf16::decode(pair & 0xffffu) * by.power, Bf16::decode(pair >> 16) * by.power);
        }
        order_four(halves[0], halves[1]);
        order_four(halves[2], halves[3]);
        if (lane * 8 < kDim) {
            store16(shared + Shared::queries + row * kQueryRow + lane * 16,
                    make_vec16(halves[0], halves[1], halves[2], halves[3]));
        }
        exact = __all_sync(kFullWarp, exact);
        if (lane == 0) {
            store_f32(shared + Shared::inverses + row * 4, exact ? by.inverse : 0.0f);
        }
    }
}

// Loads this lane's part of Q as f16, and scales the scores of its rows back. False, and nothing done, where some row is
// not in shared memory as it should be.
ATTEST_DEVICE bool load_narrowed_queries(Queries& to, float (&scale)[2 * kRowTiles], const u8* shared) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    if (!__all_sync(kFullWarp, load_f32(shared + Shared::inverses + lane % kRows * 4) != 0.0f)) {
        return false;
    }
    ATTEST_UNROLL_FULL
    for (int r = 0; r < 2 * kRowTiles; ++r) {
        scale[r] *= load_f32(shared + Shared::inverses + (r / 2 * 8 + 2 * t + r % 2) * 4);
    }
    ATTEST_UNROLL_FULL
    for (int n = 0; n < kRowTiles; ++n) {
        ATTEST_UNROLL_FULL
        for (int i = 0; i < kKGroups * kKSteps * 2; ++i) {
            const int group = i / (2 * kKSteps), word = i % (2 * kKSteps);
            if (word % 4 == 0) {
                const Vec16 dims = load16(shared + Shared::queries + (8 * n + g) * kQueryRow +
                                          ((4 * group + t) * kKDims + word * 2) * 2);
                to[n][group][word] = ATTEST_VEC16_WORD(dims, 0);
                to[n][group][word + 1] = ATTEST_VEC16_WORD(dims, 1);
                to[n][group][word + 2] = ATTEST_VEC16_WORD(dims, 2);
                to[n][group][word + 3] = ATTEST_VEC16_WORD(dims, 3);
            }
        }
    }
    return true;
}
