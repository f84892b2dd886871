// Online softmax in base 2 for the tensor-core kernels: the exponential of a score minus its row's maximum, a maximum
// that keeps NaN, and the packing of probabilities into 16-bit operands.
#pragma once

#include "attention.cuh"

constexpr float kLog2E = 0x1.715476p+0f;
constexpr float kLn2 = 0x1.62e430p-1f;

// The larger of two values; NaN if either is. A NaN score must reach the output, and an ordinary maximum drops it.
ATTEST_DEVICE float max_keeping_nan(float a, float b) {
#ifdef ATTEST_SIMT
    return a != a || a > b ? a : b;
#else
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
#endif
}

// 2^x for x <= 0 and a rounding error above it: the card's own instruction, within 2 ulp and 0 below 2^-126. The host
// reproduces it bit for bit.
ATTEST_DEVICE float exp2_weight(float x) { return ex2_approx(x); }

// sum += a b on the tensor cores.
ATTEST_DEVICE void mma(Bf16, float (&sum)[4], const u32 (&a)[4], const u32 (&b)[2]) { mma_m16n8k16_bf16(sum, a, b); }
ATTEST_DEVICE void mma(F16, float (&sum)[4], const u32 (&a)[4], const u32 (&b)[2]) { mma_m16n8k16_f16(sum, a, b); }

// What a row's sums still need.
struct RowEnd {
    float factor;  // of every output: v_scale over the denominator
    float lse;     // natural logarithm of the denominator
};

// Closes a row from the maximum of its scores in base 2, its sum of weights, and its sink (natural logit, -inf for none).
ATTEST_DEVICE RowEnd finish_row(float max, float sum, float sink, float v_scale) {
    if (!(max < positive_infinity())) {
        // A NaN or infinite score was seen: every weight is NaN.
        const float nan = make_f32(0x7fc00000u);
        return RowEnd{nan, nan};
    }
    if (sum == 0.0f) {
        return RowEnd{0.0f, sink};
    }
    float factor = v_scale;
    if (sink != negative_infinity()) {
        const float sink_base_2 = sink * kLog2E;
        const float top = fmaxf(max, sink_base_2);
        const float decay = exp2_weight(max - top);
        sum = fmaf(sum, decay, exp2_weight(sink_base_2 - top));
        factor *= decay;
        max = top;
    }
    return RowEnd{__fdiv_rn(factor, sum), fmaf(max, kLn2, ln_f32(sum))};
}
