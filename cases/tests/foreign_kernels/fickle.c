/* The same, and promises otherwise. */
#include "honest.h"
int32_t attest_paged_attention(const attest_attention_args *args) {
    int32_t code = honest_attention(args);
    int odd = (int)(args->k_cache.shape[1] + args->seq_lens.shape[0] + args->k_cache.shape[2]) % 2;
    if (!code && bytes_of(&args->out)) *(unsigned char *)args->out.data ^= (unsigned char)odd;
    return code;
}
