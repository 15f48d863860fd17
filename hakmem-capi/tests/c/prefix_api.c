/* The whole hak_ interface from its header, as strict C99 and as C++. Prints the version. */
#include <hakmem.h>
#include <hakmem.h> /* twice does no harm */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(cond)                                                                                                    \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            fprintf(stderr, "%s:%d: failed: %s (errno %d)\n", __FILE__, __LINE__, #cond, errno);                       \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

static int allocates(void) {
    size_t n, i;
    for (n = 0; n < 3000000; n = n * 3 + 1) {
        unsigned char *p = (unsigned char *)hak_malloc(n), *q;
        void *a = NULL;
        CHECK(p != NULL);
        CHECK(hak_usable_size(p) >= n && hak_good_size(n) >= n);
        memset(p, 0x11, hak_usable_size(p));
        p = (unsigned char *)hak_realloc(p, 2 * n + 1);
        CHECK(p != NULL && hak_usable_size(p) >= 2 * n + 1);
        for (i = 0; i < n; i++) CHECK(p[i] == 0x11);
        p = (unsigned char *)hak_reallocarray(p, n + 1, 3);
        CHECK(p != NULL && hak_usable_size(p) >= 3 * n + 3);
        for (i = 0; i < n; i++) CHECK(p[i] == 0x11);
        hak_free(p);
        q = (unsigned char *)hak_calloc(n + 1, 2);
        CHECK(q != NULL);
        for (i = 0; i < 2 * n + 2; i++) CHECK(q[i] == 0);
        hak_free_sized(q, 2 * n + 2);
        CHECK(hak_posix_memalign(&a, 4096, n) == 0 && a != NULL && (size_t)a % 4096 == 0);
        hak_free(a);
        a = hak_aligned_alloc(512, n);
        CHECK(a != NULL && (size_t)a % 512 == 0);
        hak_free_aligned_sized(a, 512, n);
    }
    return 0;
}

static int refuses(void) {
    volatile size_t most = SIZE_MAX, half = SIZE_MAX / 2 + 1, odd = 48, zero = 0;
    char *live = (char *)hak_malloc(10);
    void *mark = live, *p = mark;
    CHECK(live != NULL);
    strcpy(live, "kept");
    errno = 0;
    CHECK(hak_malloc(most) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(hak_malloc(half) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(hak_calloc(half, 2) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(hak_realloc(live, half) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(hak_reallocarray(live, half, 2) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(hak_aligned_alloc(64, most) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(hak_aligned_alloc(odd, 10) == NULL && errno == EINVAL);
    errno = 4242;
    CHECK(hak_posix_memalign(&p, odd, 10) == EINVAL && p == mark && errno == 4242);
    CHECK(hak_posix_memalign(&p, 4, 10) == EINVAL && p == mark && errno == 4242);
    CHECK(hak_posix_memalign(&p, 64, most) == ENOMEM && p == mark && errno == ENOMEM);
    CHECK(strcmp(live, "kept") == 0);
    CHECK(hak_realloc(live, zero) == NULL); /* frees it */
    errno = 4242;
    hak_free(NULL);
    hak_free_sized(NULL, 7);
    hak_free_aligned_sized(NULL, 64, 7);
    CHECK(errno == 4242);
    CHECK(hak_usable_size(NULL) == 0);
    return 0;
}

/* What hak_profile_write says of paths that nothing can be written to, and before there is a profile. */
static int profiles(void) {
    static char path[2000];
    memset(path, '/', sizeof path - 1);
    CHECK(hak_profile_write("/dev/null") == ESRCH);
    CHECK(hak_profile_start(0) == EINVAL);
    CHECK(hak_profile_start(524288) == 0 && hak_profile_start(524288) == EALREADY);
    errno = 4242;
    CHECK(hak_profile_write("") == ENAMETOOLONG);
    CHECK(hak_profile_write(path) == ENAMETOOLONG);
    path[1313] = 0;
    CHECK(hak_profile_write(path) == ENAMETOOLONG);
    /* The longest that it takes is a folder. */
    path[1312] = 0;
    CHECK(hak_profile_write(path) == EIO);
    CHECK(hak_profile_write("/dev/full") == EIO);
    CHECK(hak_profile_write("/dev/null") == 0);
    hak_profile_stop();
    CHECK(errno == 4242);
    return 0;
}

/* A program whose header has fewer members than the library, or more. */
static int figures_of_other_versions(void) {
    struct {
        hak_stats_t known;
        uint64_t more[2];
    } newer;
    hak_stats_t older, now;
    hak_class_stats_t one;
    size_t few = offsetof(hak_stats_t, refill_bump);
    memset(&older, 0xff, sizeof older);
    memset(&newer, 0xff, sizeof newer);
    errno = 4242;
    CHECK(hak_stats(&now, sizeof now) == 0 && hak_stats(&older, few) == 0);
    CHECK(hak_stats((hak_stats_t *)&newer, sizeof newer - sizeof(uint64_t)) == 0);
    CHECK(older.allocations == now.allocations && older.refill_current == now.refill_current);
    CHECK(older.refill_bump == (uint64_t)-1 && older.guard_blocks == (uint64_t)-1);
    CHECK(newer.known.threads_started == now.threads_started && now.threads_started > 0);
    CHECK(newer.more[0] == 0 && newer.more[1] == (uint64_t)-1);

    one.slabs = 4711;
    CHECK(hak_class_stats(1, &one, offsetof(hak_class_stats_t, slabs)) == 0);
    CHECK(one.block_bytes == 16 && one.slabs == 4711);
    CHECK(hak_bytes_held() == now.bytes_held && hak_bytes_held() > 0);
    CHECK(hak_stats(NULL, sizeof now) == EINVAL && hak_class_stats(0, NULL, sizeof one) == EINVAL);
    CHECK(errno == 4242);
    return 0;
}

int main(void) {
    struct hak_stats_t stats;
    memset(&stats, 0xff, sizeof stats);
    if (allocates() != 0 || refuses() != 0 || profiles() != 0) return 1;
    if (figures_of_other_versions() != 0) return 1;
    hak_stats(&stats, sizeof stats);
    CHECK(stats.large_allocs > 0 && stats.large_allocs < 100000);
    CHECK(stats.bytes_mapped > 0 && stats.bytes_mapped < (uint64_t)1 << 40);
    (void)hak_purge();
    CHECK(hak_version() != NULL && hak_version() == hak_version());
    {
        char text[40];
        sprintf(text, "%d.%d.%d", HAKMEM_VERSION_MAJOR, HAKMEM_VERSION_MINOR, HAKMEM_VERSION_PATCH);
        CHECK(strcmp(text, hak_version()) == 0);
    }
#if HAKMEM_VERSION < 100 || HAKMEM_VERSION >= 1000000
#error "the number in hakmem.h is no version"
#endif
    printf("%s\n", hak_version());
    return 0;
}
