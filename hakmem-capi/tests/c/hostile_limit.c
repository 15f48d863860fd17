/* The address space limit is lowered in the middle: every function must give NULL and ENOMEM, all that
 * was freed must be there again, and repeated cycles must not map more and more. */
#include "../support/test.h"
#include <pthread.h>
#include <sys/resource.h>
#if __has_include("hakmem.h")
#include "hakmem.h"
#endif

static struct rlimit before;

static void limit_to(long more_kib) {
    struct rlimit now = {(rlim_t)(mapped_kib() + more_kib) * 1024, before.rlim_max};
    CHECK(setrlimit(RLIMIT_AS, &now) == 0);
}

static void lift_limit(void) { CHECK(setrlimit(RLIMIT_AS, &before) == 0); }

/* What the allocator says it has mapped, in KiB; else what the kernel says of the process. */
static long held_kib(void) {
#if __has_include("hakmem.h")
    int (*get_stats)(struct hak_stats_t *, size_t);
    *(void **)&get_stats = dlsym(RTLD_DEFAULT, "hak_stats");
    if (get_stats) {
        struct hak_stats_t stats;
        get_stats(&stats, sizeof stats);
        return (long)(stats.bytes_mapped / 1024);
    }
#endif
    return mapped_kib();
}

struct node {
    struct node *next;
    size_t size;
};

enum { WAYS = 9 };

static void *allocate(int way, size_t size) {
    void *p = NULL;
    int error;
    errno = 0;
    switch (way) {
    case 0: return malloc(size);
    case 1: return calloc(1, size);
    case 2: return calloc(size / 8 + 1, 8);
    case 3: return realloc(NULL, size);
    case 4: return reallocarray(NULL, size / 8 + 1, 8);
    case 5: return aligned_alloc(64, (size + 63) / 64 * 64);
    case 6: return memalign(4096, size);
    case 7: return size < 4096 ? malloc(size) : valloc(size);
    default:
        error = posix_memalign(&p, 256, size);
        CHECK(error == 0 || error == ENOMEM);
        if (error) p = NULL, errno = error;
        return p;
    }
}

/* Allocates until nothing more comes, checks that the failures are clean, and frees all. Returns the
 * number. */
static long exhaust(size_t size) {
    struct node *list = NULL;
    long number = 0;
    for (int way = 0, misses = 0; misses < WAYS; way = (way + 1) % WAYS) {
        struct node *n = allocate(way, size);
        if (!n) {
            CHECK(errno == ENOMEM);
            misses++;
            continue;
        }
        misses = 0;
        n->next = list, n->size = size;
        memset((char *)n + sizeof *n, 0x5a, size - sizeof *n < 256 ? size - sizeof *n : 256);
        list = n;
        number++;
    }
    if (list) { /* a block that cannot grow stays as it is */
        memset((char *)list + sizeof *list, 0x77, size - sizeof *list);
        errno = 0;
        CHECK(realloc(list, (size_t)1 << 32) == NULL && errno == ENOMEM);
        for (size_t i = sizeof *list; i < size; i++) CHECK(((unsigned char *)list)[i] == 0x77);
    }
    while (list) {
        struct node *next = list->next;
        CHECK(list->size == size);
        errno = 77;
        free(list);
        CHECK(errno == 77);
        list = next;
    }
    return number;
}

static void *thread_body(void *arg) {
    *(long *)arg = exhaust(200);
    return NULL;
}

int main(void) {
    static const size_t sizes[] = {24, 300, 3000, 30000, 150000, 900000, 3000000, 20000000};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    long held[12], first[SIZES];
    CHECK(getrlimit(RLIMIT_AS, &before) == 0);
    free(malloc(1));
    for (int round = 0; round < 12; round++) {
        limit_to(64 * 1024);
        for (int i = 0; i < SIZES; i++) {
            long number = exhaust(sizes[i]);
            if (number == 0) dprintf(2, "round %d: nothing for %zu bytes, all else is free\n", round, sizes[i]);
            CHECK(number > 0);
            if (round == 1) first[i] = number;
            /* What was free serves again: not much less than before, whatever sizes came between. */
            if (round > 1) CHECK(number >= first[i] / 2);
            if (round == 1 || round == 11) dprintf(1, "round %d: %ld blocks of %zu\n", round, number, sizes[i]);
        }
        lift_limit();
        for (int i = 0; i < SIZES; i++) {
            void *p = malloc(sizes[i]);
            CHECK(p != NULL);
            memset(p, 1, sizes[i]);
            free(p);
        }
        pthread_t thread;
        long number = 0;
        limit_to(1024 * 1024); /* however long it takes until the next one */
        CHECK(pthread_create(&thread, NULL, thread_body, &number) == 0);
        usleep(2000);
        limit_to(32 * 1024); /* falls while the thread runs */
        CHECK(pthread_join(thread, NULL) == 0 && number > 0);
        lift_limit();
        malloc_trim(0);
        held[round] = held_kib();
    }
    dprintf(1, "held %ld KiB after round 3, %ld KiB after round 12\n", held[2], held[11]);
    CHECK(held[11] <= held[2] + 8192);
    puts("ok");
    return 0;
}
