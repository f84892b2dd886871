/* Says yes to calls that make no sense, and does nothing. */
#include "honest.h"
int32_t attest_paged_attention(const attest_attention_args *args) {
    int right_struct = args->version == ATTEST_ABI_VERSION && args->struct_size == sizeof *args && args->q.rank == 3;
    attest_attention_args quiet = *args;
    int32_t code;
    if (!right_struct) return ATTEST_INVALID_ARGUMENT;
    quiet.error_bytes = 0;
    code = honest_attention(&quiet);
    return code == ATTEST_INVALID_ARGUMENT ? ATTEST_OK : code;
}
