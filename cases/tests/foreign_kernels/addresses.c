/* Gives bits that depend on where the buffers lie. */
#include "honest.h"
int32_t attest_paged_attention(const attest_attention_args *args) {
    int32_t code = honest_attention(args);
    if (!code && bytes_of(&args->out)) *(unsigned char *)args->out.data ^= args->q.data < args->k_cache.data;
    return code;
}
