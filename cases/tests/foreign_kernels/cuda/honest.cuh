/* A right kernel under another name, for kernels that spoil it. */
#define attest_paged_attention honest_attention
#include "kernel.cu"
#undef attest_paged_attention

extern "C" ATTEST_EXPORT int32_t attest_paged_attention(const attest_attention_args *args);

/* Bytes of a contiguous output. */
inline size_t bytes_of(const attest_tensor *tensor) {
    return (size_t)(tensor->shape[0] * tensor->shape[1] * tensor->shape[2] * attest_size(tensor->dtype));
}

__global__ void put(char *at, char value) { *at = value; }
