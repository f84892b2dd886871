// The data side of decode.cu: the sizes of an instance, how keys and values come into shared memory, and how they become
// matrix fragments.
#pragma once

#include "cast.cuh"
#include "packed.cuh"

#ifndef Q_FORMAT
#error "define Q_FORMAT: Bf16 or F16"
#endif
#ifndef KV_FORMAT
#error "define KV_FORMAT: Q_FORMAT's own, E4m3 or E5m2"
#endif
#ifndef HEAD_DIM
#error "define HEAD_DIM: a multiple of 64"
#endif
#ifndef ROWS
#error "define ROWS: packed rows of a block, 8 or 16"
#endif
#ifndef WARPS
#error "define WARPS: 1 to 8"
#endif
#ifndef STAGES
#error "define STAGES: steps on their way or in use per warp, 2 or more"
#endif
#ifndef MODIFIED
#error "define MODIFIED: 1 where softcap or ALiBi may be asked for, else 0"
#endif

constexpr int kWarps = WARPS;
constexpr int kThreads = 32 * kWarps;
constexpr int kRows = ROWS;
constexpr int kRowTiles = kRows / 8;
constexpr int kKeys = 16;
constexpr int kDim = HEAD_DIM;
constexpr int kStages = STAGES;
constexpr bool kModified = MODIFIED;
constexpr u32 kFullWarp = 0xffffffffu;

constexpr int kBytes = KV_FORMAT::bytes;
constexpr int kRowBytes = kDim * kBytes;
constexpr int kChunks = kRowBytes / 16;
// Dims that one 16-byte read of K brings, matrix steps that they feed, and reads of a lane per key.
constexpr int kKDims = 16 / kBytes;
constexpr int kKSteps = kKDims / 4;
constexpr int kKGroups = kChunks / 4;
// Matrix tiles of 16 dims of V. One read of an fp8 row brings kVDims dims: eight lanes side by side stay within a row.
constexpr int kVTiles = kDim / 16;
constexpr int kVDims = kDim % (8 * kKDims) == 0 ? kKDims : kKDims / 2;
constexpr int kVBlockTiles = kBytes == 2 ? 1 : kVDims / 2;
constexpr int kVBlocks = kVTiles / kVBlockTiles;

static_assert(kDim % 64 == 0, "reads of K and V tile the row");
static_assert(kBytes <= 2, "8-bit and 16-bit caches");
static_assert(kRows == 8 || kRows == 16, "one or two tiles of eight rows");

// The format of P and V. Every fp8 value is exact in f16, one conversion away, where bf16 takes four times as many
// instructions; and P is rounded eight times more finely.
template <bool fp8>
struct WeightFormatOf {
    using Format = Q_FORMAT;
};
template <>
struct WeightFormatOf<true> {
    using Format = F16;
};
using WeightFormat = WeightFormatOf<kBytes == 1>::Format;

// Blocks that registers should allow on a multiprocessor: short rows leave room for 16 warps; with integer casts or score
// modifiers, for 12.
constexpr bool kCastsByHand = kBytes == 1 && !kCastNeighbours;
constexpr int kResidentWarps = kDim > 128 || kRows > 8 ? 8 : kCastsByHand || kModified ? 12 : 16;
constexpr int kBlocks = kResidentWarps / kWarps;

// Rows of 128 bytes and multiples keep their length and exchange 16-byte chunks so that the rows read together lie in
// different banks; shorter rows are set apart instead.
constexpr bool kSwizzle = kChunks % 8 == 0;
constexpr int kSharedRow = kSwizzle ? kRowBytes : kRowBytes + 16;
constexpr int kTileBytes = kKeys * kSharedRow;
constexpr int kStageBytes = 2 * kTileBytes;
// Floats from one row of a warp's sums to the next: four more than the dims, so that rows lie in different banks.
constexpr int kSumRow = kDim + 4;

// Bytes from one row of Q to the next: 16 more than its length, so that rows lie in different banks.
constexpr int kQueryRow = 2 * kDim + 16;

