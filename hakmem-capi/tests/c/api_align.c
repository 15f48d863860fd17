/* Every alignment from 1 to 1 GiB through every function that takes one; all of it freed by plain free. */
#include "api_check.h"

#define LIVE 24

static void *block[LIVE];
static size_t usable[LIVE];
static uint64_t counter;

/* Checks a fresh block, fills it, and keeps it until its place is needed again. */
static void keep(void *p, size_t alignment, size_t n) {
    size_t slot = counter % LIVE, whole;
    CHECKN(p != NULL, alignment);
    CHECKN((uintptr_t)p % alignment == 0, alignment);
    CHECKN(n < 16 || (uintptr_t)p % 16 == 0, n);
    whole = malloc_usable_size(p);
    CHECKN(whole >= n, n);
    if (block[slot] != NULL) {
        CHECKN(same(block[slot], usable[slot], counter - LIVE), usable[slot]);
        free(block[slot]);
    }
    block[slot] = p;
    usable[slot] = whole > 200000 ? 200000 : whole; /* the ends of big ones are checked below, at once */
    fill(p, usable[slot], counter);
    if (whole > usable[slot]) {
        fill((char *)p + whole - 8, 8, 5);
        CHECKN(same((char *)p + whole - 8, 8, 5), whole);
    }
    counter++;
}

static void all_functions(size_t alignment, size_t n) {
    void *p = NULL;
    int result;
    errno = 4242;
    result = posix_memalign(&p, alignment, n);
    CHECKN(errno == 4242, alignment);
    if (alignment < sizeof(void *)) {
        CHECKN(result == EINVAL && p == NULL, alignment);
    } else {
        CHECKN(result == 0, alignment);
        keep(p, alignment, n);
    }
    keep(aligned_alloc(alignment, n), alignment, n);
    keep(memalign(alignment, n), alignment, n);
}

static void every_alignment(void) {
    for (size_t alignment = 1; alignment <= GIB; alignment *= 2) {
        size_t sizes[] = {0,   1,    7,    8,     15,    16,    17,     24,     48,      100,           129,
                          200, 1000, 3000, 4096,  5000,  10000, 33000,  65536,  70000,   600000,        2 * MIB,
                          alignment - 1,   alignment, alignment + 1, alignment * 3, alignment / 2 * 3};
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            if (sizes[i] <= 8 * MIB) all_functions(alignment, sizes[i]);
    }
    keep(aligned_alloc(64 * MIB, 64 * MIB), 64 * MIB, 64 * MIB);
    keep(memalign(GIB, GIB), GIB, GIB);
    for (size_t slot = 0; slot < LIVE; slot++) {
        free(block[slot]);
        block[slot] = NULL;
    }
}

/* Many small over-aligned blocks of one shape at once: each keeps its own bytes. */
static void crowds(void) {
    enum { COUNT = 200 };
    static void *crowd[COUNT];
    for (size_t alignment = 16; alignment <= 16384; alignment *= 2) {
        for (size_t n = 1; n < 40000; n = n * 3 + 1) {
            for (size_t i = 0; i < COUNT; i++) {
                CHECKN(posix_memalign(&crowd[i], alignment, n) == 0, n);
                CHECKN((uintptr_t)crowd[i] % alignment == 0, alignment);
                fill(crowd[i], malloc_usable_size(crowd[i]), i);
            }
            for (size_t i = 0; i < COUNT; i++) {
                CHECKN(same(crowd[i], malloc_usable_size(crowd[i]), i), n);
                free(crowd[i]);
            }
        }
    }
}

/* realloc of an over-aligned block keeps its contents. */
static void grown(void) {
    for (size_t alignment = 32; alignment <= 8 * MIB; alignment *= 4) {
        void *p = aligned_alloc(alignment, 500);
        CHECK(p != NULL);
        fill(p, 500, 9);
        p = realloc(p, 60000);
        CHECK(p != NULL);
        CHECKN(same(p, 500, 9), alignment);
        fill(p, 60000, 10);
        p = realloc(p, 200);
        CHECK(p != NULL);
        CHECKN(same(p, 200, 10), alignment);
        free(p);
    }
}

static void bad_alignments(void) {
    static const size_t odd[] = {3, 5, 6, 7, 9, 12, 24, 48, 100, 4095, 4097, 65537, ((size_t)1 << 40) + 1, SIZE_MAX};
    void *mark = &mark, *p;
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        volatile size_t alignment = odd[i];
        p = mark;
        errno = 4242;
        CHECKN(posix_memalign(&p, alignment, 64) == EINVAL, alignment);
        CHECKN(errno == 4242 && p == mark, alignment);
        errno = 0;
        CHECKN(hide(aligned_alloc(alignment, 64)) == NULL, alignment);
        CHECKN(errno == EINVAL, alignment);
    }
    volatile size_t zero = 0;
    p = mark;
    CHECK(posix_memalign(&p, zero, 64) == EINVAL && p == mark);
    errno = 0;
    CHECK(hide(aligned_alloc(zero, 64)) == NULL && errno == EINVAL);
    /* memalign rounds up, as glibc does, and refuses what cannot be rounded. */
    for (size_t alignment = 0; alignment <= 70; alignment++) {
        size_t up = 1;
        while (up < alignment) up *= 2;
        p = memalign(alignment, 40);
        CHECKN(p != NULL && (uintptr_t)p % up == 0, alignment);
        free(p);
    }
    p = memalign(5000, 40);
    CHECK(p != NULL && (uintptr_t)p % 8192 == 0);
    free(p);
    volatile size_t most = SIZE_MAX / 2 + 2;
    errno = 0;
    CHECK(hide(memalign(most, 40)) == NULL && errno == EINVAL);
    /* Powers of two that no address in user space is a multiple of. */
    for (unsigned bit = 48; bit < 64; bit++) {
        volatile size_t alignment = (size_t)1 << bit;
        p = mark;
        errno = 0;
        CHECKN(posix_memalign(&p, alignment, 64) == ENOMEM && errno == ENOMEM && p == mark, bit);
        errno = 0;
        CHECKN(hide(aligned_alloc(alignment, 64)) == NULL && errno == ENOMEM, bit);
        errno = 0;
        CHECKN(hide(memalign(alignment, 64)) == NULL && errno == ENOMEM, bit);
    }
}

static void whole_pages(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t n = 0; n < 300000; n = n * 2 + 1) {
        void *v = valloc(n), *p = pvalloc(n);
        size_t rounded = (n + page - 1) / page * page;
        CHECKN(v != NULL && (uintptr_t)v % page == 0 && malloc_usable_size(v) >= n, n);
        CHECKN(p != NULL && (uintptr_t)p % page == 0 && malloc_usable_size(p) >= rounded, n);
        fill(v, malloc_usable_size(v), n);
        fill(p, malloc_usable_size(p), n + 1);
        CHECKN(same(v, malloc_usable_size(v), n), n);
        free(v);
        CHECKN(same(p, malloc_usable_size(p), n + 1), n);
        free(p);
    }
}

int main(void) {
    every_alignment();
    crowds();
    grown();
    bad_alignments();
    whole_pages();
    puts("alignments ok");
    return 0;
}
