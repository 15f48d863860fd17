/* hak_good_size says what hak_usable_size finds. With the argument "exact" (in hardened mode) both are what was
 * asked for. */
#include <hakmem.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define CHECK(cond)                                                                                                    \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            fprintf(stderr, "%s:%d: failed: %s (size %zu)\n", __FILE__, __LINE__, #cond, size);                        \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

int main(int argc, char **argv) {
    int exact = argc > 1 && strcmp(argv[1], "exact") == 0;
    size_t size = 0, before = hak_bytes_held();
    for (size = 0; size < 3000000; size += 1 + size / 37) {
        size_t good = hak_good_size(size);
        void *block = hak_malloc(size), *whole = hak_malloc(good);
        CHECK(block != NULL && whole != NULL);
        CHECK(good >= size && hak_good_size(good) == good);
        CHECK(hak_usable_size(block) == (exact && size == 0 ? hak_usable_size(block) : good));
        CHECK(hak_usable_size(whole) == (exact && size == 0 ? hak_usable_size(whole) : good));
        CHECK(!exact || good == size);
        memset(whole, 1, good);
        hak_free(block);
        hak_free(whole);
    }
    errno = 4242;
    size = 1;
    CHECK(hak_good_size(0) == (exact ? 0 : 16) && hak_good_size(17) == (exact ? 17 : 32));
    CHECK(hak_good_size(1025) == (exact ? 1025 : 1280) && hak_good_size(65537) == (exact ? 65537 : 131072));
    size = SIZE_MAX / 2;
    CHECK(hak_good_size(size) == size && hak_good_size(size + 1) == size + 1 && hak_good_size(SIZE_MAX) == SIZE_MAX);
    CHECK(errno == 4242);
    {
        /* What is held, by both ways, with a mapping and without. */
        void *block = hak_malloc(50000000);
        hak_stats_t now;
        size = hak_bytes_held();
        CHECK(block != NULL && hak_stats(&now, sizeof now) == 0 && now.bytes_held == size);
        CHECK(size >= before + 50000000);
        hak_free(block);
        (void)hak_purge();
        CHECK(exact || hak_bytes_held() + 50000000 <= size);
    }
    printf("sizes ok\n");
    return 0;
}
