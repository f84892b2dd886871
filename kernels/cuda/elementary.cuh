// exp, exp2, ln and tanh in f32 from IEEE operations and explicit fused multiply-adds only, so that a CPU
// repeats a GPU bit for bit (built with contraction off on both). Coefficients interpolate the function at Chebyshev
// nodes.
#pragma once

#include "formats.cuh"

// Nearest integer, ties to even, for |value| below 2^22; `integer` receives it. NaN passes through.
ATTEST_DEVICE float round_to_integer(float value, i32& integer) {
    const float aligner = 12582912.0f;  // 1.5 * 2^23: the last place is one
    const float aligned = value + aligner;
    integer = static_cast<i32>(f32_bits(aligned) - f32_bits(aligner));
    return aligned - aligner;
}

// value * 2^exponent for exponents of -200 to 200, rounded once even where the result is subnormal.
ATTEST_DEVICE float scale_by_power(float value, i32 exponent) {
    const i32 half = exponent >> 1;
    const u32 first = static_cast<u32>(half + 127) << 23;
    const u32 second = static_cast<u32>(exponent - half + 127) << 23;
    return value * make_f32(first) * make_f32(second);
}

// 2^x, within 1 ulp; exact where x is an integer; 2^-inf is 0, 2^inf is inf, NaN stays NaN.
ATTEST_PURE float exp2_f32(float x) {
    x = x < -160.0f ? -160.0f : x;
    x = x > 129.0f ? 129.0f : x;
    i32 whole;
    const float fraction = x - round_to_integer(x, whole);
    float series = 0x1.44138ap-13f;
    series = fmaf(series, fraction, 0x1.5f0890p-10f);
    series = fmaf(series, fraction, 0x1.3b2a54p-7f);
    series = fmaf(series, fraction, 0x1.c6af6cp-5f);
    series = fmaf(series, fraction, 0x1.ebfbe0p-3f);
    series = fmaf(series, fraction, 0x1.62e430p-1f);
    return scale_by_power(fmaf(series, fraction, 1.0f), whole);
}

// e^x, within 1 ulp; exp(0) is 1, exp(-inf) is 0, exp(inf) is inf, NaN stays NaN.
ATTEST_PURE float exp_f32(float x) {
    x = x < -110.0f ? -110.0f : x;
    x = x > 89.0f ? 89.0f : x;
    i32 whole;
    const float n = round_to_integer(x * 0x1.715476p+0f, whole);
    // x - n ln 2, with ln 2 in two parts: the first product is exact inside the fused operation.
    float r = fmaf(n, -0x1.62e430p-1f, x);
    r = fmaf(n, 0x1.05c610p-29f, r);
    float series = 0x1.a124f2p-13f;
    series = fmaf(series, r, 0x1.6d4324p-10f);
    series = fmaf(series, r, 0x1.1110e0p-7f);
    series = fmaf(series, r, 0x1.5554eap-5f);
    series = fmaf(series, r, 0x1.555556p-3f);
    series = fmaf(series, r, 0x1.000000p-1f);
    return scale_by_power(1.0f + fmaf(r * r, series, r), whole);
}

// ln x for x >= 0, within 2 ulp; ln 0 is -inf, ln inf is inf, NaN stays NaN. Negative x gives NaN.
ATTEST_PURE float ln_f32(float x) {
    if (!(x > 0.0f)) {
        return x == 0.0f ? negative_infinity() : make_f32(0x7fc00000u);
    }
    if (x == positive_infinity()) {
        return x;
    }
    i32 exponent = 0;
    if (x < 0x1p-126f) {
        x *= 0x1p24f;
        exponent = -24;
    }
    // x = 2^exponent * m with m in [sqrt(1/2), sqrt 2).
    const u32 shifted = f32_bits(x) - 0x3f3504f3u;
    exponent += static_cast<i32>(shifted) >> 23;
    const float f = make_f32((shifted & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
    // ln(1 + f) = 2 atanh(s), s = f / (2 + f); written as f - (f^2/2 - s (f^2/2 + z R(z))) to keep f exact.
    const float s = __fdiv_rn(f, 2.0f + f);
    const float z = s * s;
    float series = 0x1.ddced8p-3f;
    series = fmaf(series, z, 0x1.245c44p-2f);
    series = fmaf(series, z, 0x1.9999ecp-2f);
    series = fmaf(series, z, 0x1.555556p-1f);
    const float half_square = 0.5f * f * f;
    const float e = static_cast<float>(exponent);
    const float low = fmaf(e, -0x1.05c610p-29f, s * fmaf(series, z, half_square));
    return fmaf(e, 0x1.62e430p-1f, f - (half_square - low));
}

// tanh x, within 2 ulp; +-1 at +-inf, NaN stays NaN.
ATTEST_PURE float tanh_f32(float x) {
    const u32 sign = f32_bits(x) & 0x80000000u;
    const float magnitude = make_f32(f32_bits(x) ^ sign);
    if (magnitude < 0.625f) {
        const float z = magnitude * magnitude;
        float series = 0x1.2c83c0p-9f;
        series = fmaf(series, z, -0x1.116a16p-7f);
        series = fmaf(series, z, 0x1.64a976p-6f);
        series = fmaf(series, z, -0x1.ba08c4p-5f);
        series = fmaf(series, z, 0x1.1110eap-3f);
        series = fmaf(series, z, -0x1.555556p-2f);
        return make_f32(f32_bits(fmaf(magnitude * z, series, magnitude)) | sign);
    }
    const float t = 1.0f - __fdiv_rn(2.0f, exp_f32(2.0f * magnitude) + 1.0f);
    return make_f32(f32_bits(t) | sign);
}
