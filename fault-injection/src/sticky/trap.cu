// A kernel that ends its context: what a sticky error is.
#include "arch.cuh"

struct TrapParams {
    u64 unused;
};

#ifdef ATTEST_SIMT
#error "the host device has no context to lose"
#endif

ATTEST_KERNEL(trap, TrapParams, 32) {
    if (p.unused == 0) asm volatile("trap;");
}
