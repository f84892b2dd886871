/* Does not declare softcap, and ignores it in place of refusing it. */
#define OWN_INFO
#include "honest.h"
int32_t attest_info(attest_kernel_info *info) {
    honest_info(info);
    info->options &= ~(uint32_t)ATTEST_CAN_SOFTCAP;
    return ATTEST_OK;
}
int32_t attest_paged_attention(const attest_attention_args *args) {
    attest_attention_args plain;
    ATTEST_TRY(attest_check_attention(args));
    plain = *args;
    plain.flags &= ~(uint32_t)ATTEST_SOFTCAP;
    return honest_attention(&plain);
}
