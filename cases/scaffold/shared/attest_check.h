/* Checks of a call, to be made before anything is touched: what is refused, with the name of the argument. */
#ifndef ATTEST_CHECK_H
#define ATTEST_CHECK_H

#include "attest_formats.h"

#include <stdio.h>
#include <stdlib.h>

/* Where a message goes. */
typedef struct attest_place {
    char *text;
    uint64_t bytes;
} attest_place;

static inline int32_t attest_refuse(attest_place place, int32_t code, const char *argument, const char *why) {
    if (place.text && place.bytes) snprintf(place.text, (size_t)place.bytes, "%s %s", argument, why);
    return code;
}

#define ATTEST_BAD(argument, why) return attest_refuse(place, ATTEST_INVALID_ARGUMENT, argument, why)

static inline int attest_is_fp8(uint32_t dtype) { return dtype == ATTEST_E4M3 || dtype == ATTEST_E5M2; }

/* A tensor of one of the types of `dtypes` (bits) and of this shape, whose rows are contiguous, inside its memory. */
static inline int32_t attest_check_tensor(attest_place place, const char *name, const attest_tensor *tensor, uint32_t dtypes,
                                          uint32_t rank, const int64_t *shape) {
    int64_t last = 0;
    uint32_t axis;
    if (tensor->struct_size != sizeof *tensor || tensor->version != ATTEST_ABI_VERSION)
        ATTEST_BAD(name, "has a struct of another version");
    if (tensor->dtype > 7 || !(dtypes >> tensor->dtype & 1u)) ATTEST_BAD(name, "has a type that is not accepted here");
    if (tensor->rank != rank) ATTEST_BAD(name, "has another number of axes");
    for (axis = 0; axis < rank; axis++) {
        if (tensor->shape[axis] != shape[axis]) ATTEST_BAD(name, "has a shape that does not fit the other tensors");
        if (shape[axis] > INT32_MAX) ATTEST_BAD(name, "has an extent past 2147483647");
        if (shape[axis] == 0) return ATTEST_OK;
    }
    for (axis = 0; axis < rank; axis++) {
        int64_t stride = tensor->strides[axis];
        if (axis + 1 == rank && shape[axis] > 1 && stride != 1) ATTEST_BAD(name, "has a last stride other than 1");
        if (stride < 0 || stride > INT64_MAX / 16 / shape[axis]) ATTEST_BAD(name, "has a stride that leaves its memory");
        last += stride * (shape[axis] - 1);
        if (last > INT64_MAX / 16) ATTEST_BAD(name, "has strides that leave its memory");
    }
    if (!tensor->data) ATTEST_BAD(name, "is NULL");
    if ((uint64_t)((last + 1) * attest_size(tensor->dtype)) > tensor->bytes) ATTEST_BAD(name, "leaves its memory");
    return ATTEST_OK;
}

static inline int32_t attest_check_vector(attest_place place, const char *name, const attest_tensor *tensor, uint32_t dtype,
                                          int64_t length) {
    return attest_check_tensor(place, name, tensor, 1u << dtype, 1, &length);
}

/* An optional vector of floats. */
static inline int32_t attest_check_optional(attest_place place, const char *name, const attest_tensor *tensor,
                                            int64_t length) {
    if (!tensor->data && !tensor->rank) return ATTEST_OK;
    return attest_check_vector(place, name, tensor, ATTEST_F32, length);
}

static inline int attest_above_zero(float x) { return x > 0 && x <= 3.402823466e38f; }

#define ATTEST_TRY(call)                         \
    do {                                         \
        int32_t attest_code = (call);            \
        if (attest_code) return attest_code;     \
    } while (0)

#define ATTEST_MODEL_TYPES (1u << ATTEST_F32 | 1u << ATTEST_BF16 | 1u << ATTEST_F16)
#define ATTEST_CACHE_TYPES (ATTEST_MODEL_TYPES | 1u << ATTEST_E4M3 | 1u << ATTEST_E5M2)

