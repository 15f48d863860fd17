/* Every size: alignment, usable size, contents, neighbours, zeroing, and blocks of no bytes. */
#include "api_check.h"

#define LIVE 256

/* All sizes from 0 to 70000, each written over its whole usable size while 255 others live around it. */
static void every_size(void) {
    static void *block[LIVE];
    static size_t usable[LIVE], seed[LIVE];
    uint64_t random = 88172645463325252u;
    for (size_t n = 0; n <= 70000; n++) {
        size_t slot = next_random(&random) % LIVE;
        if (block[slot] != NULL) {
            CHECKN(same(block[slot], usable[slot], seed[slot]), seed[slot]);
            free(block[slot]);
        }
        block[slot] = malloc(n);
        CHECKN(block[slot] != NULL, n);
        CHECKN((uintptr_t)block[slot] % owed(n) == 0, n);
        usable[slot] = malloc_usable_size(block[slot]);
        CHECKN(usable[slot] >= n, n);
        seed[slot] = n;
        fill(block[slot], usable[slot], n);
    }
    for (size_t slot = 0; slot < LIVE; slot++) {
        if (block[slot] == NULL) continue;
        CHECKN(same(block[slot], usable[slot], seed[slot]), seed[slot]);
        free(block[slot]);
    }
}

static void touch(unsigned char *p, size_t n, unsigned char value) {
    if (n == 0) return;
    p[0] = p[n / 2] = p[n - 1] = value;
}

static void untouched(unsigned char *p, size_t n, unsigned char value) {
    if (n == 0) return;
    CHECKN(p[0] == value && p[n / 2] == value && p[n - 1] == value, n);
}

/* The powers of two and their neighbours up to 1 GiB, three alive at a time. */
static void powers(void) {
    for (size_t power = 1; power <= GIB; power *= 2) {
        unsigned char *p[3], *z;
        size_t usable[3];
        for (int d = 0; d < 3; d++) {
            size_t n = power + (size_t)d - 1;
            p[d] = hide(malloc(n));
            CHECKN(p[d] != NULL, n);
            CHECKN((uintptr_t)p[d] % owed(n) == 0, n);
            usable[d] = malloc_usable_size(p[d]);
            CHECKN(usable[d] >= n, n);
            touch(p[d], usable[d], (unsigned char)(d + 1));
        }
        for (int d = 0; d < 3; d++) untouched(p[d], usable[d], (unsigned char)(d + 1));
        for (int d = 0; d < 3; d++) free(p[d]);
        for (int d = 0; d < 3; d++) {
            size_t n = power + (size_t)d - 1;
            z = hide(calloc(1, n));
            CHECKN(z != NULL, n);
            CHECKN(all_zero(z, n > 4 * MIB ? 4 * MIB : n), n);
            untouched(z, n, 0);
            touch(z, n, 0xee);
            free(z);
        }
    }
}

/* Many blocks of one size side by side: none may see another's bytes, also not after every second one was
 * replaced. */
static void neighbours(void) {
    enum { MOST = 400 };
    static void *block[MOST];
    static size_t usable[MOST];
    for (size_t n = 1; n < 300000; n += n / 9 + 1) {
        size_t count = 8 * MIB / n + 3;
        if (count > MOST) count = MOST;
        for (size_t i = 0; i < count; i++) {
            block[i] = malloc(n);
            CHECKN(block[i] != NULL, n);
            usable[i] = malloc_usable_size(block[i]);
            fill(block[i], usable[i], i);
        }
        for (size_t i = 0; i < count; i += 2) {
            CHECKN(same(block[i], usable[i], i), n);
            free(block[i]);
        }
        for (size_t i = 0; i < count; i += 2) {
            block[i] = malloc(n);
            CHECKN(block[i] != NULL, n);
            usable[i] = malloc_usable_size(block[i]);
            fill(block[i], usable[i], i + 7);
        }
        for (size_t i = 0; i < count; i++) {
            CHECKN(same(block[i], usable[i], i % 2 ? i : i + 7), n);
            free(block[i]);
        }
    }
}

/* calloc after lots of memory was dirtied and freed, in three orders of freeing, with a trim now and then. */
static void zeroed(void) {
    enum { MOST = 300 };
    static void *block[MOST];
    size_t round = 0;
    for (size_t n = 1; n < 9 * MIB; n += n / 7 + 1, round++) {
        size_t count = 4 * MIB / n + 3;
        if (count > MOST) count = MOST;
        for (size_t i = 0; i < count; i++) {
            block[i] = malloc(n);
            CHECKN(block[i] != NULL, n);
            memset(hide(block[i]), 0xff, malloc_usable_size(block[i]));
        }
        for (size_t i = 0; i < count; i++) {
            size_t at = round % 3 == 0 ? i : round % 3 == 1 ? count - 1 - i : i ^ (i + 1 < count || i % 2 ? 1 : 0);
            free(block[at]);
            block[at] = NULL;
        }
        if (round % 5 == 0) malloc_trim(0);
        for (size_t i = 0; i < count; i++) {
            CHECKN(block[i] == NULL, i);
            block[i] = i % 2 ? calloc(1, n) : calloc(n, 1);
            CHECKN(block[i] != NULL, n);
            CHECKN((uintptr_t)block[i] % owed(n) == 0, n);
            CHECKN(all_zero(block[i], n), n);
            memset(hide(block[i]), 0xee, malloc_usable_size(block[i]));
        }
        for (size_t i = 0; i < count; i++) free(block[i]);
    }
}

/* Blocks of no bytes: each is a pointer of its own and can be freed. */
static void nothing(void) {
    enum { COUNT = 400 };
    static void *block[COUNT];
    volatile size_t zero = 0;
    for (size_t i = 0; i < COUNT; i++) {
        switch (i % 4) {
        case 0: block[i] = malloc(zero); break;
        case 1: block[i] = calloc(zero, 8); break;
        case 2: block[i] = calloc(8, zero); break;
        default: block[i] = realloc(NULL, zero); break;
        }
        CHECKN(block[i] != NULL, i);
        for (size_t j = 0; j < i; j++) CHECKN(block[j] != block[i], i);
    }
    for (size_t i = 0; i < COUNT; i++) free(block[i]);
}

int main(void) {
    CHECK(malloc_usable_size(NULL) == 0);
    nothing();
    every_size();
    powers();
    neighbours();
    zeroed();
    puts("sizes ok");
    return 0;
}
