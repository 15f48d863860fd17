/* What the first allocations of a thread cost in resident memory: budget_threads one|seven.
 *
 * 200 threads are parked; then each makes its allocations, touches every byte and parks again. Prints the
 * growth for each thread in bytes, beyond the blocks where there are seven. */
#include "../support/test.h"
#include <pthread.h>

enum { THREADS = 200 };

static pthread_barrier_t meet;
static int all_sizes;

static const size_t sizes[] = {16, 64, 256, 1024, 4096, 8192, 20480};

static void *body(void *arg) {
    char stack[12 * 1024]; /* touched before we measure: the stack is no part of the price */
    void *blocks[7];
    int number = all_sizes ? 7 : 1;
    memset(stack, 1, sizeof stack);
    __asm__ volatile("" : : "r"(stack) : "memory");
    pthread_barrier_wait(&meet);
    pthread_barrier_wait(&meet); /* main has measured */
    for (int i = 0; i < number; i++) {
        blocks[i] = malloc(sizes[i]);
        CHECK(blocks[i] != NULL);
        memset(blocks[i], 1, sizes[i]);
    }
    pthread_barrier_wait(&meet);
    pthread_barrier_wait(&meet); /* main has measured again */
    for (int i = 0; i < number; i++) free(blocks[i]);
    return arg;
}

int main(int argc, char **argv) {
    static pthread_t threads[THREADS];
    CHECK(argc == 2);
    all_sizes = !strcmp(argv[1], "seven");
    pthread_barrier_init(&meet, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, body, NULL) == 0);
    pthread_barrier_wait(&meet);
    long before = resident_kib();
    pthread_barrier_wait(&meet);
    pthread_barrier_wait(&meet);
    long after = resident_kib();
    pthread_barrier_wait(&meet);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    long each = (after - before) * 1024 / THREADS;
    if (all_sizes)
        for (int i = 0; i < 7; i++) each -= (long)sizes[i];
    dprintf(1, "%ld\n", each);
    return 0;
}
