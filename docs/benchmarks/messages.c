/* Threads in a ring: each sends its neighbour blocks of random size, and frees those that it gets. At most 16 are under
 * way to each. What that takes: messages THREADS LEAST MOST COUNT [WRITE]
 *
 * Each thread sends COUNT blocks of LEAST to MOST bytes. The sender writes to the first WRITE bytes (all of them unless
 * said otherwise), and the receiver reads them.
 *   cc -O2 -pthread docs/benchmarks/messages.c -o /tmp/messages
 *   LD_PRELOAD=target/release/libhakmem.so /tmp/messages 64 200 60200 6000 */
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { PLACES = 16, MOST_THREADS = 256 };

struct message {
    size_t size;
    char bytes[];
};

static struct {
    _Alignas(128) struct message *at[PLACES];
    atomic_uint sent, got;
} queues[MOST_THREADS];
static long threads, least, most, count, written = LONG_MAX;

static size_t touched(struct message *message) {
    size_t room = message->size - sizeof *message;
    return room < (size_t)written ? room : (size_t)written;
}

static int receive(long me) {
    unsigned got = atomic_load(&queues[me].got);
    if (got == atomic_load(&queues[me].sent)) return 0;
    struct message *message = queues[me].at[got % PLACES];
    atomic_store(&queues[me].got, got + 1);
    for (size_t i = 0; i < touched(message); i += 64) (void)*(volatile char *)&message->bytes[i];
    free(message);
    return 1;
}

static void *run(void *number) {
    long me = (long)number, to = (me + 1) % threads, received = 0;
    unsigned random = me * 77 + 1;
    for (long i = 0; i < count; i++) {
        random = random * 1103515245 + 12345;
        size_t size = sizeof(struct message) + least + (random >> 8) % (most - least + 1);
        struct message *message = malloc(size);
        if (!message) exit(1);
        message->size = size;
        memset(message->bytes, 1, touched(message));
        unsigned sent = atomic_load(&queues[to].sent);
        while (sent - atomic_load(&queues[to].got) == PLACES) {
            if (receive(me)) received++;
            else sched_yield();
        }
        queues[to].at[sent % PLACES] = message;
        atomic_store(&queues[to].sent, sent + 1);
    }
    while (received < count) {
        if (receive(me)) received++;
        else sched_yield();
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 5 || argc > 6 || (threads = atol(argv[1])) < 1 || threads > MOST_THREADS ||
        (least = atol(argv[2])) < 0 || (most = atol(argv[3])) < least || (count = atol(argv[4])) < 1 ||
        (argc == 6 && (written = atol(argv[5])) < 0)) {
        fprintf(stderr, "usage: messages THREADS LEAST MOST COUNT [WRITE]\n");
        return 2;
    }
    pthread_t thread[MOST_THREADS];
    for (long i = 0; i < threads; i++)
        if (pthread_create(&thread[i], NULL, run, (void *)i)) return 1;
    for (long i = 0; i < threads; i++) pthread_join(thread[i], NULL);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("peak resident %ld MiB, %ld page faults, %.2f s of processor time\n", usage.ru_maxrss >> 10, usage.ru_minflt,
           usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6);
    return 0;
}
