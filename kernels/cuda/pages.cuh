// Which page holds a key: division by a page size that may be any number, without dividing.
#pragma once

#include "arch.cuh"

// For a page size d: l = ceil(log2 d) and m = floor(2^(31 + l) / d) + 1, which fits 32 bits. m d exceeds 2^(31 + l) by at
// most d, and so by at most 2^l. For a key below 2^31, key m / 2^(31 + l) then exceeds key / d by less than 1 / d: rounded
// down, both are the page.
struct PageDivider {
    u32 multiplier;  // m
    i32 shift;       // l
};

ATTEST_DEVICE i32 page_of_key(const PageDivider& pages, i32 key) {
    return static_cast<i32>(__umulhi(static_cast<u32>(key) << 1, pages.multiplier) >> pages.shift);
}
