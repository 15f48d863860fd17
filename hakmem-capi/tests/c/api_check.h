/* What the api_, cxx_ and dlopen_ programs share: checks that name their place, patterns, and proof of
 * who serves malloc. */
#ifndef API_CHECK_H
#define API_CHECK_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Ends the program at once, without exit handlers, which might hide what happened. */
#define CHECKN(cond, value)                                                                                            \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            dprintf(2, "%s:%d: failed: %s (value %zu = 0x%zx, errno %d)\n", __FILE__, __LINE__, #cond,                 \
                    (size_t)(value), (size_t)(value), errno);                                                          \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)
#define CHECK(cond) CHECKN(cond, 0)

#define KIB ((size_t)1024)
#define MIB ((size_t)1024 * 1024)
#define GIB ((size_t)1024 * 1024 * 1024)

/* The name of the file whose malloc this process calls must be EXPECT_LIB: otherwise everything would
 * pass on glibc. */
#ifndef FULLY_STATIC
__attribute__((constructor)) static void served(void) {
    const char *want = getenv("EXPECT_LIB");
    static const char *const names[] = {"malloc", "free", "calloc", "realloc", "posix_memalign"};
    if (want == NULL) return;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        Dl_info info;
        void *function = dlsym(RTLD_DEFAULT, names[i]);
        CHECKN(function != NULL && dladdr(function, &info) != 0, i);
        const char *base = strrchr(info.dli_fname, '/');
        base = base == NULL ? info.dli_fname : base + 1;
        if (strcmp(base, want) != 0) {
            dprintf(2, "%s is served by %s, not by %s\n", names[i], info.dli_fname, want);
            _exit(1);
        }
    }
}
#endif

/* The compiler must not know what a pointer points to, or it would leave writes and frees out. */
static inline void *hide(void *p) {
    __asm__ volatile("" : "+r"(p) : : "memory");
    return p;
}

static inline uint64_t pattern_word(size_t i, uint64_t seed) {
    return ((uint64_t)i + 1) * 0x9E3779B97F4A7C15u ^ seed * 0xD1B54A32D192ED03u;
}

/* Fills n bytes so that every prefix of them can be checked with `same`. */
static inline void fill(void *block, size_t n, uint64_t seed) {
    unsigned char *p = (unsigned char *)hide(block);
    size_t i;
    for (i = 0; i + 8 <= n; i += 8) {
        uint64_t word = pattern_word(i / 8, seed);
        memcpy(p + i, &word, 8);
    }
    if (i < n) {
        uint64_t word = pattern_word(i / 8, seed);
        memcpy(p + i, &word, n - i);
    }
    hide(block);
}

static inline int same(void *block, size_t n, uint64_t seed) {
    const unsigned char *p = (const unsigned char *)hide(block);
    uint64_t differ = 0;
    size_t i;
    for (i = 0; i + 8 <= n; i += 8) {
        uint64_t word;
        memcpy(&word, p + i, 8);
        differ |= word ^ pattern_word(i / 8, seed);
    }
    if (i < n) {
        uint64_t word = pattern_word(i / 8, seed);
        if (memcmp(p + i, &word, n - i) != 0) return 0;
    }
    return differ == 0;
}

static inline int all_zero(void *block, size_t n) {
    const unsigned char *p = (const unsigned char *)hide(block);
    uint64_t any = 0;
    size_t i;
    for (i = 0; i + 8 <= n; i += 8) {
        uint64_t word;
        memcpy(&word, p + i, 8);
        any |= word;
    }
    for (; i < n; i++) any |= p[i];
    return any == 0;
}

/* The alignment that malloc owes a block of n bytes. */
static inline size_t owed(size_t n) { return n >= 16 ? 16 : 8; }

static inline uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}
#endif
