/* A small block freed by two threads. */
#include "../support/misuse.h"
#include <pthread.h>

static void *free_it(void *block) {
    free(block);
    return NULL;
}

int main(void) {
    void *block = announce(malloc(100));
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, free_it, block) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    free(block);
    malloc_trim(0);
    return survived();
}
