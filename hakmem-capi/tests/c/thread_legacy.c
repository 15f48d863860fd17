/* A thread dies and leaves 128 MB; another thread frees it; then as much is allocated in another size.
 * The memory of the dead thread must serve the new blocks: resident memory grows little. */
#include "../support/test.h"
#include <pthread.h>
#include <sys/mman.h>

static const size_t TOTAL = 128u << 20;
static unsigned char **blocks; /* mapped, so that it is no allocation */
static size_t size, count;

static void *allocate(void *arg) {
    for (size_t i = 0; i < count; i++) {
        blocks[i] = malloc(size);
        CHECK(blocks[i] != NULL);
        fill(blocks[i], size, i);
    }
    return arg;
}

static void *release(void *arg) {
    for (size_t i = 0; i < count; i++) {
        CHECK(holds(blocks[i], size, i));
        free(blocks[i]);
    }
    return arg;
}

static void in_thread(void *(*body)(void *)) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, body, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 4); /* first size, second size, who frees and allocates: "main" or "thread" */
    int by_thread = !strcmp(argv[3], "thread");
    blocks = mmap(NULL, 64 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(blocks != MAP_FAILED);
    memset(blocks, 1, 64 << 20); /* resident from the start, so that it does not count below */

    size = (size_t)atol(argv[1]);
    count = TOTAL / size;
    CHECK(count <= (64u << 20) / sizeof *blocks);
    long base = resident_kib();
    in_thread(allocate);
    long full = resident_kib() - base;
    by_thread ? in_thread(release) : (void)release(NULL);
    long freed = resident_kib() - base;

    size = (size_t)atol(argv[2]);
    count = TOTAL / size;
    by_thread ? in_thread(allocate) : (void)allocate(NULL);
    long again = resident_kib() - base;
    release(NULL);
    dprintf(1, "%s -> %s by %s: %ld KiB left by the thread, %ld after the free, %ld with the other size (+%ld%%)\n",
           argv[1], argv[2], argv[3], full, freed, again, (again - full) * 100 / full);
    CHECK(full >= (long)(TOTAL / 1024));
    CHECK(again <= full + full / 4);
    return 0;
}
