/* Passive false sharing: one thread allocates small blocks that share cache lines and gives one to each
 * thread, which frees it and then allocates, writes and frees blocks of that size in a loop of its own.
 *   cc -O2 -pthread -o cache-scratch cache-scratch.c && LD_PRELOAD=... ./cache-scratch THREADS SIZE
 * Prints nanoseconds per write. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
enum { ROUNDS = 20000, WRITES = 1000 };
static size_t size;
static pthread_barrier_t start;
static void *work(void *given) {
    pthread_barrier_wait(&start);
    free(given);
    for (int i = 0; i < ROUNDS; i++) {
        volatile char *block = malloc(size);
        for (int j = 0; j < WRITES; j++)
            block[j % size]++;
        free((void *)block);
    }
    return NULL;
}
int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 2;
    size = argc > 2 ? (size_t)atoi(argv[2]) : 8;
    pthread_t id[64];
    struct timespec a, b;
    pthread_barrier_init(&start, NULL, threads + 1);
    for (int i = 0; i < threads; i++)
        pthread_create(&id[i], NULL, work, malloc(size));
    pthread_barrier_wait(&start);
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (int i = 0; i < threads; i++)
        pthread_join(id[i], NULL);
    clock_gettime(CLOCK_MONOTONIC, &b);
    double ns = (b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec);
    printf("%.3f ns per write\n", ns / ((double)ROUNDS * WRITES));
}
