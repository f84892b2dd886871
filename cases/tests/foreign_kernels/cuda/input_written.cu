/* Changes the first page of the block table.
 * expect: input written */
#include "honest.cuh"
int32_t attest_paged_attention(const attest_attention_args *args) {
    int32_t code = honest_attention(args);
    if (code == ATTEST_OK) put<<<1, 1, 0, (cudaStream_t)args->stream>>>((char *)args->block_table.data + 3, 1);
    return code;
}
