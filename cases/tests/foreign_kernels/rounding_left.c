/* Leaves another rounding mode behind. */
#include "honest.h"
#include <fenv.h>
int32_t attest_paged_attention(const attest_attention_args *args) {
    int32_t code = honest_attention(args);
    if (!code) fesetround(FE_TOWARDZERO);
    return code;
}
