/* A program with the archive in it: malloc is ours, the figures show it, and threads come and go. */
#include "api_check.h"
#include <hakmem.h>
#include <pthread.h>

static void *body(void *argument) {
    void *p[100];
    for (size_t i = 0; i < 100; i++) {
        p[i] = malloc(i * 50);
        CHECK(p[i] != NULL);
        fill(p[i], i * 50, i);
    }
    for (size_t i = 0; i < 100; i++) {
        CHECKN(same(p[i], i * 50, i), i);
        free(p[i]);
    }
    return argument;
}

int main(void) {
    struct hak_stats_t before, after;
    pthread_t thread[8];
    free(malloc(1)); /* gives this thread its heap */
    hak_stats(&before, sizeof before);
    void *p = malloc(8 * MIB), *q = strdup("through libc");
    hak_stats(&after, sizeof after);
    CHECK(p != NULL && q != NULL);
    CHECKN(after.large_allocs == before.large_allocs + 1, after.large_allocs);
    CHECK(hak_usable_size(q) >= strlen("through libc") + 1); /* aborts if it is not ours */
    hak_free(p);
    hak_free(q);
    for (int round = 0; round < 20; round++) {
        for (size_t i = 0; i < 8; i++) CHECK(pthread_create(&thread[i], NULL, body, NULL) == 0);
        for (size_t i = 0; i < 8; i++) CHECK(pthread_join(thread[i], NULL) == 0);
    }
    hak_stats(&after, sizeof after);
    CHECKN(after.threads_started - before.threads_started == 160, after.threads_started);
    CHECKN(after.threads_exited - before.threads_exited == 160, after.threads_exited);
    printf("%s\n", hak_version());
    return 0;
}
