/* A small block freed twice: KIND SIZE. However many others are freed in between, and whoever frees first, the
 * second free must find it: nothing is freed or allocated after that. */
#include "../support/misuse.h"
#include <pthread.h>
#include <semaphore.h>
#include <sys/resource.h>

enum { MANY = 2000 };

static sem_t freed, end;
static void *others[MANY];

/* The block lies in this thread's magazine, and the thread goes on. */
static void *free_and_stay(void *block) {
    void *own = malloc(malloc_usable_size(block)); /* so that there is a magazine to put it into */
    CHECK(own);
    free(own);
    free(block);
    CHECK(sem_post(&freed) == 0 && sem_wait(&end) == 0);
    return NULL;
}

static void *free_and_end(void *block) {
    free(block);
    return NULL;
}

static void *free_when_freed(void *block) {
    CHECK(sem_wait(&freed) == 0);
    free(block);
    return NULL;
}

/* The 17th block that a thread frees, for which it gets a heap, once more. */
static void *free_some_twice(void *unused) {
    for (int i = 0; i <= 16; i++) free(others[i]);
    free(others[16]);
    exit(survived()); /* before the thread's magazines are looked at */
    return unused;
}

static int is_among(void **blocks, long count, void *block) {
    for (long i = 0; i < count; i++)
        if (blocks[i] == block) return 1;
    return 0;
}

/* A block whose slab was emptied and is made anew, where its mark still is: one of the last of the slab, which
 * was not handed out again. Of a class with several in 64 KiB, which is as long as a slab is at least. */
static void *remade(size_t size, int is_cut) {
    enum { SLICE = 65536, MOST = 3 * SLICE / 16 + 200 };
    static void *all[MOST], *again[MOST];
    size = size < 16384 ? size : 16384;
    all[0] = malloc(size);
    long step = (long)malloc_usable_size(all[0]), count = 3 * SLICE / step + 200;
    free(all[0]);
    for (long i = 0; i < count; i++) CHECK((all[i] = malloc(size)));
    for (long i = 0; i < count; i++) free(all[i]);
    for (long i = 0; i < count; i++) {
        CHECK((again[i] = malloc(size)));
        char *block = (char *)again[i] + (SLICE / step - 2) * step, *near = (char *)again[i] + 10 * step;
        if ((uintptr_t)again[i] % SLICE || !is_among(all, count, block) || is_among(again, i, block)) continue;
        if (!is_cut || SLICE / step < 13) return block;
        /* The next one comes with many more, of which this thread has a magazine now. */
        CHECK((again[i + 1] = malloc(size)));
        if (is_among(all, count, near) && !is_among(again, i + 2, near)) return near;
    }
    CHECK(!"a slab is made anew");
    return NULL;
}

static void make(size_t size) {
    for (int i = 0; i < MANY; i++) CHECK((others[i] = malloc(size)));
}

/* Every second one, so that slabs stay: what has left the page map is only foreign. */
static void drop(void) {
    for (int i = 1; i < MANY; i += 2) free(others[i]);
}

/* A block that was freed to its slab, and that a refill may have taken to a magazine with others. */
static void *refilled(size_t size) {
    static void *again[MANY];
    make(size);
    drop();
    for (int i = 0; i < MANY; i++) {
        CHECK((again[i] = malloc(size)));
        for (int j = MANY - 1; j > MANY / 2; j -= 2) {
            if (others[j] != again[i]) continue;
            while ((j -= 2) > 0)
                if (!is_among(again, i + 1, others[j])) return others[j];
        }
    }
    CHECK(!"one of the last is handed out again");
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 3 && sem_init(&freed, 0, 0) == 0 && sem_init(&end, 0, 0) == 0);
    const char *kind = argv[1];
    size_t size = (size_t)atol(argv[2]);
    pthread_t thread;
    char *block = malloc(size), *keep = malloc(size);
    CHECK(block && keep);
    memset(block, 0x5a, malloc_usable_size(block));
    if (!strcmp(kind, "direct")) {
        free(announce(block));
    } else if (!strcmp(kind, "untouched")) { /* by the program, since it was handed out for the second time */
        free(block);
        block = malloc(size);
        free(announce(block));
    } else if (!strcmp(kind, "interleaved")) {
        char *between = malloc(size);
        free(announce(block));
        free(between);
    } else if (!strcmp(kind, "delayed")) { /* at the bottom of a magazine that overflows */
        make(size);
        free(announce(block));
        drop();
    } else if (!strcmp(kind, "listed")) { /* on its slab's list, while the magazine has room again */
        make(size);
        drop();
        block = others[MANY - 3];
        CHECK(malloc(size) != block);
        announce(block);
    } else if (!strcmp(kind, "calloc")) {
        free(block);
        block = calloc(1, size);
        free(announce(block));
    } else if (!strcmp(kind, "realloc")) {
        char *moved = realloc(block, size < 20000 ? size * 3 + 100 : 20000);
        CHECK(moved && moved != block);
        block = moved;
        free(announce(block));
    } else if (!strcmp(kind, "aligned")) {
        CHECK(posix_memalign((void **)&block, 64, size) == 0);
        free(announce(block));
    } else if (!strcmp(kind, "moved")) { /* freed by a realloc that has moved the contents */
        char *moved = realloc(announce(block), size * 3 + 100);
        CHECK(moved && moved != block);
    } else if (!strcmp(kind, "remade")) {
        block = announce(remade(size, 0));
    } else if (!strcmp(kind, "ahead")) {
        block = announce(remade(size, 1));
    } else if (!strcmp(kind, "refilled")) {
        block = announce(refilled(size));
    } else if (!strcmp(kind, "there")) { /* first by another thread, which lives */
        CHECK(pthread_create(&thread, NULL, free_and_stay, announce(block)) == 0);
        CHECK(sem_wait(&freed) == 0);
    } else if (!strcmp(kind, "here")) { /* by this one, and then by one without a heap */
        free(announce(block));
        CHECK(pthread_create(&thread, NULL, free_and_end, block) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
        return survived();
    } else if (!strcmp(kind, "starved")) { /* and then by one for which there is no memory for a heap */
        CHECK(pthread_create(&thread, NULL, free_when_freed, block) == 0);
        free(announce(block));
        struct rlimit none = {1, 1};
        CHECK(setrlimit(RLIMIT_AS, &none) == 0 && sem_post(&freed) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
        return survived();
    } else if (!strcmp(kind, "late")) { /* by one that has just got a heap for it */
        make(size);
        others[16] = announce(block);
        CHECK(pthread_create(&thread, NULL, free_some_twice, NULL) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
        return survived();
    } else if (!strcmp(kind, "gone")) { /* by one that has ended */
        CHECK(pthread_create(&thread, NULL, free_and_end, announce(block)) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
    } else {
        CHECK(!"a known kind");
    }
    free(block);
    return survived();
}
