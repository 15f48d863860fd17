/* Threads in a ring that send each other blocks, and in between make and free blocks of their own. What that takes:
 * rounds THREADS ROUNDS MESSAGES OWN LEAST MOST
 *
 * In each of ROUNDS every thread sends its neighbour MESSAGES blocks and frees those that it gets (at most 16 are under way
 * to each), then allocates OWN blocks (at most 4,096) and frees them all. All blocks have LEAST to MOST bytes, and are
 * wholly written.
 *   cc -O2 -pthread docs/benchmarks/rounds.c -o /tmp/rounds
 *   LD_PRELOAD=target/release/libhakmem.so /tmp/rounds 16 400 200 384 100 4000 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PLACES = 16, MOST_THREADS = 256, MOST_OWN = 4096 };

static struct {
    _Alignas(128) void *at[PLACES];
    atomic_uint sent, got;
} queues[MOST_THREADS];
static long threads, rounds, messages, own, least, most;

static int receive(long me) {
    unsigned got = atomic_load(&queues[me].got);
    if (got == atomic_load(&queues[me].sent)) return 0;
    void *block = queues[me].at[got % PLACES];
    atomic_store(&queues[me].got, got + 1);
    free(block);
    return 1;
}

static void *make(unsigned *random) {
    *random = *random * 1103515245 + 12345;
    size_t size = least + (*random >> 8) % (most - least + 1);
    void *block = malloc(size);
    if (!block) exit(1);
    return memset(block, 1, size);
}

static void *run(void *number) {
    long me = (long)number, to = (me + 1) % threads, received = 0;
    unsigned random = me * 77 + 1;
    void *mine[MOST_OWN];
    for (long round = 0; round < rounds; round++) {
        for (long i = 0; i < messages; i++) {
            void *block = make(&random);
            unsigned sent = atomic_load(&queues[to].sent);
            while (sent - atomic_load(&queues[to].got) == PLACES) {
                if (receive(me)) received++;
                else sched_yield();
            }
            queues[to].at[sent % PLACES] = block;
            atomic_store(&queues[to].sent, sent + 1);
            received += receive(me);
        }
        for (long i = 0; i < own; i++) mine[i] = make(&random);
        for (long i = 0; i < own; i++) free(mine[i]);
    }
    while (received < rounds * messages) {
        if (receive(me)) received++;
        else sched_yield();
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 7) {
        fprintf(stderr, "usage: %s THREADS ROUNDS MESSAGES OWN LEAST MOST\n", argv[0]);
        return 2;
    }
    threads = atol(argv[1]), rounds = atol(argv[2]), messages = atol(argv[3]), own = atol(argv[4]);
    least = atol(argv[5]), most = atol(argv[6]);
    if (threads < 1 || threads > MOST_THREADS || own < 0 || own > MOST_OWN || least < 1 || most < least) {
        fprintf(stderr, "up to %d threads and %d blocks of their own, of 1 byte or more\n", MOST_THREADS, MOST_OWN);
        return 2;
    }
    pthread_t thread[MOST_THREADS];
    for (long i = 0; i < threads; i++) {
        if (pthread_create(&thread[i], NULL, run, (void *)i)) return 1;
    }
    for (long i = 0; i < threads; i++) pthread_join(thread[i], NULL);
    return 0;
}
