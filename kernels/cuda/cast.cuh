// fp8 codes to 16-bit operands. Every finite e4m3 and e5m2 value is exact in bf16 and in f16, so a cast has one right
// answer; NaN stays NaN. The software decoder is the default; CAST_HARDWARE selects the conversion instruction of sm_89
// and later, which on the host is the same arithmetic.
#pragma once

#include "formats.cuh"

// Two values as one operand register, rounded to nearest even; `low` goes to the lower half.
ATTEST_DEVICE u32 pack_pair(Bf16, float low, float high) {
#ifdef ATTEST_SIMT
    return Bf16::encode(low) | Bf16::encode(high) << 16;
#else
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#endif
}

ATTEST_DEVICE u32 pack_pair(F16, float low, float high) {
#ifdef ATTEST_SIMT
    return F16::encode(low) | F16::encode(high) << 16;
#else
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#endif
}

#if defined(CAST_HARDWARE) && !defined(ATTEST_SIMT)
// Two codes to two f16 values.
ATTEST_DEVICE u32 convert_pair(E4m3, u32 codes) {
    u32 pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<u16>(codes)));
    return pair;
}

ATTEST_DEVICE u32 convert_pair(E5m2, u32 codes) {
    u32 pair;
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(pair) : "h"(static_cast<u16>(codes)));
    return pair;
}

ATTEST_DEVICE float widen_half(u32 half) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<u16>(half)));
    return value;
}

ATTEST_DEVICE u32 narrow_pair(F16, u32 halves) { return halves; }
ATTEST_DEVICE u32 narrow_pair(Bf16, u32 halves) {
    return pack_pair(Bf16{}, widen_half(halves & 0xffffu), widen_half(halves >> 16));
}
#endif

// Two codes in the low 16 bits to two values of a 16-bit format.
template <class To, class From>
ATTEST_DEVICE u32 cast_pair(u32 codes) {
#if defined(CAST_HARDWARE) && !defined(ATTEST_SIMT)
    return narrow_pair(To{}, convert_pair(From{}, codes));
#else
    return pack_pair(To{}, From::decode(codes & 0xffu), From::decode((codes >> 8) & 0xffu));
#endif
}

// Eight codes to eight values.
template <class To, class From>
ATTEST_DEVICE Vec16 cast_eight(u64 codes) {
    return make_vec16(cast_pair<To, From>(static_cast<u32>(codes)), cast_pair<To, From>(static_cast<u32>(codes >> 16)),
                      cast_pair<To, From>(static_cast<u32>(codes >> 32)),
                      cast_pair<To, From>(static_cast<u32>(codes >> 48)));
}
