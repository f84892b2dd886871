/* Ignores windows. */
#include "honest.h"
int32_t attest_paged_attention(const attest_attention_args *args) {
    attest_attention_args plain;
    ATTEST_TRY(attest_check_attention(args));
    plain = *args;
    plain.window_left = plain.window_right = -1;
    return honest_attention(&plain);
}
