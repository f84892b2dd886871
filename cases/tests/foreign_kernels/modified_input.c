/* Changes the block table while it works, and puts it back. */
#include "honest.h"
int32_t attest_paged_attention(const attest_attention_args *args) {
    int32_t code = honest_attention(args), first;
    volatile int32_t *table = (volatile int32_t *)args->block_table.data;
    if (code) return code;
    first = table[0];
    table[0] = -1;
    table[0] = first;
    return code;
}
