// What it costs to free blocks that other threads allocated, alone: owners allocate, hand over, and wait;
// only then do others free.
//   cc -O2 -pthread -o remote-free remote-free.c && LD_PRELOAD=... ./remote-free [ROUNDS [BLOCKS [SIZE]]]
// Prints a line of JSON: for each form (owners to freers) nanoseconds of the freeing threads' processor time
// per block, and what the owners' next allocation of as many blocks took, which includes taking the freed
// ones back. Medians over the rounds.
//
// Where several free, each takes every third block, so that all free into the same parts of the heap at once;
// where several own, the freer takes one block of each in turn. Processor time, because three threads need
// not fit the machine.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST = 3, WARM = 3 };

static int owners, freers, rounds = 21;
static size_t blocks = 100000, size = 64;
static void **table;
static pthread_barrier_t barrier;
static double spent[2 * MOST]; // of this round, seconds: owners', then freers'

static double processor_time(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void fail(const char *what) {
    fprintf(stderr, "remote-free: %s\n", what);
    exit(1);
}

// Block i is made by owner i % owners and freed by freer i % freers.
static void *owner(void *argument) {
    size_t self = (size_t)argument;
    for (int round = 0; round < rounds + WARM; round++) {
        double start = processor_time();
        for (size_t i = self; i < blocks; i += (size_t)owners) {
            size_t *block = malloc(size);
            if (!block) fail("no memory");
            *block = i;
            table[i] = block;
        }
        spent[self] = processor_time() - start;
        pthread_barrier_wait(&barrier); // all are made
        pthread_barrier_wait(&barrier); // all are freed
        pthread_barrier_wait(&barrier); // the round is written down
    }
    return NULL;
}

static void *freer(void *argument) {
    size_t self = (size_t)argument;
    for (int round = 0; round < rounds + WARM; round++) {
        pthread_barrier_wait(&barrier);
        // A consumer has read what it frees; that is not measured.
        for (size_t i = self; i < blocks; i += (size_t)freers)
            if (*(size_t *)table[i] != i) fail("a block does not hold what was written into it");
        double start = processor_time();
        for (size_t i = self; i < blocks; i += (size_t)freers) free(table[i]);
        spent[MOST + self] = processor_time() - start;
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_ns(double *seconds) {
    qsort(seconds, (size_t)rounds, sizeof *seconds, ascending);
    return seconds[rounds / 2] * 1e9 / (double)blocks;
}

static void form(const char *name, int own, int free_, const char *after) {
    pthread_t threads[2 * MOST];
    double *allocating = calloc((size_t)rounds, sizeof(double)), *freeing = calloc((size_t)rounds, sizeof(double));
    if (!allocating || !freeing) fail("no memory");
    owners = own;
    freers = free_;
    pthread_barrier_init(&barrier, NULL, (unsigned)(own + free_ + 1));
    for (int i = 0; i < own + free_; i++) {
        void *self = (void *)(size_t)(i < own ? i : i - own);
        if (pthread_create(&threads[i], NULL, i < own ? owner : freer, self)) fail("cannot start a thread");
    }
    for (int round = 0; round < rounds + WARM; round++) {
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
        for (int i = 0; i < MOST && round >= WARM; i++) {
            if (i < own) allocating[round - WARM] += spent[i];
            if (i < free_) freeing[round - WARM] += spent[MOST + i];
        }
        pthread_barrier_wait(&barrier);
    }
    for (int i = 0; i < own + free_; i++) pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&barrier);
    printf("\"%s\": {\"free\": %.3f, \"allocate\": %.3f}%s", name, median_ns(freeing), median_ns(allocating), after);
    free(allocating);
    free(freeing);
}

int main(int count, char **words) {
    if (count > 1) rounds = atoi(words[1]);
    if (count > 2) blocks = strtoul(words[2], NULL, 10);
    if (count > 3) size = strtoul(words[3], NULL, 10);
    if (rounds < 1 || blocks < 1 || size < sizeof(size_t)) fail("usage: remote-free [ROUNDS [BLOCKS [SIZE]]]");
    table = malloc(blocks * sizeof *table);
    if (!table) fail("no memory");
    memset(table, 0, blocks * sizeof *table);
    printf("{");
    form("1:1", 1, 1, ", ");
    form("1:3", 1, MOST, ", ");
    form("3:1", MOST, 1, "}\n");
    free(table);
    return 0;
}
