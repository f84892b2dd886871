// The sizes of the tiles of mma.cu and mma_pairs.cu, from the macros that select an instance, and where tiles lie in shared
// memory.
#pragma once

#include "cast.cuh"

#ifndef SHARES
#error "the kernel that includes this defines SHARES: warps that own the same rows, 1 or 2"
#endif
#ifndef Q_FORMAT
#error "define Q_FORMAT: Bf16 or F16"
#endif
#ifndef KV_FORMAT
#error "define KV_FORMAT: Q_FORMAT's own, E4m3 or E5m2"
#endif
#ifndef HEAD_DIM
#error "define HEAD_DIM: a multiple of 16"
#endif
#ifndef WARPS
#error "define WARPS: 1 to 8"
#endif
#ifndef ROW_TILES
#error "define ROW_TILES: 16-row tiles of a warp, 1 or 2"
#endif
#ifndef KEY_TILE
#error "define KEY_TILE: a multiple of 16"
#endif
#ifndef MODIFIED
#error "define MODIFIED: 1 where softcap or ALiBi may be asked for, else 0"
#endif
#ifndef ENTRY
#error "define ENTRY: the kernel's name"
#endif
// DENSE is defined where a request has one page, and each KV head's keys lie in it one after another without gaps: the
// block table is not read then, and a tile is one stretch of memory.
// An fp8 cache is cast by the software decoder unless CAST_HARDWARE is defined (sm_89 and later).

constexpr int kWarps = WARPS;
constexpr int kThreads = 32 * kWarps;
constexpr int kShares = SHARES;
constexpr int kRowTiles = ROW_TILES;
constexpr int kWarpRows = 16 * kRowTiles;
constexpr int kRows = kWarpRows * kWarps / kShares;
constexpr int kKeyTile = KEY_TILE;
constexpr int kWarpKeys = kKeyTile / kShares;
constexpr int kDim = HEAD_DIM;
constexpr int kWarpDims = kDim / kShares;
constexpr bool kCast = KV_FORMAT::bytes == 1;
// Score modifiers cost registers even where they are not asked for, so they have instances of their own.
constexpr bool kModified = MODIFIED;
#ifdef DENSE
constexpr bool kDense = true;
#else
constexpr bool kDense = false;
#endif
constexpr u32 kFullWarp = 0xffffffffu;
// The threads that look up keys and start copies: all, or where warps share rows the half that has the time (see there).
constexpr int kCopyThreads = kThreads / kShares;

// Rows in shared memory are one 16-byte access apart from a multiple of the dims, so that the eight rows of a matrix
// load fall into different banks.
constexpr int kRowBytes = 2 * kDim + 16;
constexpr int kTileBytes = kKeyTile * kRowBytes;
constexpr int kRawRowBytes = kDim;
constexpr int kRawTileBytes = kKeyTile * kRawRowBytes;
// Tiles of K and of V in shared memory. Cast tiles have one: their raw bytes, which wait beside them, are the second.
constexpr int kBuffers = kCast ? 1 : 2;
// Tiles whose key rows are known at once.
constexpr int kRowRing = 4;
// Tiles whose rows are looked up at once: as many as have a key for each thread that looks up, so that no warp does all
// the work while others wait for it.
constexpr int kLookupTiles = kCopyThreads >= 2 * kKeyTile ? 2 : 1;
// Tiles whose rows a block knows before it copies the first.
constexpr int kKnownTiles = kLookupTiles == 2 ? 4 : 3;

static_assert(!kDense || !kCast, "dense scratch holds 16-bit elements");
static_assert(kWarpDims % 16 == 0, "a matrix instruction takes 16 dims");
static_assert(kWarpKeys % 16 == 0, "a matrix instruction takes 16 keys");

// Where the parts of shared memory lie, in bytes.
struct Shared {
    static constexpr int rows = 0;                                   // of each key in the cache, K and V, of kRowRing tiles
    static constexpr int pages = rows + kRowRing * 2 * kKeyTile * 4;  // of each key, of kRowRing tiles
    static constexpr int q = pages + kRowRing * kKeyTile * 4;
    static constexpr int k = q + kRows * kRowBytes;
    static constexpr int v = k + kBuffers * kTileBytes;
    static constexpr int raw_k = v + kBuffers * kTileBytes;
    static constexpr int raw_v = raw_k + (kCast ? kRawTileBytes : 0);
    static constexpr int end = raw_v + (kCast ? kRawTileBytes : 0);
};
