/* Writes where no memory is.
 * expect: CUDA_ERROR_ILLEGAL_ADDRESS */
#include "honest.cuh"
int32_t attest_paged_attention(const attest_attention_args *args) {
    int32_t code = honest_attention(args);
    if (code == ATTEST_OK) put<<<1, 1, 0, (cudaStream_t)args->stream>>>((char *)16, 0);
    return code;
}
