// The kernel of the conformance suite: order shows in what it leaves behind.
#include "arch.cuh"

struct ProbeParams {
    int* values;
    int count;
    int factor;
    int addend;
    int unused;
};

#ifdef CONFORMANCE_BROKEN
#error "broken on purpose"
#endif

// values[i] = values[i] * factor + addend: two launches in the wrong order give another result.
ATTEST_KERNEL(conformance_probe, ProbeParams, 128) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.count) p.values[i] = p.values[i] * p.factor + p.addend;
}
