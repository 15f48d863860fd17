/* The middle of a small block, freed by a thread that ends. */
#include "../support/misuse.h"
#include <pthread.h>

static void *free_it(void *block) {
    free(block);
    return NULL;
}

int main(void) {
    char *block = malloc(200);
    CHECK(block != NULL);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, free_it, announce(block + 48)) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    return survived();
}
