/* Paged attention and store in plain C: right before fast. Make it yours.
 *
 * Scores of one query row at a time go into the workspace; then come the maximum, the weights and the sum over V, all in
 * float. Only keys that the row sees are read. */
#include "attest_check.h"

int32_t attest_info(attest_kernel_info *info) {
    uint32_t dtype;
    memset(info, 0, sizeof *info);
    info->struct_size = sizeof *info;
    info->version = ATTEST_ABI_VERSION;
    info->name = "plain C";
    info->device = ATTEST_DEVICE_HOST;
    info->layouts = ATTEST_NHD | ATTEST_HND | ATTEST_INTERLEAVED | ATTEST_PADDED;
    info->options = ATTEST_CAN_CAUSAL | ATTEST_CAN_FULL | ATTEST_CAN_WINDOW | ATTEST_CAN_SOFTCAP | ATTEST_CAN_ALIBI |
                    ATTEST_CAN_SINKS | ATTEST_CAN_LSE | ATTEST_CAN_SCALES | ATTEST_CAN_HEAD_SCALES |
                    ATTEST_CAN_UNEQUAL_DIMS | ATTEST_CAN_PREFILL;
    info->promises = ATTEST_BATCH_INVARIANT;
    for (dtype = ATTEST_F32; dtype <= ATTEST_F16; dtype++) {
        info->attention_caches[dtype] = ATTEST_CACHE_TYPES;
        info->store_caches[dtype] = ATTEST_CACHE_TYPES;
    }
    info->head_dim_step = 1;
    info->head_dim_max = 1024;
    info->cache_alignment = 1;
    return ATTEST_OK;
}

/* Floats of the workspace: the scores of a row, then q, then one row of K or V, then the sums. */
static int64_t workspace_floats(const attest_attention_args *args) {
    int64_t k_dim = args->q.shape[2], v_dim = args->v_cache.shape[3];
    return args->max_seq_len + k_dim + (k_dim > v_dim ? k_dim : v_dim) + v_dim;
}

int32_t attest_workspace_size(const attest_attention_args *args, uint64_t *bytes) {
    ATTEST_TRY(attest_check_attention(args));
    *bytes = (uint64_t)workspace_floats(args) * sizeof(float);
    return ATTEST_OK;
}

/* A row of `n` elements as floats. */
static void load_row(uint32_t dtype, const void *data, int64_t first, int64_t n, float *to) {
    int64_t i;
    switch (dtype) {
    case ATTEST_F32:
        memcpy(to, (const float *)data + first, (size_t)n * sizeof *to);
        break;
    case ATTEST_BF16:
        for (i = 0; i < n; i++) to[i] = attest_load(ATTEST_BF16, data, first + i);
        break;
    default:
        for (i = 0; i < n; i++) to[i] = attest_load(dtype, data, first + i);
    }
}

/* Index of the first element of a key in a cache tensor. */
static int64_t locate(const attest_tensor *cache, const int32_t *pages, int64_t key, int64_t head) {
    int64_t page_size = cache->shape[1];
    return pages[key / page_size] * cache->strides[0] + key % page_size * cache->strides[1] + head * cache->strides[2];
}

static float scale_of(const attest_tensor *scales, float scale, int64_t head) {
    return scales->rank ? ((const float *)scales->data)[head] : scale;
}

