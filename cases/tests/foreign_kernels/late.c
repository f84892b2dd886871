/* Hands the work to a thread and returns. */
#include "honest.h"
#include <pthread.h>
#include <unistd.h>
static void *work(void *args) {
    usleep(1000);
    honest_attention((const attest_attention_args *)args);
    free(args);
    return NULL;
}
int32_t attest_paged_attention(const attest_attention_args *args) {
    pthread_t thread;
    attest_attention_args *copy;
    ATTEST_TRY(attest_check_attention(args));
    copy = (attest_attention_args *)malloc(sizeof *copy);
    *copy = *args;
    copy->error = NULL;
    copy->error_bytes = 0;
    if (pthread_create(&thread, NULL, work, copy)) return ATTEST_FAILED;
    pthread_detach(thread);
    return ATTEST_OK;
}
