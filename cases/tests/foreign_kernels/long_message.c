/* Writes a message that is longer than its place. */
#include "honest.h"
int32_t attest_paged_attention(const attest_attention_args *args) {
    int32_t code = honest_attention(args);
    if (code && args->error) memset(args->error + args->error_bytes - 1, 0, 2);
    return code;
}
