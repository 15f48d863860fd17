/* realloc and reallocarray: contents survive growing and shrinking through all classes and up to 512 MiB. */
#include "api_check.h"

static void step(void **p, size_t *have, size_t want, uint64_t seed) {
    size_t keep = *have < want ? *have : want;
    *p = realloc(*p, want);
    CHECKN(*p != NULL, want);
    CHECKN((uintptr_t)*p % owed(want) == 0, want);
    CHECKN(malloc_usable_size(*p) >= want, want);
    CHECKN(same(*p, keep, seed), want);
    fill(*p, want, seed);
    *have = want;
}

/* Through every size up, then down again, in small steps, while two more blocks grow beside it. */
static void every_step(void) {
    void *p[3] = {NULL, NULL, NULL};
    size_t have[3] = {0, 0, 0};
    for (size_t n = 1; n < 70000; n += n / 50 + 1)
        for (int i = 0; i < 3; i++) step(&p[i], &have[i], n + (size_t)i, (uint64_t)i);
    for (size_t n = 70000; n > 1; n -= n / 50 + 1)
        for (int i = 0; i < 3; i++) step(&p[i], &have[i], n, (uint64_t)i);
    for (int i = 0; i < 3; i++) free(p[i]);
}

/* Jumps between any two sizes, small, middle and large, with neighbours alive. */
static void jumps(void) {
    enum { LIVE = 40 };
    static void *p[LIVE];
    static size_t have[LIVE];
    uint64_t random = 42;
    for (int i = 0; i < 30000; i++) {
        size_t slot = next_random(&random) % LIVE;
        size_t bits = next_random(&random) % 100;
        size_t top = bits < 60 ? 2000 : bits < 90 ? 100000 : bits < 99 ? 2 * MIB : 6 * MIB;
        step(&p[slot], &have[slot], next_random(&random) % top + 1, slot);
    }
    for (int i = 0; i < LIVE; i++) {
        CHECKN(same(p[i], have[i], (uint64_t)i), i);
        free(p[i]);
    }
}

/* Doubling to 512 MiB and halving back, all contents checked; a neighbour after each step stands in the
 * way. */
static void large(void) {
    void *p = NULL, *wall[64];
    size_t have = 0, walls = 0;
    for (size_t n = 32 * KIB; n <= 512 * MIB; n *= 2) {
        step(&p, &have, n, 3);
        wall[walls] = malloc(100000);
        CHECK(wall[walls] != NULL);
        fill(wall[walls], 100000, walls);
        walls++;
    }
    for (size_t n = 512 * MIB; n >= 5; n = n / 2 - 1) step(&p, &have, n, 3);
    free(p);
    for (size_t i = 0; i < walls; i++) {
        CHECKN(same(wall[i], 100000, i), i);
        free(wall[i]);
    }
}

/* One buffer that grows by a little each time, as a reader of a stream does; only the new part is written. */
static void stream(void) {
    size_t have = 0, piece = 4 * MIB - 12345;
    uint32_t *p = NULL;
    for (int i = 0; i < 64; i++) {
        p = realloc(p, have + piece);
        CHECK(p != NULL);
        for (size_t at = have / 4; at < (have + piece) / 4; at += 64) p[at] = (uint32_t)at;
        have = (have + piece) / 4 * 4;
        have -= have % 256;
        for (size_t at = 0; at < have / 4; at += 64) CHECKN(p[at] == (uint32_t)at, at);
    }
    free(p);
}

static void corners(void) {
    volatile size_t zero = 0;
    void *p;
    for (size_t n = 1; n < 40 * MIB; n = n * 5 + 3) {
        p = realloc(NULL, n);
        CHECKN(p != NULL && malloc_usable_size(p) >= n, n);
        fill(p, n, n);
        CHECKN(same(p, n, n), n);
        CHECKN(hide(realloc(p, zero)) == NULL, n); /* frees */
        p = reallocarray(NULL, n, 1);
        CHECKN(p != NULL && malloc_usable_size(p) >= n, n);
        fill(p, n, n);
        p = reallocarray(p, 2, n);
        CHECKN(p != NULL && malloc_usable_size(p) >= 2 * n, n);
        CHECKN(same(p, n, n), n);
        CHECKN(hide(reallocarray(p, zero, n)) == NULL, n);
        p = malloc(n);
        CHECKN(p != NULL, n);
        CHECKN(hide(reallocarray(p, n, zero)) == NULL, n);
    }
    /* The same size again, and any size within the usable one, keep the contents. */
    for (size_t n = 1; n < 10 * MIB; n = n * 3 + 1) {
        p = malloc(n);
        CHECKN(p != NULL, n);
        fill(p, n, 1);
        p = realloc(p, n);
        CHECKN(p != NULL && same(p, n, 1), n);
        p = realloc(p, malloc_usable_size(p));
        CHECKN(p != NULL && same(p, n, 1), n);
        free(p);
    }
}

int main(void) {
    corners();
    every_step();
    jumps();
    large();
    stream();
    puts("realloc ok");
    return 0;
}
