/* Threads with the smallest stack that is allowed, and detached threads that allocate while the process
 * ends. */
#include "../support/test.h"
#include <limits.h>
#include <pthread.h>

int hak_stats(void *out, size_t size);
#pragma weak hak_stats

static long done;
static FILE *nowhere;

/* All kinds of entry, with a frame of its own that is as small as can be. */
static void *all_paths(void *arg) {
    static const size_t sizes[] = {1, 16, 100, 1000, 5000, 20000, 70000, 300000, 3000000};
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned char *p = malloc(sizes[i]);
        CHECK(p != NULL);
        p[0] = p[sizes[i] - 1] = 1;
        p = realloc(p, sizes[i] * 2);
        CHECK(p != NULL && p[0] == 1 && p[sizes[i] - 1] == 1);
        free(p);
        p = calloc(3, sizes[i]);
        CHECK(p != NULL && p[0] == 0 && p[3 * sizes[i] - 1] == 0);
        free(p);
        CHECK(posix_memalign((void **)&p, 4096, sizes[i]) == 0);
        free(p);
    }
    malloc_trim(0);
    /* Only called: it leaves slabs out if who has their lock is stopped for a second. */
    mallinfo2();
    /* Not on the stack; what is in it nobody reads. */
    static char figures[4096];
    CHECK(hak_stats == NULL || hak_stats(figures, sizeof figures) == 0);
#ifdef __GLIBC__
    CHECK(nowhere == NULL || malloc_info(0, nowhere) == 0);
#endif
    __atomic_add_fetch(&done, 1, __ATOMIC_RELAXED);
    return arg;
}

static void *ends(void *arg) {
    puts("ok");
    exit(0);
    return arg;
}

static void tiny_stacks(void) {
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    size_t least = (size_t)sysconf(_SC_THREAD_STACK_MIN);
    /* musl allows 2 KiB, on which its own printf has no room. */
    if (least < 16384) least = 16384;
    CHECK(pthread_attr_setstacksize(&attr, least) == 0);
    CHECK((nowhere = fopen("/dev/null", "w")) != NULL);
    for (int i = 0; i < 100; i++) {
        pthread_t threads[4];
        for (int j = 0; j < 4; j++) CHECK(pthread_create(&threads[j], &attr, all_paths, NULL) == 0);
        for (int j = 0; j < 4; j++) CHECK(pthread_join(threads[j], NULL) == 0);
    }
    CHECK(done == 400);
    CHECK(mallinfo2().arena > 0);
    /* Statistics at exit, from such a thread. */
    pthread_t thread;
    CHECK(pthread_create(&thread, &attr, ends, NULL) == 0);
    pthread_join(thread, NULL);
}

static void *forever(void *arg) {
    uint64_t state = (uintptr_t)arg * 77777 + 1;
    box *kept[64] = {0};
    for (;;) {
        unsigned at = next_random(&state) % 64;
        if (kept[at]) box_free(kept[at]);
        kept[at] = box_make(random_size(&state, 0), state);
        __atomic_add_fetch(&done, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

/* Detached threads that come and go all the time. */
static void *come_and_go(void *arg) {
    pthread_t thread;
    all_paths(NULL);
    if (pthread_create(&thread, NULL, come_and_go, arg) == 0) pthread_detach(thread);
    return NULL;
}

static void at_exit(void) {
    for (size_t size = 1; size < 10000000; size *= 3) free(malloc(size));
    usleep(3000); /* the others go on meanwhile */
}

__attribute__((destructor)) static void at_very_end(void) { free(realloc(malloc(100), 100000)); }

int main(int argc, char **argv) {
    CHECK(argc == 2);
    if (!strcmp(argv[1], "tiny")) {
        tiny_stacks();
        return 1;
    }
    CHECK(atexit(at_exit) == 0);
    for (uintptr_t i = 0; i < 6; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, i < 4 ? forever : come_and_go, (void *)i) == 0);
        CHECK(pthread_detach(thread) == 0);
    }
    while (__atomic_load_n(&done, __ATOMIC_RELAXED) < 2000) usleep(1000);
    puts("ok");
    return 0;
}
