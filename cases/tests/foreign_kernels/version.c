/* Was built for another version of the header. */
#define OWN_INFO
#include "honest.h"
int32_t attest_info(attest_kernel_info *info) {
    honest_info(info);
    info->version = 2;
    return ATTEST_OK;
}
int32_t attest_paged_attention(const attest_attention_args *args) { return honest_attention(args); }
