/* A program on the preloaded library that also opens a copy of it: two allocators, which know nothing of
 * each other.
 * Usage: dlopen_both COPY */
#include "api_check.h"
#include <hakmem.h>
#include <pthread.h>

typedef int (*stats_fn)(struct hak_stats_t *, size_t);
typedef void *(*malloc_fn)(size_t);
typedef void (*free_fn)(void *);

static malloc_fn copy_malloc;
static free_fn copy_free;

static void *both(void *argument) {
    enum { COUNT = 500 };
    void *own[COUNT], *copied[COUNT];
    size_t seed = (size_t)argument;
    for (int round = 0; round < 30; round++) {
        for (size_t i = 0; i < COUNT; i++) {
            own[i] = malloc(i * 3);
            copied[i] = copy_malloc(i * 3);
            CHECK(own[i] != NULL && copied[i] != NULL);
            fill(own[i], i * 3, seed);
            fill(copied[i], i * 3, seed + 1);
        }
        for (size_t i = 0; i < COUNT; i++) {
            CHECKN(same(own[i], i * 3, seed) && same(copied[i], i * 3, seed + 1), i);
            free(own[i]);
            copy_free(copied[i]);
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    void *handle = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    CHECK(handle != NULL);
    copy_malloc = (malloc_fn)dlsym(handle, "hak_malloc");
    copy_free = (free_fn)dlsym(handle, "hak_free");
    stats_fn copy_stats = (stats_fn)dlsym(handle, "hak_stats");
    stats_fn own_stats = (stats_fn)dlsym(RTLD_DEFAULT, "hak_stats");
    CHECK(copy_malloc != NULL && copy_free != NULL && copy_stats != NULL && own_stats != NULL);
    CHECK(copy_stats != own_stats);

    /* What one serves, the other does not count. */
    struct hak_stats_t own[2], copied[2];
    own_stats(&own[0], sizeof own[0]);
    copy_stats(&copied[0], sizeof copied[0]);
    void *p[3];
    for (int i = 0; i < 3; i++) p[i] = malloc(8 * MIB);
    own_stats(&own[1], sizeof own[1]);
    copy_stats(&copied[1], sizeof copied[1]);
    CHECKN(own[1].large_allocs - own[0].large_allocs == 3, own[1].large_allocs - own[0].large_allocs);
    CHECKN(copied[1].large_allocs == copied[0].large_allocs, copied[1].large_allocs);
    for (int i = 0; i < 3; i++) free(p[i]);
    own_stats(&own[0], sizeof own[0]);
    copy_stats(&copied[0], sizeof copied[0]);
    void *q = copy_malloc(8 * MIB);
    own_stats(&own[1], sizeof own[1]);
    copy_stats(&copied[1], sizeof copied[1]);
    CHECKN(own[1].large_allocs == own[0].large_allocs, own[1].large_allocs);
    CHECKN(copied[1].large_allocs - copied[0].large_allocs == 1, copied[1].large_allocs);
    copy_free(q);

    pthread_t thread[4];
    for (size_t i = 0; i < 4; i++) CHECK(pthread_create(&thread[i], NULL, both, (void *)(i * 10)) == 0);
    both((void *)99);
    for (size_t i = 0; i < 4; i++) CHECK(pthread_join(thread[i], NULL) == 0);
    malloc_trim(0);
    puts("both ok");
    return 0;
}
