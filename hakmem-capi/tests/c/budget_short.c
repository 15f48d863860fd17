/* Threads one after another, each of which makes and frees 64 small blocks: budget_short THREADS. */
#include "../support/test.h"
#include <pthread.h>

static void *body(void *arg) {
    void *blocks[64];
    for (int i = 0; i < 64; i++) {
        blocks[i] = malloc(16 + 16 * (unsigned)(i % 8));
        CHECK(blocks[i] != NULL);
        *(long *)blocks[i] = i;
    }
    for (int i = 0; i < 64; i++) free(blocks[i]);
    return arg;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    for (long i = atol(argv[1]); i > 0; i--) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, body, NULL) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
    }
    return 0;
}