/* Values of the metadata, where the host has a copy. */
static inline int32_t attest_check_metadata(attest_place place, const attest_attention_args *args) {
    int64_t requests = args->seq_lens.shape[0], width = args->block_table.shape[1];
    int64_t page_size = args->k_cache.shape[1], r, column;
    const int32_t *starts = args->host_query_start_loc, *lens = args->host_seq_lens, *table = args->host_block_table;
    if (starts) {
        if (starts[0] != 0) ATTEST_BAD("query_start_loc", "does not start at 0");
        for (r = 0; r < requests; r++) {
            if (starts[r + 1] < starts[r]) ATTEST_BAD("query_start_loc", "decreases");
            if ((int64_t)starts[r + 1] - starts[r] > args->max_query_len) ATTEST_BAD("max_query_len", "is too small");
        }
        if (starts[requests] != args->q.shape[0]) ATTEST_BAD("query_start_loc", "does not end at total_q");
    }
    for (r = 0; lens && r < requests; r++) {
        if (lens[r] < 0) ATTEST_BAD("seq_lens", "has a negative length");
        if (lens[r] > width * page_size) ATTEST_BAD("seq_lens", "has a length past the block table");
        if (lens[r] > args->max_seq_len) ATTEST_BAD("max_seq_len", "is too small");
        for (column = 0; table && column * page_size < lens[r]; column++) {
            int32_t page = table[r * width + column];
            if (page < 0 || page >= args->k_cache.shape[0]) ATTEST_BAD("block_table", "has a page outside the cache");
        }
    }
    return ATTEST_OK;
}

/* Every argument of an attention call. The kernel serves whatever passes. */
static inline int32_t attest_check_attention(const attest_attention_args *args) {
    attest_place place = {0, 0};
    const int64_t *q, *k;
    int64_t heads, kv_heads, shape[4];
    if (args->struct_size != sizeof *args || args->version != ATTEST_ABI_VERSION) return ATTEST_INVALID_ARGUMENT;
    place.text = args->error;
    place.bytes = args->error_bytes;
    if (args->q.rank != 3) ATTEST_BAD("q", "has another number of axes");
    if (args->k_cache.rank != 4) ATTEST_BAD("k_cache", "has another number of axes");
    if (args->v_cache.rank != 4) ATTEST_BAD("v_cache", "has another number of axes");
    if (args->seq_lens.rank != 1) ATTEST_BAD("seq_lens", "has another number of axes");
    if (args->block_table.rank != 2) ATTEST_BAD("block_table", "has another number of axes");
    q = args->q.shape;
    k = args->k_cache.shape;
    heads = q[1];
    kv_heads = k[2];
    if (kv_heads < 1) ATTEST_BAD("num_kv_heads", "is below 1");
    if (heads < 1 || heads % kv_heads) ATTEST_BAD("num_q_heads", "is no multiple of num_kv_heads");
    if (q[2] < 1 || args->v_cache.shape[3] < 1) ATTEST_BAD("head_dim", "is below 1");
    if (k[1] < 1) ATTEST_BAD("page_size", "is below 1");

    ATTEST_TRY(attest_check_tensor(place, "q", &args->q, ATTEST_MODEL_TYPES, 3, q));
    shape[0] = k[0], shape[1] = k[1], shape[2] = kv_heads, shape[3] = q[2];
    ATTEST_TRY(attest_check_tensor(place, "k_cache", &args->k_cache, ATTEST_CACHE_TYPES, 4, shape));
    shape[3] = args->v_cache.shape[3];
    ATTEST_TRY(attest_check_tensor(place, "v_cache", &args->v_cache, 1u << args->k_cache.dtype, 4, shape));
    shape[0] = q[0], shape[1] = heads, shape[2] = args->v_cache.shape[3];
    ATTEST_TRY(attest_check_tensor(place, "out", &args->out, 1u << args->q.dtype, 3, shape));
    if (args->lse.rank) ATTEST_TRY(attest_check_tensor(place, "lse", &args->lse, 1u << ATTEST_F32, 2, shape));
    shape[0] = args->seq_lens.shape[0];
    ATTEST_TRY(attest_check_vector(place, "seq_lens", &args->seq_lens, ATTEST_I32, shape[0]));
    ATTEST_TRY(attest_check_vector(place, "query_start_loc", &args->query_start_loc, ATTEST_I32, shape[0] + 1));
    shape[1] = args->block_table.shape[1];
    ATTEST_TRY(attest_check_tensor(place, "block_table", &args->block_table, 1u << ATTEST_I32, 2, shape));
    ATTEST_TRY(attest_check_optional(place, "k_scales", &args->k_scales, kv_heads));
    ATTEST_TRY(attest_check_optional(place, "v_scales", &args->v_scales, kv_heads));
    ATTEST_TRY(attest_check_optional(place, "alibi_slopes", &args->alibi_slopes, heads));
    ATTEST_TRY(attest_check_optional(place, "sinks", &args->sinks, heads));

    if (!attest_above_zero(args->softmax_scale)) ATTEST_BAD("softmax_scale", "is not a finite number above 0");
    if (args->flags & ATTEST_SOFTCAP && !attest_above_zero(args->softcap))
        ATTEST_BAD("softcap", "is not a finite number above 0");
    if (!attest_above_zero(args->k_scale)) ATTEST_BAD("k_scale", "is not a finite number above 0");
    if (!attest_above_zero(args->v_scale)) ATTEST_BAD("v_scale", "is not a finite number above 0");
    if (args->window_left < -1) ATTEST_BAD("window_left", "is below -1");
    if (args->window_right < -1) ATTEST_BAD("window_right", "is below -1");
    if (args->flags & ~(uint32_t)(ATTEST_CAUSAL | ATTEST_SOFTCAP)) ATTEST_BAD("flags", "has bits that are not known");
    if (args->max_seq_len < 0 || args->max_seq_len > INT32_MAX) ATTEST_BAD("max_seq_len", "is outside 0..2147483647");
    return attest_check_metadata(place, args);
}

