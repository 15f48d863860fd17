/* Allocates in all ways while hostile_mmap_shim.c makes system calls fail.
 *
 *   hostile_worker sweep     one failing call after another, then every k-th, then all; in one process
 *   hostile_worker once      one cycle, with what SHIM in the environment says about the first calls
 *   hostile_worker advised   blocks that are several mappings; nothing fails
 *   hostile_worker first     the very first allocation fails (SHIM="1 1000000 1"); then memory is there
 *
 * An allocation may fail, with NULL and ENOMEM, and nothing else may happen. */
#include "../support/test.h"
#include <pthread.h>
#include <sys/mman.h>

static void (*shim_set)(long first, long last, long every, long mask);
static long (*shim_calls)(void), (*shim_failed)(void), (*shim_moves)(void);
static int (*shim_intact)(void);
static int strict; /* nothing may fail */
static long refused;

enum { MAP = 1, REMAP = 2, ADVISE = 4, UNMAP = 8, ALL = 15, KEPT = 400 };

static __thread struct {
    unsigned char *at;
    size_t size;
    uint64_t seed;
} kept[KEPT];
static __thread int count;

static int got(void *p, int error) {
    if (p) return 1;
    CHECK(error == ENOMEM && !strict);
    __atomic_add_fetch(&refused, 1, __ATOMIC_RELAXED);
    return 0;
}

static void keep(void *p, size_t size, size_t align) {
    int error = errno;
    if (!got(p, error)) return;
    CHECK((uintptr_t)p % align == 0 && malloc_usable_size(p) >= size && count < KEPT);
    kept[count].at = p, kept[count].size = size, kept[count].seed = (uintptr_t)p + size;
    fill(p, size, kept[count].seed);
    count++;
}

/* free() must keep errno, above all when its own system calls fail. */
static void free_kept(void) {
    while (count > 0) {
        count--;
        CHECK(holds(kept[count].at, kept[count].size, kept[count].seed));
        errno = 77;
        free(kept[count].at);
        CHECK(errno == 77);
    }
}

static void zeroed(size_t n, size_t size) {
    errno = 0;
    unsigned char *p = calloc(n, size);
    int error = errno;
    if (!got(p, error)) return;
    for (size_t i = 0; i < n * size; i++) CHECK(p[i] == 0);
    errno = 0;
    keep(p, n * size, 1);
}

/* GCC takes it for granted that `posix_memalign` leaves `errno` alone, unless it cannot see that this is
 * what it calls. */
static int (*volatile const align_to)(void **, size_t, size_t) = posix_memalign;

static void aligned(size_t align, size_t size) {
    void *p = (void *)1;
    errno = 77;
    int error = align_to(&p, align, size);
    CHECK((error == 0 && errno == 77) || (error == ENOMEM && errno == ENOMEM)); /* as with glibc */
    errno = error;
    keep(error ? NULL : p, size, align);
    errno = 0;
    keep(aligned_alloc(align, size), size, align);
    errno = 0;
    keep(memalign(align, size + 3), size + 3, align);
}

/* Grows one block step by step; where a step fails, the block must be as it was. */
static void grow(size_t from, size_t to) {
    errno = 0;
    unsigned char *p = malloc(from);
    int error = errno;
    if (!got(p, error)) return;
    fill(p, from, 9);
    size_t size = from;
    for (size_t next = from * 2; next <= to; next += next / 2 + 1) {
        errno = 0;
        unsigned char *moved = realloc(p, next);
        error = errno;
        CHECK(holds(moved ? moved : p, size, 9));
        if (!got(moved, error)) continue;
        p = moved, size = next;
        fill(p, size, 9);
    }
    errno = 0;
    unsigned char *shrunk = reallocarray(p, 1, from);
    error = errno;
    if (shrunk) p = shrunk;
    else got(NULL, error);
    CHECK(holds(p, from, 9));
    free(p);
}

static void small_paths(void) {
    for (size_t size = 1; size <= 70000; size = size * 3 / 2 + 1)
        for (int i = 0; i < 3; i++) errno = 0, keep(malloc(size), size, size < 16 ? 8 : 16);
    zeroed(1, 100), zeroed(20, 500);
    aligned(64, 64), aligned(1024, 3000);
    grow(16, 100000);
}

static void *in_thread(void *arg) {
    small_paths();
    errno = 0, keep(malloc(300000), 300000, 16);
    free_kept();
    return arg;
}

