/* Declares sinks, and refuses them. */
#include "honest.h"
int32_t attest_paged_attention(const attest_attention_args *args) {
    attest_place place = {args->error, args->error_bytes};
    ATTEST_TRY(attest_check_attention(args));
    if (args->sinks.rank) return attest_refuse(place, ATTEST_UNSUPPORTED, "sinks", "are not supported");
    return honest_attention(args);
}
