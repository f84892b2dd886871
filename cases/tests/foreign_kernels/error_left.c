/* After a refused call the next one fails with that call's error. */
#include "honest.h"
int32_t attest_paged_attention(const attest_attention_args *args) {
    static int32_t pending;
    int32_t code = pending;
    pending = 0;
    if (code) return ATTEST_FAILED;
    code = honest_attention(args);
    pending = code;
    return code;
}
