/* Dies in the call. */
#include "honest.h"
int32_t attest_paged_attention(const attest_attention_args *args) {
    ATTEST_TRY(attest_check_attention(args));
    *(volatile int *)16 = 1;
    return ATTEST_OK;
}
