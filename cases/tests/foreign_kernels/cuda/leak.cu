/* Keeps device memory of every call.
 * expect: leak: keeps about */
#include "honest.cuh"
int32_t attest_paged_attention(const attest_attention_args *args) {
    void *lost = nullptr;
    int32_t code = honest_attention(args);
    if (code == ATTEST_OK && cudaMalloc(&lost, 4 << 20) != cudaSuccess) return ATTEST_FAILED;
    return code;
}
