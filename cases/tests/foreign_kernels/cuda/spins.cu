/* Never ends.
 * expect: TIMED OUT */
#include "honest.cuh"
__global__ void spin(volatile int *never) {
    while (!*never) {
    }
}
__device__ int never;
int32_t attest_paged_attention(const attest_attention_args *args) {
    void *flag = nullptr;
    int32_t code = honest_attention(args);
    if (code != ATTEST_OK || cudaGetSymbolAddress(&flag, never) != cudaSuccess) return code;
    spin<<<1, 1, 0, (cudaStream_t)args->stream>>>((volatile int *)flag);
    return code;
}
