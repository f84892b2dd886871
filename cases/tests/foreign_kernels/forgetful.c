/* Describes itself in another way every time. */
#define OWN_INFO
#include "honest.h"
int32_t attest_info(attest_kernel_info *info) {
    static int64_t dim = 64;
    honest_info(info);
    info->head_dim_max = dim++;
    return ATTEST_OK;
}
int32_t attest_paged_attention(const attest_attention_args *args) { return honest_attention(args); }