struct Shared {
    static constexpr int state = 0;                              // maximum and sum of each warp's rows
    static constexpr int inverses = state + kWarps * kRows * 8;  // of the powers of narrowed rows of Q
    static constexpr int queries = inverses + (kBytes == 1 ? kRows * 4 : 0);
    // Rows of the ring start where all banks do.
    static constexpr int ring = (queries + (kBytes == 1 ? kRows * kQueryRow : 0) + 127) / 128 * 128;
};

// A warp's sums take the place of its ring at the end.
static_assert(kRows * kSumRow * 4 <= kStages * kStageBytes, "a warp's sums fit its ring");
static_assert(kSwizzle || kBytes == 1, "matrix loads of V need the exchange");

// What a row's chunk numbers are exchanged by: a bit pattern below 8.
ATTEST_DEVICE int k_exchange(int row) { return kSwizzle ? (row & 1) << 2 : 0; }
ATTEST_DEVICE int v_exchange(int row) { return kSwizzle ? row & (kBytes == 2 ? 7 : 6) : 0; }

// Byte offset of a 16-byte chunk within a tile of K or V.
ATTEST_DEVICE u32 k_place(int row, int chunk) { return row * kSharedRow + (chunk ^ k_exchange(row)) * 16; }
ATTEST_DEVICE u32 v_place(int row, int chunk) { return row * kSharedRow + (chunk ^ v_exchange(row)) * 16; }

// Steps from `first` on, `count` of them.
struct StepRange {
    i32 first;
    u32 count;
};

// The steps that lie within [begin, end) of the keys.
ATTEST_DEVICE StepRange steps_within(i32 begin, i32 end) {
    const i32 first = begin / kKeys + (begin % kKeys != 0), last = end / kKeys;
    return StepRange{first, static_cast<u32>(last > first ? last - first : 0)};
}

ATTEST_DEVICE bool holds(StepRange range, i32 step) { return static_cast<u32>(step - range.first) < range.count; }

// ---------------------------------------------------------------------------------------------------------------
// From the cache to shared memory
// ---------------------------------------------------------------------------------------------------------------

// Whether the copies of a whole step fall into equal rounds, in each of which a lane copies the same part of a row, and
// the rows of a round.
constexpr bool kEvenRounds = 32 % kChunks == 0;
constexpr int kRoundRows = kEvenRounds ? 32 / kChunks : 1;

// What a lane needs to know to start copies.
struct Reader {
    const i32* block_table_row;
    const u8 *k, *v;            // this KV head
    const u8 *k_part, *v_part;  // this lane's part of a round's rows
    u32 k_target, v_target;     // where that goes within a stage in round 0
    StepRange whole;            // steps that some row of the block sees all of, and that one page holds
};

ATTEST_DEVICE Reader make_reader(const MmaParams& p, const Work& w) {
    const AttentionParams& a = p.attention;
    const int lane = threadIdx.x % 32, row = lane / kChunks, chunk = lane % kChunks;
    Reader reader;
    reader.block_table_row = a.block_table + w.request * a.block_table_stride;
    reader.k = a.k + w.kv_head * a.k_head_stride * kBytes;
    reader.v = a.v + w.kv_head * a.v_head_stride * kBytes;
    reader.k_part = reader.k + row * a.k_slot_stride * kBytes + chunk * 16;
    reader.v_part = reader.v + row * a.v_slot_stride * kBytes + chunk * 16;
    reader.k_target = k_place(row, chunk);
    reader.v_target = kTileBytes + v_place(row, chunk);
    ATTEST_KEEP_ADDRESS(reader.k_part);
    ATTEST_KEEP_ADDRESS(reader.v_part);
    ATTEST_KEEP(reader.k_target);
    ATTEST_KEEP(reader.v_target);
    const bool whole_pages = kEvenRounds && p.page_shift >= 0 && 1 << p.page_shift >= kKeys;
    reader.whole = whole_pages ? steps_within(w.keys.begin, w.keys.end) : StepRange{0, 0};
    return reader;
}

