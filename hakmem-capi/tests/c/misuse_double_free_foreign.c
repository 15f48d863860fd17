/* A small block of another thread, freed twice by one that does not own it. */
#include "../support/misuse.h"
#include <pthread.h>

static void *made;

static void *allocate_it(void *arg) {
    __atomic_store_n(&made, malloc(100), __ATOMIC_RELEASE);
    while (__atomic_load_n(&made, __ATOMIC_ACQUIRE)) usleep(100);
    for (int i = 0; i < 2000; i++) arg = malloc(100);
    malloc_trim(0);
    return arg;
}

int main(void) {
    pthread_t thread;
    void *block;
    CHECK(pthread_create(&thread, NULL, allocate_it, NULL) == 0);
    while (!(block = __atomic_load_n(&made, __ATOMIC_ACQUIRE))) usleep(100);
    announce(block);
    free(block);
    free(block);
    malloc_trim(0);
    __atomic_store_n(&made, NULL, __ATOMIC_RELEASE); /* its owner lives on and looks after its blocks */
    CHECK(pthread_join(thread, NULL) == 0);
    return survived();
}
