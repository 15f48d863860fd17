/* Many short threads one after another, or many at once. */
#include "../support/test.h"
#include <pthread.h>

enum { SMALL = 64, MOST = 2000 };

static pthread_barrier_t meet;
static box *left_behind;

/* Makes 64 small blocks and one of 40 KiB, frees all but one, which it leaves to the main thread. */
static void *short_life(void *arg) {
    uint64_t state = 0x9e3779b97f4a7c15ULL * ((uintptr_t)arg + 1);
    box *blocks[SMALL];
    for (int i = 0; i < SMALL; i++) blocks[i] = box_make(next_random(&state) % 600, next_random(&state));
    box_free(box_make(40 * 1024, 5));
    for (int i = 1; i < SMALL; i++) box_free(blocks[i]);
    left_behind = blocks[0];
    return NULL;
}

static void one_after_another(long from, long to) {
    for (long i = from; i < to; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, short_life, (void *)i) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
        box_free(left_behind);
    }
}

/* Holds blocks of many sizes while all the others do too; frees those of the neighbour at the end. */
static box *held[MOST][16];

static void *long_life(void *arg) {
    uintptr_t me = (uintptr_t)arg >> 16, all = (uintptr_t)arg & 0xffff;
    uint64_t state = 0x9e3779b97f4a7c15ULL * (me + 1);
    for (int i = 0; i < 16; i++) held[me][i] = box_make(16u << (i % 11), next_random(&state));
    pthread_barrier_wait(&meet);
    uintptr_t other = (me + 1) % all;
    for (int i = 0; i < 16; i++) box_free(held[other][i]);
    pthread_barrier_wait(&meet);
    return NULL;
}

static void all_at_once(uintptr_t count) {
    static pthread_t threads[MOST];
    pthread_attr_t attr;
    CHECK(count <= MOST);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 128 * 1024);
    pthread_barrier_init(&meet, NULL, (unsigned)count);
    for (uintptr_t i = 0; i < count; i++)
        CHECK(pthread_create(&threads[i], &attr, long_life, (void *)(i << 16 | count)) == 0);
    for (uintptr_t i = 0; i < count; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    pthread_barrier_destroy(&meet);
}

int main(int argc, char **argv) {
    CHECK(argc > 2);
    long count = atol(argv[2]), before, after;
    if (!strcmp(argv[1], "serial")) {
        one_after_another(0, count / 10);
        before = resident_kib();
        one_after_another(count / 10, count);
        after = resident_kib();
        dprintf(1, "resident %ld KiB after %ld threads, %ld KiB after %ld\n", before, count / 10, after, count);
        CHECK(after <= before + 2048);
    } else {
        for (int i = 0; i < 10; i++) all_at_once((uintptr_t)count);
        before = resident_kib();
        for (int i = 0; i < 4; i++) all_at_once((uintptr_t)count);
        after = resident_kib();
        dprintf(1, "resident %ld KiB after 10 times %ld threads at once, %ld KiB after 14\n", before, count, after);
        CHECK(after <= 200 * count); /* a third of it is the blocks, at the time of the most */
        CHECK(after <= before + before / 4 + 8192);
    }
    return 0;
}
