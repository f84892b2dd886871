/* Gives other bits every time, all of them within the bound. */
#include "honest.h"
int32_t attest_paged_attention(const attest_attention_args *args) {
    static int calls;
    int32_t code = honest_attention(args);
    if (!code && calls++ % 2 && bytes_of(&args->out)) *(unsigned char *)args->out.data ^= 1;
    return code;
}
