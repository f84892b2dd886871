/* A right kernel under other names, for kernels that spoil it. */
#define _GNU_SOURCE
#define attest_info honest_info
#define attest_paged_attention honest_attention
#include "kernel.c"
#undef attest_info
#undef attest_paged_attention

ATTEST_EXPORT int32_t attest_info(attest_kernel_info *info);
ATTEST_EXPORT int32_t attest_paged_attention(const attest_attention_args *args);

/* Bytes of a contiguous output. */
static inline size_t bytes_of(const attest_tensor *tensor) {
    return (size_t)(tensor->shape[0] * tensor->shape[1] * tensor->shape[2] * attest_size(tensor->dtype));
}

#ifndef OWN_INFO
int32_t attest_info(attest_kernel_info *info) { return honest_info(info); }
#endif