/* Slots out of range, or used twice. */
static inline int32_t attest_check_slots(attest_place place, const attest_store_args *args) {
    int64_t slots = args->k_cache.shape[0] * args->k_cache.shape[1], i;
    const int64_t *mapping = args->host_slot_mapping;
    int32_t code = ATTEST_OK;
    uint8_t *used;
    if (!mapping) return ATTEST_OK;
    used = (uint8_t *)calloc((size_t)(slots / 8 + 1), 1);
    if (!used) return attest_refuse(place, ATTEST_FAILED, "memory", "ran out");
    for (i = 0; i < args->slot_mapping.shape[0] && !code; i++) {
        int64_t slot = mapping[i];
        if (slot == -1) continue;
        if (slot < 0 || slot >= slots)
            code = attest_refuse(place, ATTEST_INVALID_ARGUMENT, "slot_mapping", "has a slot outside the cache");
        else if (used[slot / 8] >> (slot % 8) & 1)
            code = attest_refuse(place, ATTEST_INVALID_ARGUMENT, "slot_mapping", "has one slot twice");
        else
            used[slot / 8] |= (uint8_t)(1 << (slot % 8));
    }
    free(used);
    return code;
}

/* Every argument of a store. */
static inline int32_t attest_check_store(const attest_store_args *args) {
    attest_place place = {0, 0};
    int64_t shape[4];
    int fp8;
    if (args->struct_size != sizeof *args || args->version != ATTEST_ABI_VERSION) return ATTEST_INVALID_ARGUMENT;
    place.text = args->error;
    place.bytes = args->error_bytes;
    if (args->k.rank != 3) ATTEST_BAD("k", "has another number of axes");
    if (args->v.rank != 3) ATTEST_BAD("v", "has another number of axes");
    if (args->k_cache.rank != 4) ATTEST_BAD("k_cache", "has another number of axes");
    if (args->k_cache.shape[1] < 1) ATTEST_BAD("page_size", "is below 1");
    if (args->k.shape[1] < 1) ATTEST_BAD("num_kv_heads", "is below 1");
    if (args->k.shape[2] < 1 || args->v.shape[2] < 1) ATTEST_BAD("head_dim", "is below 1");
    ATTEST_TRY(attest_check_tensor(place, "k", &args->k, ATTEST_MODEL_TYPES, 3, args->k.shape));
    shape[0] = args->k.shape[0], shape[1] = args->k.shape[1], shape[2] = args->v.shape[2];
    ATTEST_TRY(attest_check_tensor(place, "v", &args->v, 1u << args->k.dtype, 3, shape));
    ATTEST_TRY(attest_check_vector(place, "slot_mapping", &args->slot_mapping, ATTEST_I64, shape[0]));
    shape[0] = args->k_cache.shape[0], shape[1] = args->k_cache.shape[1];
    shape[2] = args->k.shape[1], shape[3] = args->k.shape[2];
    ATTEST_TRY(attest_check_tensor(place, "k_cache", &args->k_cache, ATTEST_CACHE_TYPES, 4, shape));
    shape[3] = args->v.shape[2];
    ATTEST_TRY(attest_check_tensor(place, "v_cache", &args->v_cache, 1u << args->k_cache.dtype, 4, shape));
    ATTEST_TRY(attest_check_optional(place, "k_scales", &args->k_scales, shape[2]));
    ATTEST_TRY(attest_check_optional(place, "v_scales", &args->v_scales, shape[2]));
    fp8 = attest_is_fp8(args->k_cache.dtype);
    if (!attest_above_zero(args->k_scale) || (!fp8 && (args->k_scale != 1 || args->k_scales.rank)))
        ATTEST_BAD("k_scale", "is not a finite number above 0, or not 1 for a cache that is not fp8");
    if (!attest_above_zero(args->v_scale) || (!fp8 && (args->v_scale != 1 || args->v_scales.rank)))
        ATTEST_BAD("v_scale", "is not a finite number above 0, or not 1 for a cache that is not fp8");
    return attest_check_slots(place, args);
}

#endif