static void cycle(void) {
    small_paths();
    aligned(4096, 100), aligned(65536, 70000), aligned(1 << 20, 1000), aligned(4 << 20, 100);
    zeroed(1, 200000), zeroed(1, 3 << 20);
    for (size_t size = 100000; size <= 8000000; size *= 2) errno = 0, keep(malloc(size), size, 16);
    grow(100, 6000000);
    grow(2000000, 12000000);
    pthread_t threads[2];
    int running = 0;
    for (int i = 0; i < 2; i++) {
        int error = pthread_create(&threads[running], NULL, in_thread, NULL);
        CHECK(error == 0 || (!strict && (error == EAGAIN || error == ENOMEM)));
        running += error == 0;
    }
    for (int i = 0; i < running; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    free_kept();
    malloc_trim(0);
    zeroed(1, 200000), zeroed(1, 3 << 20), zeroed(500, 100); /* of memory that was just purged, or was not */
    free_kept();
}

/* One cycle with failures, then one without, in which everything must work again. */
static void round_with(long first, long last, long every, long mask) {
    refused = 0;
    shim_set(first, last, every, mask);
    cycle();
    long failed = shim_failed();
    shim_set(0, -1, 1, ALL);
    dprintf(1, "calls %ld..%ld, each %ld, kinds %ld: %ld failed, %ld allocations refused\n", first, last, every,
            mask, failed, refused);
    CHECK(shim_intact()); /* what was not moved to is not unmapped: it is somebody else's */
    strict = 1;
    cycle();
    strict = 0;
}

/* Blocks of which the program has a part treated otherwise, as numpy does: several mappings, which cannot
 * be moved as one. */
static void advised(void) {
    for (int i = 0; i < 100; i++) {
        size_t size = (5 << 20) + i % 7 * 8192, part = size / 2 & ~(size_t)4095;
        unsigned char *p = malloc(size);
        CHECK(p != NULL);
        fill(p, size, i);
        char *page = (char *)(((uintptr_t)p + 4096) & ~(uintptr_t)4095);
        /* Later blocks have huge pages anyway. */
        int advice = i == 0 ? MADV_HUGEPAGE : i % 2 ? MADV_NOHUGEPAGE : MADV_DONTDUMP;
        /* A kernel may have no huge pages. */
        CHECK(madvise(page, part, advice) == 0 || (advice != MADV_DONTDUMP && errno == EINVAL));
        unsigned char *moved = realloc(p, size * 2);
        CHECK(moved && holds(moved, size, i));
        free(moved);
        malloc_trim(0);
    }
    dprintf(1, "%ld moves to a fixed place\n", shim_moves());
    CHECK(shim_moves() == 0);
}

/* Address space of the process, in KiB. */
static long space(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%ld", &pages) == 1);
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Where a hole would be one mapping too many, what cannot be unmapped is used again, and goes when it can. */
static void holes(void) {
    enum { MANY = 1000, SIZE = 1100000 };
    static unsigned char *block[MANY];
    long before = space();
    for (int i = 0; i < MANY; i++) CHECK((block[i] = malloc(SIZE)) != NULL);
    for (int round = 0; round < 3; round++) {
        shim_set(1, 1 << 30, 1, UNMAP | MAP);
        for (int i = 1; i < MANY; i += 2) free(block[i]);
        for (int i = 1; i < MANY; i += 2) CHECK((block[i] = malloc(SIZE - i)) != NULL);
        shim_set(1, 1 << 30, 1, UNMAP);
        for (int i = 0; i < MANY; i += 2) free(block[i]);
        malloc_trim(0);
        shim_set(1, 1 << 30, 1, UNMAP | MAP);
        for (int i = 0; i < MANY; i += 2) CHECK((block[i] = calloc(1, SIZE)) && block[i][SIZE / 2] == 0);
    }
    for (int i = 0; i < MANY; i++) fill(block[i], SIZE - i % 2 * i, i);
    for (int i = 0; i < MANY; i++) CHECK(holds(block[i], SIZE - i % 2 * i, i));
    for (int i = 0; i < MANY; i++) free(block[i]);
    shim_set(0, -1, 1, ALL);
    malloc_trim(0);
    dprintf(1, "%ld KiB more than before\n", space() - before);
    CHECK(space() - before < 40 << 10);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    shim_set = (void (*)(long, long, long, long))dlsym(RTLD_DEFAULT, "shim_set");
    shim_calls = (long (*)(void))dlsym(RTLD_DEFAULT, "shim_calls");
    shim_failed = (long (*)(void))dlsym(RTLD_DEFAULT, "shim_failed");
    shim_moves = (long (*)(void))dlsym(RTLD_DEFAULT, "shim_moves");
    shim_intact = (int (*)(void))dlsym(RTLD_DEFAULT, "shim_intact");
    CHECK(shim_set && shim_calls && shim_failed && shim_moves && shim_intact);
    if (!strcmp(argv[1], "first")) {
        errno = 0;
        CHECK(malloc(100) == NULL && errno == ENOMEM);
        CHECK(realloc(NULL, 3000000) == NULL && errno == ENOMEM);
        CHECK(calloc(1, 5000) == NULL && errno == ENOMEM);
        free(NULL);
        CHECK(shim_failed() > 0);
        shim_set(0, -1, 1, ALL);
    } else if (!strcmp(argv[1], "advised")) {
        shim_set(0, -1, 1, ALL);
        advised();
    } else if (!strcmp(argv[1], "holes")) {
        shim_set(0, -1, 1, ALL);
        holes();
    } else if (!strcmp(argv[1], "once")) {
        cycle();
        long failed = shim_failed();
        shim_set(0, -1, 1, ALL);
        dprintf(1, "%ld calls failed, %ld allocations refused\n", failed, refused);
    } else {
        shim_set(0, -1, 1, ALL);
        cycle();
        long calls = shim_calls();
        CHECK(calls > 0); /* else the shim does not see the allocator, and the rest proves nothing */
        dprintf(1, "a cycle makes %ld calls\n", calls);
        for (long n = 1; n <= 60; n++) round_with(n, n, 1, ALL);
        for (long k = 2; k <= 7; k++) round_with(1, 1 << 30, k, ALL);
        for (long kind = 1; kind <= UNMAP; kind *= 2) round_with(1, 1 << 30, 1, kind);
        for (long n = 1; n <= 31; n += 3) round_with(n, 1 << 30, 1, ALL);
        /* Failed mappings leave nothing behind. (A failed munmap may.) */
        round_with(1, 1 << 30, 3, MAP | REMAP);
        long before = mapped_kib();
        for (long n = 1; n <= 40; n++) round_with(n, 1 << 30, 1 + n % 3, MAP | REMAP);
        long after = mapped_kib();
        dprintf(1, "mapped %ld KiB before, %ld KiB after 40 more rounds\n", before, after);
        CHECK(after <= before + 16 * 1024);
        CHECK(shim_moves() > 0);
    }
    strict = 1;
    cycle();
    puts("ok");
    return 0;
}
