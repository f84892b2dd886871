/* Serves little, says so, and refuses the rest: decode over a compact bf16 cache with head dim 128 and pages of 16. */
#define OWN_INFO
#include "honest.h"
int32_t attest_info(attest_kernel_info *info) {
    memset(info, 0, sizeof *info);
    info->struct_size = sizeof *info;
    info->version = ATTEST_ABI_VERSION;
    info->name = "narrow";
    info->device = ATTEST_DEVICE_HOST;
    info->layouts = ATTEST_NHD;
    info->options = ATTEST_CAN_CAUSAL;
    info->attention_caches[ATTEST_BF16] = 1u << ATTEST_BF16;
    info->head_dims[0] = 128;
    info->page_sizes[0] = 16;
    info->cache_alignment = 16;
    info->max_group = 8;
    return ATTEST_OK;
}
static int is_compact(const attest_tensor *cache) {
    int64_t step = 1;
    int axis;
    for (axis = 3; axis >= 0; axis--) {
        if (cache->shape[axis] > 1 && cache->strides[axis] != step) return 0;
        step *= cache->shape[axis];
    }
    return 1;
}
#define REFUSE_UNLESS(condition, argument)                                                                            \
    if (!(condition)) return attest_refuse(place, ATTEST_UNSUPPORTED, argument, "is not served so")
int32_t attest_paged_attention(const attest_attention_args *args) {
    attest_place place = {args->error, args->error_bytes};
    const int32_t *starts;
    int64_t r;
    ATTEST_TRY(attest_check_attention(args));
    REFUSE_UNLESS(args->q.dtype == ATTEST_BF16, "q");
    REFUSE_UNLESS(args->k_cache.dtype == ATTEST_BF16 && is_compact(&args->k_cache), "k_cache");
    REFUSE_UNLESS(is_compact(&args->v_cache), "v_cache");
    REFUSE_UNLESS(args->q.shape[2] == 128 && args->v_cache.shape[3] == 128, "head_dim");
    REFUSE_UNLESS(args->k_cache.shape[1] == 16, "page_size");
    REFUSE_UNLESS(args->q.shape[1] / args->k_cache.shape[2] <= 8, "num_q_heads");
    REFUSE_UNLESS(args->flags == ATTEST_CAUSAL, "flags");
    REFUSE_UNLESS(args->window_left == -1 && args->window_right == -1, "window_left");
    REFUSE_UNLESS(!args->lse.rank, "lse");
    REFUSE_UNLESS(!args->alibi_slopes.rank, "alibi_slopes");
    REFUSE_UNLESS(!args->sinks.rank, "sinks");
    REFUSE_UNLESS(!args->k_scales.rank && args->k_scale == 1, "k_scale");
    REFUSE_UNLESS(!args->v_scales.rank && args->v_scale == 1, "v_scale");
    starts = (const int32_t *)args->query_start_loc.data;
    for (r = 0; r < args->seq_lens.shape[0]; r++) REFUSE_UNLESS(starts[r + 1] - starts[r] <= 1, "query_start_loc");
    return honest_attention(args);
}
