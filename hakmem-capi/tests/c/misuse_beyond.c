/* Mistakes with a small block when the magazine of the freeing thread is full, so that blocks go home at
 * once.
 *
 *   misuse_beyond own|other|orphan twice|realloc|interior|misaligned
 *
 * The block is the freeing thread's own, that of another thread, or that of a thread that has ended. */
#include "../support/misuse.h"
#include <pthread.h>

enum { BLOCKS = 4000 };

static char *blocks[BLOCKS];
static int step;

static void reach(int wanted) {
    while (__atomic_load_n(&step, __ATOMIC_ACQUIRE) < wanted) usleep(100);
}

static void *allocate_them(void *stay) {
    for (int i = 0; i < BLOCKS; i++) CHECK(blocks[i] = malloc(100));
    __atomic_store_n(&step, 1, __ATOMIC_RELEASE);
    if (stay) reach(2);
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    pthread_t thread;
    int orphan = !strcmp(argv[1], "orphan");
    if (!strcmp(argv[1], "own")) {
        allocate_them(NULL);
    } else {
        CHECK(pthread_create(&thread, NULL, allocate_them, orphan ? NULL : argv) == 0);
        reach(1);
        if (orphan) CHECK(pthread_join(thread, NULL) == 0);
    }
    /* Every second one, so that no slab becomes empty. */
    for (int i = 0; i < BLOCKS; i += 2) free(blocks[i]);
    char *block = blocks[BLOCKS - 3];
    if (!strcmp(argv[2], "interior")) {
        free(announce(block + 32));
    } else if (!strcmp(argv[2], "misaligned")) {
        free(announce(block + 1));
    } else if (!strcmp(argv[2], "realloc")) {
        announce(block);
        free(block);
        block = realloc(block, 1000);
    } else {
        announce(block);
        free(block);
        free(block);
    }
    return survived();
}
