/* Gives bits that depend on the page size and the number of requests, all within the bound, and does not promise otherwise. */
#define OWN_INFO
#include "honest.h"
int32_t attest_info(attest_kernel_info *info) {
    honest_info(info);
    info->promises = 0;
    return ATTEST_OK;
}
int32_t attest_paged_attention(const attest_attention_args *args) {
    int32_t code = honest_attention(args);
    int odd = (int)(args->k_cache.shape[1] + args->seq_lens.shape[0] + args->k_cache.shape[2]) % 2;
    if (!code && bytes_of(&args->out)) *(unsigned char *)args->out.data ^= (unsigned char)odd;
    return code;
}
