/* Copies of the library loaded with dlopen, privately, by threads that are older and younger than the
 * load.
 * Usage: dlopen_local MODE COPY...
 * MODE: use, or close (also closes the copies while their users are alive). */
#include "api_check.h"
#include <pthread.h>

#define THREADS 4
#define BLOCKS 400
#define MOST 32

typedef struct {
    void *handle;
    void *(*allocate)(size_t);
    void (*release)(void *);
    void *(*zeroed)(size_t, size_t);
    void *(*resize)(void *, size_t);
    void *(*resize_array)(void *, size_t, size_t);
    int (*posix_aligned)(void **, size_t, size_t);
    void *(*aligned)(size_t, size_t);
    size_t (*usable)(void *);
    void (*release_sized)(void *, size_t);
    void (*release_aligned)(void *, size_t, size_t);
    size_t (*purge)(void);
    const char *(*version)(void);
} library;

static library copy[MOST];
static int copies;
static pthread_barrier_t stage, older_trade, younger_trade;

static void *symbol(void *handle, const char *name) {
    void *address = dlsym(handle, name);
    if (address == NULL) {
        dprintf(2, "%s\n", dlerror());
        _exit(1);
    }
    return address;
}

static void load(library *l, const char *path) {
    l->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (l->handle == NULL) {
        dprintf(2, "%s\n", dlerror());
        _exit(1);
    }
    *(void **)&l->allocate = symbol(l->handle, "hak_malloc");
    *(void **)&l->release = symbol(l->handle, "hak_free");
    *(void **)&l->zeroed = symbol(l->handle, "hak_calloc");
    *(void **)&l->resize = symbol(l->handle, "hak_realloc");
    *(void **)&l->resize_array = symbol(l->handle, "hak_reallocarray");
    *(void **)&l->posix_aligned = symbol(l->handle, "hak_posix_memalign");
    *(void **)&l->aligned = symbol(l->handle, "hak_aligned_alloc");
    *(void **)&l->usable = symbol(l->handle, "hak_usable_size");
    *(void **)&l->release_sized = symbol(l->handle, "hak_free_sized");
    *(void **)&l->release_aligned = symbol(l->handle, "hak_free_aligned_sized");
    *(void **)&l->purge = symbol(l->handle, "hak_purge");
    *(void **)&l->version = symbol(l->handle, "hak_version");
    CHECK(dlsym(RTLD_DEFAULT, "hak_malloc") != (void *)l->allocate);
    CHECK(l->version() != NULL && strlen(l->version()) > 0);
}

/* Each function of one copy: none may end up in the malloc of the program or in another copy. */
static void every_function(const library *l) {
    void *p = l->allocate(100), *q = NULL;
    CHECK(p != NULL && l->usable(p) >= 100);
    p = l->resize(p, 5000);
    CHECK(p != NULL && l->usable(p) >= 5000);
    p = l->resize_array(p, 70, 100);
    CHECK(p != NULL && l->usable(p) >= 7000);
    l->release(p);
    p = l->zeroed(10, 30);
    CHECK(p != NULL && all_zero(p, 300));
    l->release_sized(p, 300);
    CHECK(l->posix_aligned(&q, 256, 300) == 0 && (uintptr_t)q % 256 == 0);
    l->release(q);
    q = l->aligned(1024, 2048);
    CHECK(q != NULL && (uintptr_t)q % 1024 == 0);
    l->release_aligned(q, 1024, 2048);
    q = l->allocate(5 * MIB);
    CHECK(q != NULL);
    fill(q, 5 * MIB, 1);
    q = l->resize(q, 20 * MIB);
    CHECK(q != NULL && same(q, 5 * MIB, 1));
    l->release(q);
    l->purge();
}

static void *parcel[2 * THREADS][MOST][BLOCKS];

static size_t size_of(size_t i) { return i % 9 == 0 ? 20000 + i * 10 : i * 5 % 1000; }

/* Fills this thread's parcels, waits for the others, and frees those of its neighbour. */
static void trade(size_t id, size_t first, pthread_barrier_t *barrier) {
    size_t from = first + (id - first + 1) % THREADS;
    for (int round = 0; round < 20; round++) {
        for (int c = 0; c < copies; c++) {
            for (size_t i = 0; i < BLOCKS; i++) {
                void *own = malloc(size_of(i));
                void *p = copy[c].allocate(size_of(i));
                CHECK(p != NULL && own != NULL);
                fill(p, size_of(i), id + i);
                parcel[id][c][i] = p;
                free(own);
            }
        }
        pthread_barrier_wait(barrier);
        for (int c = 0; c < copies; c++) {
            for (size_t i = 0; i < BLOCKS; i++) {
                CHECKN(same(parcel[from][c][i], size_of(i), from + i), i);
                copy[c].release(parcel[from][c][i]);
            }
        }
        pthread_barrier_wait(barrier);
    }
    for (int c = 0; c < copies; c++) every_function(&copy[c]);
}

static void *older(void *argument) {
    size_t id = (size_t)argument;
    free(malloc(100));
    pthread_barrier_wait(&stage); /* alive */
    pthread_barrier_wait(&stage); /* loaded */
    trade(id, 0, &older_trade);
    pthread_barrier_wait(&stage); /* done */
    pthread_barrier_wait(&stage); /* closed, perhaps */
    free(malloc(100));
    return NULL;
}

static void *younger(void *argument) {
    trade((size_t)argument, THREADS, &younger_trade);
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t thread[2 * THREADS];
    void *served = dlsym(RTLD_DEFAULT, "malloc");
    CHECK(argc >= 3 && argc - 2 <= MOST);
    CHECK(pthread_barrier_init(&stage, NULL, THREADS + 1) == 0);
    CHECK(pthread_barrier_init(&older_trade, NULL, THREADS) == 0);
    CHECK(pthread_barrier_init(&younger_trade, NULL, THREADS) == 0);
    for (size_t i = 0; i < THREADS; i++) CHECK(pthread_create(&thread[i], NULL, older, (void *)i) == 0);
    pthread_barrier_wait(&stage);
    copies = argc - 2;
    for (int c = 0; c < copies; c++) load(&copy[c], argv[2 + c]);
    CHECK(dlsym(RTLD_DEFAULT, "malloc") == served);
    for (int c = 0; c < copies; c++) every_function(&copy[c]);
    pthread_barrier_wait(&stage);
    pthread_barrier_wait(&stage);

    for (size_t i = THREADS; i < 2 * THREADS; i++) CHECK(pthread_create(&thread[i], NULL, younger, (void *)i) == 0);
    for (size_t i = THREADS; i < 2 * THREADS; i++) CHECK(pthread_join(thread[i], NULL) == 0);

    /* Threads that used a copy end after it was closed: their exit hook must still be there, or be gone
     * in full. */
    if (strcmp(argv[1], "close") == 0)
        for (int c = 0; c < copies; c++) CHECK(dlclose(copy[c].handle) == 0);
    pthread_barrier_wait(&stage);
    for (size_t i = 0; i < THREADS; i++) CHECK(pthread_join(thread[i], NULL) == 0);
    puts("dlopen ok");
    return 0;
}
