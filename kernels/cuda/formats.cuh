// Number formats: how codes are read, written and rounded. Integer arithmetic throughout, so that a CPU and a GPU give
// the same bits. Encoding rounds to nearest even; fp8 saturates (448, 57344) and keeps the sign of a NaN.
#pragma once

#include "arch.cuh"

// Four consecutive elements.
struct Quad {
    float x, y, z, w;
};

ATTEST_DEVICE float make_f32(u32 bits) { return __uint_as_float(bits); }
ATTEST_DEVICE u32 f32_bits(float value) { return __float_as_uint(value); }
ATTEST_DEVICE float positive_infinity() { return make_f32(0x7f800000u); }
ATTEST_DEVICE float negative_infinity() { return make_f32(0xff800000u); }

ATTEST_DEVICE Quad load_quad_f32(const void* address) {
    const Vec16 raw = load16(address);
    return Quad{make_f32(ATTEST_VEC16_WORD(raw, 0)), make_f32(ATTEST_VEC16_WORD(raw, 1)),
                make_f32(ATTEST_VEC16_WORD(raw, 2)), make_f32(ATTEST_VEC16_WORD(raw, 3))};
}

ATTEST_DEVICE void store_quad_f32(void* address, Quad value) {
    store16(address, make_vec16(f32_bits(value.x), f32_bits(value.y), f32_bits(value.z), f32_bits(value.w)));
}

// Rounds |value| to a format with `mantissa` stored bits and exponent bias `bias`. `magnitude` is finite and below the
// rounding overflow of the format. Below the smallest normal the addition of a constant whose last place is the
// format's smallest subnormal rounds in hardware, to nearest even.
template <int mantissa, int bias>
ATTEST_DEVICE u32 round_magnitude(u32 magnitude) {
    constexpr int dropped = 23 - mantissa;
    constexpr u32 smallest_normal = static_cast<u32>(128 - bias) << 23;
    if (magnitude >= smallest_normal) {
        const u32 rounded = magnitude + ((1u << (dropped - 1)) - 1u) + ((magnitude >> dropped) & 1u);
        return (rounded >> dropped) - (static_cast<u32>(127 - bias) << mantissa);
    }
    constexpr u32 aligner = static_cast<u32>(127 + 24 - bias - mantissa) << 23;
    return f32_bits(make_f32(magnitude) + make_f32(aligner)) - aligner;
}

struct F32 {
    static constexpr int bytes = 4;
    ATTEST_DEVICE float decode(u32 code) { return make_f32(code); }
    ATTEST_DEVICE u32 encode(float value) { return f32_bits(value); }
};

struct Bf16 {
    static constexpr int bytes = 2;
    ATTEST_DEVICE float decode(u32 code) { return make_f32(code << 16); }
    ATTEST_DEVICE u32 encode(float value) {
        const u32 bits = f32_bits(value);
        if ((bits & 0x7fffffffu) > 0x7f800000u) {
            return ((bits >> 16) & 0x8000u) | 0x7fc0u;
        }
        return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    }
};

struct F16 {
    static constexpr int bytes = 2;
    ATTEST_DEVICE float decode(u32 code) {
        const u32 sign = (code & 0x8000u) << 16;
        const u32 magnitude = (code & 0x7fffu) << 13;
        // Exponent 31 keeps its meaning; every other exponent is moved by an exact multiplication with 2^112.
        if ((code & 0x7c00u) == 0x7c00u) {
            return make_f32(sign | 0x7f800000u | magnitude);
        }
        return make_f32(f32_bits(make_f32(magnitude) * make_f32(0x77800000u)) | sign);
    }
    ATTEST_DEVICE u32 encode(float value) {
        const u32 bits = f32_bits(value);
        const u32 sign = (bits >> 16) & 0x8000u;
        const u32 magnitude = bits & 0x7fffffffu;
        if (magnitude > 0x7f800000u) {
            return sign | 0x7e00u;
        }
        // 65520 and above rounds past the largest finite value, 65504.
        if (magnitude >= 0x477ff000u) {
            return sign | 0x7c00u;
        }
        return sign | round_magnitude<10, 15>(magnitude);
    }
};

