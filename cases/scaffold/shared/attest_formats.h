/* Number formats: one element to float and back. Plain C; as CUDA it serves host and device. */
#ifndef ATTEST_FORMATS_H
#define ATTEST_FORMATS_H

#include "attest_kernel.h"

#include <math.h>
#include <string.h>

#ifdef __CUDACC__
#define ATTEST_INLINE static __host__ __device__ inline
#else
#define ATTEST_INLINE static inline
#endif

ATTEST_INLINE float attest_float_of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

ATTEST_INLINE uint32_t attest_bits_of_float(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

ATTEST_INLINE int64_t attest_size(uint32_t dtype) {
    switch (dtype) {
    case ATTEST_E4M3:
    case ATTEST_E5M2:
        return 1;
    case ATTEST_BF16:
    case ATTEST_F16:
        return 2;
    case ATTEST_I64:
        return 8;
    default:
        return 4;
    }
}

ATTEST_INLINE float attest_decode_f16(uint32_t code) {
    uint32_t sign = (code & 0x8000u) << 16, exponent = code >> 10 & 31u, mantissa = code & 0x3ffu;
    if (exponent == 31) return attest_float_of_bits(sign | 0x7f800000u | mantissa << 13);
    if (exponent == 0) return (sign ? -1.0f : 1.0f) * (float)mantissa * 5.9604644775390625e-8f; /* 2^-24 */
    return attest_float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

ATTEST_INLINE float attest_decode_e4m3(uint32_t code) {
    uint32_t sign = (code & 0x80u) << 24, exponent = code >> 3 & 15u, mantissa = code & 7u;
    if ((code & 0x7fu) == 0x7fu) return attest_float_of_bits(sign | 0x7fc00000u);
    if (exponent == 0) return (sign ? -1.0f : 1.0f) * (float)mantissa * 0.001953125f; /* 2^-9 */
    return attest_float_of_bits(sign | (exponent + 120) << 23 | mantissa << 20);
}

/* Element `index` of memory of some type. */
ATTEST_INLINE float attest_load(uint32_t dtype, const void *data, int64_t index) {
    switch (dtype) {
    case ATTEST_BF16:
        return attest_float_of_bits((uint32_t)((const uint16_t *)data)[index] << 16);
    case ATTEST_F16:
        return attest_decode_f16(((const uint16_t *)data)[index]);
    case ATTEST_E4M3:
        return attest_decode_e4m3(((const uint8_t *)data)[index]);
    case ATTEST_E5M2: /* the upper half of an f16 */
        return attest_decode_f16((uint32_t)((const uint8_t *)data)[index] << 8);
    default:
        return ((const float *)data)[index];
    }
}

/* Rounds to nearest even. `bias` and `mantissa` bits describe the format; the result has no sign yet and may be past the
 * largest finite code. */
ATTEST_INLINE uint32_t attest_round(float magnitude, uint32_t bias, uint32_t mantissa) {
    uint32_t bits = attest_bits_of_float(magnitude), shift = 23 - mantissa;
    if (bits < (128 - bias) << 23) /* subnormal in the format: count the smallest steps */
        return (uint32_t)rintf(magnitude * attest_float_of_bits((126 + bias + mantissa) << 23));
    bits += (1u << (shift - 1)) - 1 + (bits >> shift & 1u);
    return (bits >> shift) - ((127 - bias) << mantissa);
}

ATTEST_INLINE uint32_t attest_encode(uint32_t dtype, float x) {
    uint32_t bits = attest_bits_of_float(x), sign = bits >> 31, code;
    int is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    float magnitude = attest_float_of_bits(bits & 0x7fffffffu);
    switch (dtype) {
    case ATTEST_BF16:
        if (is_nan) return sign << 15 | 0x7fc0u;
        return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    case ATTEST_F16:
        if (is_nan) return sign << 15 | 0x7e00u;
        code = attest_round(magnitude, 15, 10);
        return sign << 15 | (code < 0x7c00u ? code : 0x7c00u);
    case ATTEST_E4M3: /* saturates */
        if (is_nan) return sign << 7 | 0x7fu;
        code = magnitude < 1024.0f ? attest_round(magnitude, 7, 3) : 0x7eu;
        return sign << 7 | (code < 0x7eu ? code : 0x7eu);
    case ATTEST_E5M2: /* saturates */
        if (is_nan) return sign << 7 | 0x7fu;
        code = attest_round(magnitude, 15, 2);
        return sign << 7 | (code < 0x7bu ? code : 0x7bu);
    default:
        return bits;
    }
}

ATTEST_INLINE void attest_save(uint32_t dtype, void *data, int64_t index, float x) {
    uint32_t code = attest_encode(dtype, x);
    switch (attest_size(dtype)) {
    case 1:
        ((uint8_t *)data)[index] = (uint8_t)code;
        break;
    case 2:
        ((uint16_t *)data)[index] = (uint16_t)code;
        break;
    default:
        ((uint32_t *)data)[index] = code;
    }
}

#endif
