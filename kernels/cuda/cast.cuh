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

// ---------------------------------------------------------------------------------------------------------------
// Words of four codes, cast by integer arithmetic and one multiplication
// ---------------------------------------------------------------------------------------------------------------
//
// Moved to the place of the wider format's exponent and mantissa, a code's magnitude is its value times a power of two,
// subnormals included; one exact multiplication puts that right. Only infinities and NaN need more, and only where a
// word holds one. On the host the same results come from the decoders.

// Two pairs of a word's codes: 0 and 2, and 1 and 3, by integer arithmetic; neighbours, 0 and 1, and 2 and 3, by the
// conversion instruction.
struct WordCast {
    u32 first, second;
};

#ifdef CAST_HARDWARE
constexpr bool kCastNeighbours = true;
#else
constexpr bool kCastNeighbours = false;
#endif

#ifndef ATTEST_SIMT
// Of a pair of formats that needs no cast; never called, but kernels for a 16-bit cache name it.
template <class To, class From>
struct WordCaster {
    static constexpr u32 magnitude = 0, special_step = 0, special_bit = 0, special_or = 0;
    ATTEST_DEVICE u32 place_even(u32 codes) { return codes; }
    ATTEST_DEVICE u32 place_odd(u32 codes) { return codes; }
    ATTEST_DEVICE u32 scale(u32 pair) { return pair; }
    ATTEST_DEVICE bool special(u32) { return false; }
};

ATTEST_DEVICE u32 multiply_bf16x2(u32 a, u32 b) {
    u32 product;
    // Adding -0 changes nothing, not even the sign of a zero; sm_80 has no plain multiplication of this type.
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
    return product;
}

ATTEST_DEVICE u32 multiply_f16x2(u32 a, u32 b) {
    u32 product;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}

template <>
struct WordCaster<Bf16, E4m3> {
    static constexpr u32 magnitude = 0x07f007f0u, special_step = 0x00100010u, special_bit = 0x08000800u;
    static constexpr u32 special_or = 0x7fc0u;
    ATTEST_DEVICE u32 place_even(u32 codes) { return codes << 4; }
    ATTEST_DEVICE u32 place_odd(u32 codes) { return codes >> 4; }
    ATTEST_DEVICE u32 scale(u32 pair) { return multiply_bf16x2(pair, 0x7b807b80u); }  // 2^120
    ATTEST_DEVICE bool special(u32 codes) { return ((codes & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u; }
};

template <>
struct WordCaster<Bf16, E5m2> {
    static constexpr u32 magnitude = 0x0fe00fe0u, special_step = 0x00800080u, special_bit = 0x10001000u;
    static constexpr u32 special_or = 0x7f80u;
    ATTEST_DEVICE u32 place_even(u32 codes) { return codes << 5; }
    ATTEST_DEVICE u32 place_odd(u32 codes) { return codes >> 3; }
    ATTEST_DEVICE u32 scale(u32 pair) { return multiply_bf16x2(pair, 0x77807780u); }  // 2^112
    ATTEST_DEVICE bool special(u32 codes) { return ((codes & 0x7c7c7c7cu) + 0x04040404u) & 0x80808080u; }
};

template <>
struct WordCaster<F16, E4m3> {
    static constexpr u32 magnitude = 0x3f803f80u, special_step = 0x00800080u, special_bit = 0x40004000u;
    static constexpr u32 special_or = 0x7e00u;
    ATTEST_DEVICE u32 place_even(u32 codes) { return codes << 7; }
    ATTEST_DEVICE u32 place_odd(u32 codes) { return codes >> 1; }
    ATTEST_DEVICE u32 scale(u32 pair) { return multiply_f16x2(pair, 0x5c005c00u); }  // 2^8
    ATTEST_DEVICE bool special(u32 codes) { return ((codes & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u; }
};

// e5m2 is the upper half of f16, infinities and NaN included.
template <>
struct WordCaster<F16, E5m2> {
    static constexpr u32 magnitude = 0x7f007f00u, special_step = 0, special_bit = 0, special_or = 0;
    ATTEST_DEVICE u32 place_even(u32 codes) { return codes << 8; }
    ATTEST_DEVICE u32 place_odd(u32 codes) { return codes; }
    ATTEST_DEVICE u32 scale(u32 pair) { return pair; }
    ATTEST_DEVICE bool special(u32) { return false; }
};

// Turns the lanes of a cast pair whose code was infinite or NaN into what they should be.
template <class Caster>
ATTEST_DEVICE u32 restore_special(u32 pair, u32 placed) {
    const u32 lanes = ((placed & Caster::magnitude) + Caster::special_step) & Caster::special_bit;
    return pair | (lanes & 0xffff0000u ? Caster::special_or << 16 : 0u) | (lanes & 0xffffu ? Caster::special_or : 0u);
}
#endif

// Casts `words` words at once.
template <class To, class From, int words>
ATTEST_DEVICE void cast_words(WordCast (&to)[words], const u32 (&codes)[words]) {
#ifdef CAST_HARDWARE
    ATTEST_UNROLL_FULL
    for (int i = 0; i < words; ++i) {
        to[i].first = cast_pair<To, From>(codes[i]);
        to[i].second = cast_pair<To, From>(codes[i] >> 16);
    }
#elif defined(ATTEST_SIMT)
    for (int i = 0; i < words; ++i) {
        to[i].first = pack_pair(To{}, From::decode(codes[i] & 0xffu), From::decode((codes[i] >> 16) & 0xffu));
        to[i].second = pack_pair(To{}, From::decode((codes[i] >> 8) & 0xffu), From::decode(codes[i] >> 24));
    }
#else
    using Caster = WordCaster<To, From>;
    bool special = false;
    ATTEST_UNROLL_FULL
    for (int i = 0; i < words; ++i) {
        to[i].first = Caster::scale((Caster::place_even(codes[i]) & Caster::magnitude) | ((codes[i] << 8) & 0x80008000u));
        to[i].second = Caster::scale((Caster::place_odd(codes[i]) & Caster::magnitude) | (codes[i] & 0x80008000u));
        special = special || Caster::special(codes[i]);
    }
    if (special) {
        ATTEST_UNROLL_FULL
        for (int i = 0; i < words; ++i) {
            to[i].first = restore_special<Caster>(to[i].first, Caster::place_even(codes[i]));
            to[i].second = restore_special<Caster>(to[i].second, Caster::place_odd(codes[i]));
        }
    }
#endif
}
