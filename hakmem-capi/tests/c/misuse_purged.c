/* Mistakes with a block of a slab whose free pages have been given back.
 *
 *   misuse_purged own|other twice|interior
 *
 * Nothing is left of the block by which a second free could be told, but what the slab's record says. */
#include "../support/misuse.h"
#include <malloc.h>
#include <pthread.h>

enum { BLOCKS = 100000, KEPT = 100 };

static char *blocks[BLOCKS];
static char *block;
static int step;

static void *allocate_them(void *arg) {
    (void)arg;
    for (int i = 0; i < BLOCKS; i++) CHECK(blocks[i] = malloc(200));
    for (int i = 0; i < BLOCKS; i++)
        if (i % KEPT) free(blocks[i]);
    malloc_trim(0);
    int here = 0;
    __atomic_compare_exchange_n(&step, &here, 1, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
    while (__atomic_load_n(&step, __ATOMIC_ACQUIRE) < 2) usleep(100);
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    pthread_t thread;
    if (!strcmp(argv[1], "own")) {
        step = 2;
        allocate_them(NULL);
    } else {
        CHECK(pthread_create(&thread, NULL, allocate_them, NULL) == 0);
        while (__atomic_load_n(&step, __ATOMIC_ACQUIRE) < 1) usleep(100);
    }
    /* Half way between two that are kept, so in a page that is gone; and one that is kept. */
    int kept = !strcmp(argv[2], "interior");
    block = blocks[BLOCKS / 2 + (kept ? 0 : KEPT / 2)];
    free(announce(kept ? block + 16 : block));
    /* All that is cached goes home now, if it has not yet. */
    malloc_trim(0);
    return survived();
}
