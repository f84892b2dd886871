/* Checks for errors before its launch and not after: a failed call makes the next one fail.
 * expect: lingering error */
#include "honest.cuh"
int32_t attest_paged_attention(const attest_attention_args *args) {
    if (cudaGetLastError() != cudaSuccess) return ATTEST_FAILED;
    int32_t code = honest_attention(args);
    if (code != ATTEST_OK) put<<<1, 4096>>>(nullptr, 0);
    return code;
}
