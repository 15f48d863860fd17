/* Requests that cannot be met: null and ENOMEM, nothing overflows, and what was there before is still
 * there after. */
#include "api_check.h"
#include <fcntl.h>

#define REFUSED(call, n)                                                                                               \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        CHECKN(hide(call) == NULL, n);                                                                                 \
        CHECKN(errno == ENOMEM, n);                                                                                    \
    } while (0)

/* True if the kernel lets a process map any amount: then 1 TiB is a size like any other. */
static int maps_anything(void) {
    char mode = '0';
    int fd = open("/proc/sys/vm/overcommit_memory", O_RDONLY);
    if (fd >= 0) {
        if (read(fd, &mode, 1) != 1) mode = '0';
        close(fd);
    }
    return mode == '1';
}

static void refused(size_t n, void *small, void *large) {
    static const size_t alignments[] = {8, 16, 64, 4096, 65536, 2 * 1024 * 1024};
    REFUSED(malloc(n), n);
    REFUSED(calloc(1, n), n);
    REFUSED(calloc(n, 1), n);
    REFUSED(realloc(NULL, n), n);
    REFUSED(reallocarray(NULL, n, 1), n);
    REFUSED(reallocarray(NULL, 1, n), n);
    REFUSED(realloc(hide(small), n), n);
    REFUSED(realloc(hide(large), n), n);
    REFUSED(reallocarray(hide(small), n, 1), n);
    REFUSED(valloc(n), n);
    REFUSED(pvalloc(n), n);
    for (size_t i = 0; i < sizeof alignments / sizeof *alignments; i++) {
        void *p = small;
        REFUSED(aligned_alloc(alignments[i], n), n);
        REFUSED(memalign(alignments[i], n), n);
        errno = 4242;
        CHECKN(posix_memalign(&p, alignments[i], n) == ENOMEM, n);
        CHECKN(errno == ENOMEM, n); /* as with glibc; programs read it */
        CHECKN(p == small, n);
    }
    CHECKN(same(small, 100, 1), n);
    CHECKN(same(large, 3 * MIB, 2), n);
}

/* Products that wrap around, also to something small. */
static void products(void *small) {
    static const size_t pairs[][2] = {
        {SIZE_MAX, 2},           {2, SIZE_MAX},           {SIZE_MAX, SIZE_MAX},
        {(size_t)1 << 32, (size_t)1 << 32},               {((size_t)1 << 32) + 1, (size_t)1 << 32},
        {SIZE_MAX / 2 + 1, 2},   {SIZE_MAX / 8 + 2, 8},   {(size_t)1 << 63, 2},
        {SIZE_MAX / 2, 3},       {48, SIZE_MAX / 48 + 1}, {SIZE_MAX / 16 + 2, 16},
        {SIZE_MAX / 2, 1},       {SIZE_MAX / 2 + 1, 1},   {(size_t)1 << 62, 1},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        volatile size_t a = pairs[i][0], b = pairs[i][1];
        REFUSED(calloc(a, b), i);
        REFUSED(reallocarray(NULL, a, b), i);
        REFUSED(reallocarray(hide(small), a, b), i);
        CHECKN(same(small, 100, 1), i);
    }
}

int main(void) {
    static const size_t impossible[] = {
        (size_t)1 << 40,       (size_t)1 << 46,  (size_t)1 << 47,  (size_t)1 << 48, (size_t)1 << 56,
        (size_t)1 << 62,       PTRDIFF_MAX - 65536, PTRDIFF_MAX - 4095, PTRDIFF_MAX - 1, PTRDIFF_MAX,
        (size_t)PTRDIFF_MAX + 1, (size_t)PTRDIFF_MAX + 2, (size_t)PTRDIFF_MAX + 65536, SIZE_MAX - 2097152,
        SIZE_MAX - 65536, SIZE_MAX - 65535, SIZE_MAX - 4096, SIZE_MAX - 4095, SIZE_MAX - 64, SIZE_MAX - 16,
        SIZE_MAX - 15, SIZE_MAX - 8, SIZE_MAX - 7, SIZE_MAX - 1, SIZE_MAX,
    };
    void *small = malloc(100), *large = malloc(3 * MIB);
    int any = maps_anything();
    CHECK(small != NULL && large != NULL);
    fill(small, 100, 1);
    fill(large, 3 * MIB, 2);
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < sizeof impossible / sizeof *impossible; i++) {
            volatile size_t n = impossible[i];
            if (any && n < (size_t)1 << 47) continue;
            refused(n, small, large);
        }
        products(small);
    }
    if (any) puts("overcommit_memory is 1: 1 TiB was not tried");
    free(small);
    free(large);
    for (size_t n = 1; n < 100 * MIB; n = n * 3 + 1) {
        void *p = malloc(n);
        CHECKN(p != NULL, n);
        fill(p, n, n);
        CHECKN(same(p, n, n), n);
        free(p);
    }
    puts("limits ok");
    return 0;
}
