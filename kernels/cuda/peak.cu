// How fast a card's tensor cores can go: matrix instructions on registers and nothing else. The bench states times of
// attention beside it.

#include "arch.cuh"

struct PeakParams {
    float* out;      // one element per thread, so that nothing is optimised away
    i32 repetitions; // of 8 independent m16n8k16 products per warp
    i32 reserved;
};

ATTEST_KERNEL(mma_peak, PeakParams, 128) {
    float sums[8][4];
    ATTEST_UNROLL_FULL
    for (int i = 0; i < 8; ++i) {
        sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0.0f;
    }
    // bf16 values between 0.5 and 2, different in every lane: zeros would run faster than real data does.
    const u32 bits = 0x3f003f00u + threadIdx.x * 0x00110013u % 0x007f007fu;
    const u32 a[4] = {bits, bits ^ 0x80000000u, bits ^ 0x00008000u, bits + 0x00010001u};
    const u32 b[2] = {bits ^ 0x80008000u, bits + 0x00030002u};
    for (i32 n = 0; n < p.repetitions; ++n) {
        ATTEST_UNROLL_FULL
        for (int i = 0; i < 8; ++i) {
            mma_m16n8k16_bf16(sums[i], a, b);
        }
    }
    float total = 0.0f;
    ATTEST_UNROLL_FULL
    for (int i = 0; i < 8; ++i) {
        total += sums[i][0] + sums[i][1] + sums[i][2] + sums[i][3];
    }
    p.out[blockIdx.x * 128 + threadIdx.x] = total;
}
