/* Keeps a little memory of every call. */
#include "honest.h"
int32_t attest_paged_attention(const attest_attention_args *args) {
    void *volatile lost = malloc(100);
    (void)lost;
    return honest_attention(args);
}
