/* A small block freed twice by a thread that ends. */
#include "../support/misuse.h"
#include <pthread.h>

static void *free_twice(void *block) {
    free(block);
    free(block);
    return NULL;
}

int main(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, free_twice, announce(malloc(100))) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    return survived();
}