/* One query row of one head, at `position`, of a request with `keys` keys. */
static void attend(const attest_attention_args *args, int64_t row, int64_t head, int64_t position, int64_t keys,
                   const int32_t *pages) {
    int64_t kv_head = head / (args->q.shape[1] / args->k_cache.shape[2]);
    int64_t k_dim = args->q.shape[2], v_dim = args->v_cache.shape[3], first = 0, end = keys, j, d;
    float *scores = (float *)args->workspace, *q = scores + args->max_seq_len, *kv = q + k_dim;
    float *sums = kv + (k_dim > v_dim ? k_dim : v_dim);
    float scale = args->softmax_scale * scale_of(&args->k_scales, args->k_scale, kv_head);
    float v_scale = scale_of(&args->v_scales, args->v_scale, kv_head);
    float max = -INFINITY, total = 0;
    if (args->flags & ATTEST_CAUSAL && position + 1 < end) end = position + 1;
    if (args->window_left >= 0 && args->window_left < position) first = position - args->window_left;
    if (args->window_right >= 0 && args->window_right < end - position - 1) end = position + args->window_right + 1;

    load_row(args->q.dtype, args->q.data, row * args->q.strides[0] + head * args->q.strides[1], k_dim, q);
    for (j = first; j < end; j++) {
        float s = 0;
        load_row(args->k_cache.dtype, args->k_cache.data, locate(&args->k_cache, pages, j, kv_head), k_dim, kv);
        for (d = 0; d < k_dim; d++) s += q[d] * kv[d];
        s *= scale;
        if (args->flags & ATTEST_SOFTCAP) s = args->softcap * tanhf(s / args->softcap);
        if (args->alibi_slopes.rank) s += ((const float *)args->alibi_slopes.data)[head] * (float)(j - position);
        scores[j] = s;
        /* A NaN must survive the comparison. */
        if (!(s <= max)) max = s;
    }
    if (args->sinks.rank) {
        float sink = ((const float *)args->sinks.data)[head];
        if (!(sink <= max)) max = sink;
        total = expf(sink - max);
    }
    for (d = 0; d < v_dim; d++) sums[d] = 0;
    for (j = first; j < end; j++) {
        float weight = expf(scores[j] - max);
        total += weight;
        load_row(args->v_cache.dtype, args->v_cache.data, locate(&args->v_cache, pages, j, kv_head), v_dim, kv);
        for (d = 0; d < v_dim; d++) sums[d] += weight * kv[d];
    }
    for (d = 0; d < v_dim; d++) {
        int64_t at = row * args->out.strides[0] + head * args->out.strides[1] + d;
        attest_save(args->out.dtype, args->out.data, at, first < end ? sums[d] / total * v_scale : 0);
    }
    if (args->lse.rank) {
        int64_t at = row * args->lse.strides[0] + head * args->lse.strides[1];
        ((float *)args->lse.data)[at] = total == 0 ? -INFINITY : max + logf(total);
    }
}

int32_t attest_paged_attention(const attest_attention_args *args) {
    const int32_t *starts, *lens, *table;
    int64_t r, row, head;
    ATTEST_TRY(attest_check_attention(args));
    if (args->workspace_bytes < (uint64_t)workspace_floats(args) * sizeof(float)) {
        attest_place place = {args->error, args->error_bytes};
        ATTEST_BAD("workspace", "is too small");
    }
    starts = (const int32_t *)args->query_start_loc.data;
    lens = (const int32_t *)args->seq_lens.data;
    table = (const int32_t *)args->block_table.data;
    for (r = 0; r < args->seq_lens.shape[0]; r++)
        for (row = starts[r]; row < starts[r + 1]; row++)
            for (head = 0; head < args->q.shape[1]; head++)
                attend(args, row, head, (int64_t)lens[r] - starts[r + 1] + row, lens[r],
                       table + r * args->block_table.strides[0]);
    return ATTEST_OK;
}

static void store(const attest_tensor *rows, const attest_tensor *cache, const attest_tensor *scales, float scale,
                  int64_t token, int64_t slot) {
    int64_t page_size = cache->shape[1], head, d;
    for (head = 0; head < rows->shape[1]; head++) {
        int64_t from = token * rows->strides[0] + head * rows->strides[1];
        int64_t to = slot / page_size * cache->strides[0] + slot % page_size * cache->strides[1] + head * cache->strides[2];
        for (d = 0; d < rows->shape[2]; d++)
            attest_save(cache->dtype, cache->data, to + d,
                        attest_load(rows->dtype, rows->data, from + d) / scale_of(scales, scale, head));
    }
}

int32_t attest_store(const attest_store_args *args) {
    const int64_t *slots;
    int64_t token;
    ATTEST_TRY(attest_check_store(args));
    slots = (const int64_t *)args->slot_mapping.data;
    for (token = 0; token < args->slot_mapping.shape[0]; token++) {
        if (slots[token] == -1) continue;
        store(&args->k, &args->k_cache, &args->k_scales, args->k_scale, token, slots[token]);
        store(&args->v, &args->v_cache, &args->v_scales, args->v_scale, token, slots[token]);
    }
    return ATTEST_OK;
}