// Where the rows of a step lie, as start_step takes it. Of a whole step, its page. Otherwise the byte offset of the row
// that this lane looks after, key lane % 16, of K for lanes 0 to 15 and of V for the rest; -1 for keys that nobody sees.
ATTEST_DEVICE i64 find_rows(const MmaParams& p, const Work& w, const Reader& reader, i32 step) {
    const AttentionParams& a = p.attention;
    const int lane = threadIdx.x % 32;
    if (step >= w.end_tile) {
        return -1;
    }
    if (holds(reader.whole, step)) {
        return reader.block_table_row[step * kKeys >> p.page_shift];
    }
    const i32 key = step * kKeys + lane % 16;
    if (key < w.keys.begin || key >= w.keys.end) {
        return -1;
    }
    const Slot at = find_slot(p, reader.block_table_row, key);
    const i64 row = lane < 16 ? at.page * a.k_page_stride + at.in_page * a.k_slot_stride
                              : at.page * a.v_page_stride + at.in_page * a.v_slot_stride;
    return row * kBytes;
}

ATTEST_DEVICE i64 shuffle_row(i64 row, int lane) {
    const u32 low = __shfl_sync(kFullWarp, static_cast<u32>(row), lane);
    const u32 high = __shfl_sync(kFullWarp, static_cast<u32>(row >> 32), lane);
    return static_cast<i64>(static_cast<u64>(high) << 32 | low);
}

// Starts the copies of a whole step: keys one after another in one page.
ATTEST_DEVICE void start_whole_step(u8* stage, const MmaParams& p, const Reader& reader, i32 step, u32 page) {
    const AttentionParams& a = p.attention;
    const u32 in_page = static_cast<u32>(step * kKeys) & ((1u << p.page_shift) - 1);
    const u8* k = reader.k_part + (page * a.k_page_stride + in_page * a.k_slot_stride) * kBytes;
    const u8* v = reader.v_part + (page * a.v_page_stride + in_page * a.v_slot_stride) * kBytes;
    ATTEST_UNROLL_FULL
    for (int round = 0; round < kKeys / kRoundRows; ++round) {
        // Rows advance by whole rounds, so what their chunks are exchanged by changes in those bits alone.
        const int row = round * kRoundRows;
        copy_async16(stage + (reader.k_target ^ k_exchange(row) * 16) + row * kSharedRow, k, 16);
        copy_async16(stage + (reader.v_target ^ v_exchange(row) * 16) + row * kSharedRow, v, 16);
        k += kRoundRows * kBytes * a.k_slot_stride;
        v += kRoundRows * kBytes * a.v_slot_stride;
    }
}

