/* Is right, and prints. */
#include "honest.h"
int32_t attest_paged_attention(const attest_attention_args *args) {
    printf("computing %d rows\n{}", (int)args->q.shape[0]);
    fflush(stdout);
    return honest_attention(args);
}
