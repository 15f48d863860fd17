/* What the C test programs of threads, fork, misuse, hostile environments and budgets share. */
#ifndef HAKMEM_TEST_H
#define HAKMEM_TEST_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Ends the process at once with a line saying what did not hold: no exit handlers, no allocation. */
#define CHECK(cond)                                                                                          \
    do {                                                                                                     \
        if (!(cond)) {                                                                                       \
            dprintf(2, "%s:%d: does not hold: %s (errno %d)\n", __FILE__, __LINE__, #cond, errno);           \
            _exit(1);                                                                                        \
        }                                                                                                    \
    } while (0)

/* A preload that failed, or a library without malloc, would leave every test green on glibc's: end here then.
 * (valgrind adds libraries of its own, whose names begin with vgpreload.) */
__attribute__((constructor)) static void check_who_serves(void) {
    Dl_info info;
    const char *preload = getenv("LD_PRELOAD"), *valgrind = preload ? strstr(preload, "vgpreload") : NULL;
    if (!preload || !*preload || (valgrind && !strpbrk(valgrind, ": "))) return;
    if (dladdr((void *)(uintptr_t)&malloc, &info) && strstr(info.dli_fname, "libc.so")) {
        dprintf(2, "malloc is %s's although LD_PRELOAD is %s\n", info.dli_fname, preload);
        _exit(1);
    }
}

/* A signal ends the process, which has no children that count on it, if it takes so many seconds on an idle
 * machine: see SLOWER in mod.rs. Not inherited by what it forks. */
static inline void end_if_hung(unsigned seconds) { alarm(5 * seconds); }

static inline uint64_t next_random(uint64_t *state) {
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    *state = x;
    return x * 0x2545f4914f6cdd1dULL;
}

/* Mostly small blocks, some of several KiB, a few large runs and direct mappings. Never below `least`. */
static inline size_t random_size(uint64_t *state, size_t least) {
    uint64_t r = next_random(state) >> 16, d = r >> 10;
    size_t size;
    switch (r % 1024) {
    case 0: size = 64 * 1024 + d % (1024 * 1024); break;
    case 1 ... 8: size = 8192 + d % 57344; break;
    case 9 ... 128: size = 512 + d % 8192; break;
    default: size = d % 512; break;
    }
    return size < least ? least : size;
}

/* Fills a block with words that depend on the seed and on their place. */
static inline void fill(void *block, size_t size, uint64_t seed) {
    unsigned char *bytes = (unsigned char *)block;
    size_t i = 0;
    for (; i + 8 <= size; i += 8) {
        uint64_t word = (seed + i) * 0x9e3779b97f4a7c15ULL;
        memcpy(bytes + i, &word, 8);
    }
    uint64_t last = (seed + i) * 0x9e3779b97f4a7c15ULL;
    memcpy(bytes + i, &last, size - i);
}

/* Whether a block still holds what fill() wrote. */
static inline int holds(const void *block, size_t size, uint64_t seed) {
    const unsigned char *bytes = (const unsigned char *)block;
    size_t i = 0;
    for (; i + 8 <= size; i += 8) {
        uint64_t word = (seed + i) * 0x9e3779b97f4a7c15ULL, found;
        memcpy(&found, bytes + i, 8);
        if (found != word) return 0;
    }
    uint64_t last = (seed + i) * 0x9e3779b97f4a7c15ULL;
    return memcmp(bytes + i, &last, size - i) == 0;
}

/* A block that knows its own size and seed, so that whoever gets it can check it. */
typedef struct box {
    struct box *next;
    uint64_t seed;
    size_t size;
    unsigned char bytes[];
} box;

static inline box *box_make(size_t size, uint64_t seed) {
    if (size < sizeof(box)) size = sizeof(box);
    box *b = (box *)malloc(size);
    CHECK(b != NULL && malloc_usable_size(b) >= size);
    b->next = NULL;
    b->seed = seed;
    b->size = size;
    fill(b->bytes, size - sizeof(box), seed);
    return b;
}

static inline void box_check(const box *b) { CHECK(holds(b->bytes, b->size - sizeof(box), b->seed)); }

static inline void box_free(box *b) {
    box_check(b);
    memset(b, 0xdd, b->size < 64 ? b->size : 64);
    free(b);
}

/* The number after `field` in a file of /proc, read without allocating; the first number if field is "". */
static inline long proc_number(const char *path, const char *field) {
    char text[4096];
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    long n = fd < 0 ? -1 : syscall(SYS_read, fd, text, sizeof text - 1);
    if (fd >= 0) syscall(SYS_close, fd);
    CHECK(n > 0);
    text[n] = 0;
    const char *at = strstr(text, field);
    CHECK(at != NULL);
    at += strlen(field);
    while (*at == ' ' || *at == '\t') at++;
    long value = 0;
    while (*at >= '0' && *at <= '9') value = value * 10 + (*at++ - '0');
    return value;
}

/* Exact resident memory in KiB. (statm lags behind by up to 64 pages for each CPU.) */
static inline long resident_kib(void) { return proc_number("/proc/self/smaps_rollup", "Rss:"); }

/* Address space in use, in KiB. */
static inline long mapped_kib(void) { return proc_number("/proc/self/statm", "") * (sysconf(_SC_PAGESIZE) / 1024); }

#endif
