/* free_sized and free_aligned_sized of C23, and the old cfree, for every kind of block. */
#include "api_check.h"
#include <sys/resource.h>

typedef void (*sized_fn)(void *, size_t);
typedef void (*aligned_sized_fn)(void *, size_t, size_t);
typedef void (*plain_fn)(void *);

#ifdef FULLY_STATIC
void free_sized(void *, size_t);
void free_aligned_sized(void *, size_t, size_t);
void cfree(void *);
#endif

/* What they free is used again: half a gigabyte goes through each in pieces, and is never resident at
 * once. */
static void frees(sized_fn sized, aligned_sized_fn aligned_sized, plain_fn old) {
    struct rusage usage;
    for (int which = 0; which < 3; which++) {
        for (int i = 0; i < 128; i++) {
            void *p = which == 1 ? aligned_alloc(65536, 4 * MIB) : malloc(4 * MIB);
            CHECK(p != NULL);
            memset(hide(p), 1, 4 * MIB);
            if (which == 0) sized(p, 4 * MIB);
            if (which == 1) aligned_sized(p, 65536, 4 * MIB);
            if (which == 2) old(p);
        }
        CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
        CHECKN(usage.ru_maxrss < 256 * 1024, which);
    }
}

int main(void) {
#ifdef FULLY_STATIC
    sized_fn sized = free_sized;
    aligned_sized_fn aligned_sized = free_aligned_sized;
    plain_fn old = cfree;
#else
    sized_fn sized = (sized_fn)dlsym(RTLD_DEFAULT, "free_sized");
    aligned_sized_fn aligned_sized = (aligned_sized_fn)dlsym(RTLD_DEFAULT, "free_aligned_sized");
    plain_fn old = (plain_fn)dlsym(RTLD_DEFAULT, "cfree");
#endif
    CHECK(sized != NULL);
    CHECK(aligned_sized != NULL);
    CHECK(old != NULL);
    sized(NULL, 0);
    sized(NULL, 100);
    aligned_sized(NULL, 64, 128);
    old(NULL);
    frees(sized, aligned_sized, old);

    void *ring[64] = {NULL};
    size_t size[64];
    for (size_t n = 0; n <= 70000; n++) {
        size_t slot = n % 64;
        if (ring[slot] != NULL) {
            CHECKN(same(ring[slot], size[slot] < 64 ? size[slot] : 64, size[slot]), n);
            errno = 4242;
            if (n % 3 == 2) old(ring[slot]);
            else sized(ring[slot], size[slot]);
            CHECKN(errno == 4242, n);
        }
        switch (n % 3) {
        case 0: ring[slot] = malloc(n); break;
        case 1: ring[slot] = calloc(n, 1); break;
        default: ring[slot] = realloc(NULL, n); break;
        }
        CHECKN(ring[slot] != NULL, n);
        size[slot] = n;
        fill(ring[slot], n < 64 ? n : 64, n);
    }
    for (size_t slot = 0; slot < 64; slot++) sized(ring[slot], size[slot]);

    for (size_t n = 70000; n < 200 * MIB; n = n * 2 + 77) {
        void *p = malloc(n);
        CHECKN(p != NULL, n);
        sized(p, n);
        p = calloc(1, n);
        CHECKN(p != NULL, n);
        old(p);
    }
    for (size_t alignment = 8; alignment <= 64 * MIB; alignment *= 2) {
        for (size_t n = 1; n < 4 * MIB; n = n * 4 + 3) {
            void *p = aligned_alloc(alignment, n);
            CHECKN(p != NULL, n);
            aligned_sized(p, alignment, n);
        }
    }
    /* A realloc changes the size that counts. */
    void *p = malloc(10);
    p = realloc(p, 30000);
    CHECK(p != NULL);
    sized(p, 30000);
    malloc_trim(0); /* sends home what was freed, so that a wrong class would show here */
    puts("sized ok");
    return 0;
}