// Starts the copies of one step into a stage.
ATTEST_DEVICE void start_step(u8* stage, const MmaParams& p, const Work& w, const Reader& reader, i32 step, i64 rows) {
    if (step >= w.end_tile) {
        return;
    }
    if (holds(reader.whole, step)) {
        start_whole_step(stage, p, reader, step, static_cast<u32>(rows));
        return;
    }
    const int lane = threadIdx.x % 32;
    constexpr int items = kKeys * kChunks;
    static_assert(items % 32 == 0, "every lane copies alike");
    ATTEST_UNROLL(1)
    for (int round = 0; round < items / 32; ++round) {
        const int item = round * 32 + lane;
        const int slot = item / kChunks, chunk = item % kChunks;
        const i64 k_row = shuffle_row(rows, slot), v_row = shuffle_row(rows, slot + 16);
        copy_async16(stage + k_place(slot, chunk), reader.k + (k_row < 0 ? 0 : k_row) + chunk * 16, k_row < 0 ? 0 : 16);
        copy_async16(stage + kTileBytes + v_place(slot, chunk), reader.v + (v_row < 0 ? 0 : v_row) + chunk * 16,
                     v_row < 0 ? 0 : 16);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// From shared memory to matrix fragments
// ---------------------------------------------------------------------------------------------------------------

template <int words>
ATTEST_DEVICE void load_words(u32 (&to)[words], const u8* from) {
    if (words == 4) {
        const Vec16 raw = load16(from);
        ATTEST_UNROLL_FULL
        for (int i = 0; i < words; ++i) {
            to[i] = ATTEST_VEC16_WORD(raw, i);
        }
    } else {
        const u64 raw = load8(from);
        to[0] = static_cast<u32>(raw);
        to[words - 1] = static_cast<u32>(raw >> 32);
    }
}

// Where this lane reads in a stage: K of key g for even and for odd groups, V of key 2t (fp8) or of its row of a matrix
// load (16-bit) in block 0.
struct Places {
    u32 k[2], v;
};

ATTEST_DEVICE Places find_places() {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    Places places;
    places.k[0] = k_place(g, t);
    places.k[1] = k_place(g, 4 + t);
    const int key = kBytes == 2 ? lane % 8 + lane / 16 * 8 : 2 * t;
    const int byte = kBytes == 2 ? lane / 8 % 2 * 16 : g * kVDims;
    places.v = kTileBytes + v_place(key, byte / 16) + byte % 16;
    ATTEST_KEEP(places.k[0]);
    ATTEST_KEEP(places.k[1]);
    ATTEST_KEEP(places.v);
    return places;
}

// Where the read of a group starts. Rows exchange chunks within eight only.
ATTEST_DEVICE const u8* k_group(const u8* stage, const Places& places, int group) {
    return stage + places.k[group % 2] + group / 2 * 128;
}

// Operand registers of the matrix steps that one 16-byte read of K feeds.
template <class Format>
ATTEST_DEVICE void k_operands(u32 (&to)[kKSteps][2], const u8* from) {
    u32 raw[4];
    load_words(raw, from);
    WordCast cast[4];
    if (kBytes == 1) {
        cast_words<Format, KV_FORMAT, 4>(cast, raw);
    }
    ATTEST_UNROLL_FULL
    for (int step = 0; step < kKSteps; ++step) {
        to[step][0] = kBytes == 1 ? cast[step].first : raw[2 * step % 4];
        to[step][1] = kBytes == 1 ? cast[step].second : raw[(2 * step + 1) % 4];
    }
}

// Dim of row g (half 0) or g + 8 (half 1) of a matrix tile of V.
ATTEST_DEVICE int v_dim(int tile, int half) {
    const int g = threadIdx.x % 32 / 4;
    if (kBytes == 2) {
        return 16 * tile + 8 * half + g;
    }
    return tile / kVBlockTiles * 8 * kVDims + g * kVDims + tile % kVBlockTiles * 2 + half;
}

// Operand registers of the matrix tiles that one read of V feeds.
ATTEST_DEVICE void v_operands(u32 (&to)[kVBlockTiles][4], const u8* stage, const Places& places, int block) {
    if (kBytes == 2) {
        // Four blocks of 32 bytes are the eight chunks that rows exchange.
        load_matrix_x4_transposed(to[0], stage + (places.v ^ block % 4 * 32) + block / 4 * 128);
        return;
    }
    constexpr int words = kBytes == 1 ? kVDims / 4 : 2;
    u32 raw[4][words];
    ATTEST_UNROLL_FULL
    for (int i = 0; i < 4; ++i) {
        load_words(raw[i], stage + places.v + (i % 2 + i / 2 * 8) * kSharedRow + block * 8 * kVDims);
    }
    ATTEST_UNROLL_FULL
    for (int word = 0; word < words; ++word) {
        // Of two keys side by side, the codes of one dim next to each other where casting takes them together.
        const u32 low = kCastNeighbours ? 0x5140 : 0x5410, high = kCastNeighbours ? 0x7362 : 0x7632;
        const u32 codes[4] = {__byte_perm(raw[0][word], raw[1][word], low), __byte_perm(raw[2][word], raw[3][word], low),
                              __byte_perm(raw[0][word], raw[1][word], high),
                              __byte_perm(raw[2][word], raw[3][word], high)};
        WordCast cast[4];
        cast_words<WeightFormat, KV_FORMAT, 4>(cast, codes);
        ATTEST_UNROLL_FULL
        for (int tile = 0; tile < 2; ++tile) {
            u32(&operand)[4] = to[(2 * word + tile) % kVBlockTiles];
            operand[0] = cast[2 * tile].first;
            operand[1] = cast[2 * tile].second;
            operand[2] = cast[2 * tile + 1].first;
            operand[3] = cast[2 * tile + 1].second;
        }
    }
}
