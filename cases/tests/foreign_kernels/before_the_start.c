/* Writes one element before the output. */
#include "honest.h"
int32_t attest_paged_attention(const attest_attention_args *args) {
    int32_t code = honest_attention(args);
    if (!code) ((volatile char *)args->out.data)[-2] = 0;
    return code;
}
