/* Succeeds and leaves an error message. */
#include "honest.h"
int32_t attest_paged_attention(const attest_attention_args *args) {
    int32_t code = honest_attention(args);
    if (!code && args->error_bytes) snprintf(args->error, (size_t)args->error_bytes, "launch failed, trying another way");
    return code;
}
