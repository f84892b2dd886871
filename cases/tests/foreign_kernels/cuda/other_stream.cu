/* Works on the default stream in place of the one that it is given.
 * expect: work outside the call's order */
#include "honest.cuh"
int32_t attest_paged_attention(const attest_attention_args *args) {
    attest_attention_args other = *args;
    other.stream = nullptr;
    return honest_attention(&other);
}