// e4m3fn: no infinity, one NaN code per sign.
struct E4m3 {
    static constexpr int bytes = 1;
    ATTEST_DEVICE float decode(u32 code) {
        const u32 sign = (code & 0x80u) << 24;
        const u32 magnitude = code & 0x7fu;
        if (magnitude == 0x7fu) {
            return make_f32(sign | 0x7fc00000u);
        }
        return make_f32(f32_bits(make_f32(magnitude << 20) * make_f32(0x7b800000u)) | sign);
    }
    ATTEST_DEVICE u32 encode(float value) {
        const u32 bits = f32_bits(value);
        const u32 sign = (bits >> 24) & 0x80u;
        const u32 magnitude = bits & 0x7fffffffu;
        if (magnitude > 0x7f800000u) {
            return sign | 0x7fu;
        }
        constexpr u32 largest = 0x43e00000u;  // 448
        return sign | round_magnitude<3, 7>(magnitude < largest ? magnitude : largest);
    }
};

// e5m2: an infinity and three NaN codes per sign; encoding saturates and so never makes the infinity.
struct E5m2 {
    static constexpr int bytes = 1;
    ATTEST_DEVICE float decode(u32 code) { return F16::decode(code << 8); }
    ATTEST_DEVICE u32 encode(float value) {
        const u32 bits = f32_bits(value);
        const u32 sign = (bits >> 24) & 0x80u;
        const u32 magnitude = bits & 0x7fffffffu;
        if (magnitude > 0x7f800000u) {
            return sign | 0x7fu;
        }
        constexpr u32 largest = 0x47600000u;  // 57344
        return sign | round_magnitude<2, 15>(magnitude < largest ? magnitude : largest);
    }
};

// One element in memory.
template <class Format>
ATTEST_DEVICE u32 load_code(const u8* address) {
    if (Format::bytes == 4) {
        return load4(address);
    }
    return Format::bytes == 2 ? load2(address) : *address;
}

template <class Format>
ATTEST_DEVICE void store_code(u8* address, u32 code) {
    if (Format::bytes == 4) {
        store4(address, code);
    } else if (Format::bytes == 2) {
        store2(address, static_cast<u16>(code));
    } else {
        *address = static_cast<u8>(code);
    }
}

// Four consecutive elements by one access; `address` is a multiple of four elements.
template <class Format>
ATTEST_DEVICE Quad load_quad(const u8* address) {
    if (Format::bytes == 4) {
        return load_quad_f32(address);
    }
    if (Format::bytes == 2) {
        const u64 raw = load8(address);
        return Quad{Format::decode(static_cast<u32>(raw) & 0xffffu), Format::decode(static_cast<u32>(raw) >> 16),
                    Format::decode(static_cast<u32>(raw >> 32) & 0xffffu), Format::decode(static_cast<u32>(raw >> 48))};
    }
    const u32 raw = load4(address);
    return Quad{Format::decode(raw & 0xffu), Format::decode((raw >> 8) & 0xffu), Format::decode((raw >> 16) & 0xffu),
                Format::decode(raw >> 24)};
}

template <class Format>
ATTEST_DEVICE void store_quad(u8* address, Quad value) {
    const u32 x = Format::encode(value.x), y = Format::encode(value.y);
    const u32 z = Format::encode(value.z), w = Format::encode(value.w);
    if (Format::bytes == 4) {
        store16(address, make_vec16(x, y, z, w));
    } else if (Format::bytes == 2) {
        store8(address, static_cast<u64>(x | (y << 16)) | (static_cast<u64>(z | (w << 16)) << 32));
    } else {
        store4(address, x | (y << 8) | (z << 16) | (w << 24));
    }
}

// The same where only elements are aligned.
template <class Format>
ATTEST_DEVICE Quad load_quad_unaligned(const u8* address) {
    return Quad{Format::decode(load_code<Format>(address)), Format::decode(load_code<Format>(address + Format::bytes)),
                Format::decode(load_code<Format>(address + 2 * Format::bytes)),
                Format::decode(load_code<Format>(address + 3 * Format::bytes))};
}

template <class Format>
ATTEST_DEVICE void store_quad_unaligned(u8* address, Quad value) {
    store_code<Format>(address, Format::encode(value.x));
    store_code<Format>(address + Format::bytes, Format::encode(value.y));
    store_code<Format>(address + 2 * Format::bytes, Format::encode(value.z));
    store_code<Format>(address + 3 * Format::bytes, Format::encode(value.w));
}
