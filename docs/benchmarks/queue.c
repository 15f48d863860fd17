/* Producers and consumers of blocks of many sizes, by way of one queue. What that takes:
 * queue PRODUCERS CONSUMERS ROUNDS COUNT [LONG [PLACES]]
 *
 * In each of ROUNDS new producers send COUNT blocks each, of up to 2,000 bytes, and of each 32 one of up to LONG (100,000)
 * bytes, wholly written. Consumers, the same in all rounds, free them. At most PLACES (4,096) are under way.
 * Says in MiB what is in use at most and what is resident after each round, at last after the consumers' end.
 *   cc -O2 -pthread docs/benchmarks/queue.c -o /tmp/queue
 *   LD_PRELOAD=target/release/libhakmem.so /tmp/queue 100 100 6 8000 */
#include <malloc.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { MOST_PLACES = 1 << 16, MOST_THREADS = 1024 };

static void *queue[MOST_PLACES];
static long sent, got, in_use, most_in_use, count, longest = 100000, places = 4096;
static sem_t free_places, full_places;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void send(void *block) {
    sem_wait(&free_places);
    pthread_mutex_lock(&lock);
    queue[sent++ % places] = block;
    in_use += block ? malloc_usable_size(block) : 0;
    most_in_use = in_use > most_in_use ? in_use : most_in_use;
    pthread_mutex_unlock(&lock);
    sem_post(&full_places);
}

static void *produce(void *seed) {
    unsigned random = (uintptr_t)seed * 77 + 1;
    for (long i = 0; i < count; i++) {
        random = random * 1664525 + 1013904223;
        size_t size = (random >> 10) % (random >> 5 & 31 ? 2000 : longest) + 1;
        char *block = malloc(size);
        if (!block) exit(1);
        send(memset(block, 1, size));
    }
    return NULL;
}

static void *consume(void *nothing) {
    (void)nothing;
    for (;;) {
        sem_wait(&full_places);
        pthread_mutex_lock(&lock);
        void *block = queue[got++ % places];
        in_use -= block ? malloc_usable_size(block) : 0;
        pthread_mutex_unlock(&lock);
        sem_post(&free_places);
        if (!block) return NULL;
        free(block);
    }
}

static double resident(void) {
    long all = 0, pages = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    if (!statm || fscanf(statm, "%ld %ld", &all, &pages) != 2) exit(1);
    fclose(statm);
    return pages / 256.0;
}

int main(int argc, char **argv) {
    if (argc < 5) return fputs("queue PRODUCERS CONSUMERS ROUNDS COUNT [LONG [PLACES]]\n", stderr), 2;
    long producers = atol(argv[1]), consumers = atol(argv[2]), rounds = atol(argv[3]);
    count = atol(argv[4]);
    if (argc > 5) longest = atol(argv[5]);
    if (argc > 6) places = atol(argv[6]);
    if (producers > MOST_THREADS || consumers > MOST_THREADS || places > MOST_PLACES || longest < 1 || places < 1) return 2;
    static pthread_t makers[MOST_THREADS], takers[MOST_THREADS];
    sem_init(&free_places, 0, places);
    sem_init(&full_places, 0, 0);
    for (long i = 0; i < consumers; i++)
        if (pthread_create(&takers[i], NULL, consume, NULL)) return 1;
    for (long round = 0; round < rounds; round++) {
        for (long i = 0; i < producers; i++)
            if (pthread_create(&makers[i], NULL, produce, (void *)(uintptr_t)(i + round * producers))) return 1;
        for (long i = 0; i < producers; i++) pthread_join(makers[i], NULL);
        printf("%.0f ", resident());
        fflush(stdout);
    }
    for (long i = 0; i < consumers; i++) send(NULL);
    for (long i = 0; i < consumers; i++) pthread_join(takers[i], NULL);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    double seconds = usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
    printf("%.0f MiB, peak %.0f, in use %.1f, %.2f s, %ld faults\n", resident(), usage.ru_maxrss / 1024.0,
           most_in_use / 1048576.0, seconds, usage.ru_minflt);
    return 0;
}
