/* Reads a slot that no request owns: the one behind the last key. */
#include "honest.h"
int32_t attest_paged_attention(const attest_attention_args *args) {
    int32_t code = honest_attention(args);
    const int32_t *lens = (const int32_t *)args->seq_lens.data, *table = (const int32_t *)args->block_table.data;
    if (code || !bytes_of(&args->out) || lens[0] % args->k_cache.shape[1] == 0) return code;
    float behind = attest_load(args->k_cache.dtype, args->k_cache.data, locate(&args->k_cache, table, lens[0], 0));
    float first = attest_load(args->out.dtype, args->out.data, 0);
    attest_save(args->out.dtype, args->out.data, 0, first + 0 * behind);
    return code;
}
