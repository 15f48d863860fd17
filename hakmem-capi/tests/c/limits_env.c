/* A program at HAKMEM_HARD_LIMIT=64M, by the C library's names alone: null and ENOMEM, and it lives on. */
#include "api_check.h"

static void *block[64];

static size_t fill_up(size_t n) {
    size_t count = 0;
    errno = 0;
    while (count < 64 && (block[count] = malloc(n)) != NULL) {
        fill(block[count], 4096, count);
        count++;
    }
    CHECKN(count == 64 || errno == ENOMEM, errno);
    return count;
}

int main(int argc, char **argv) {
    size_t count;
    void *small;
    setvbuf(stdout, NULL, _IONBF, 0);
    if (argc > 1 && strcmp(argv[1], "tiny") == 0) { /* not even a SuperSlab */
        errno = 0;
        CHECK(hide(malloc(10)) == NULL && errno == ENOMEM);
        CHECK(hide(calloc(3, MIB)) == NULL && errno == ENOMEM);
        free(NULL);
        (void)!write(1, "limits ok\n", 10);
        _exit(0);
    }
    if (argc > 1 && strcmp(argv[1], "none") == 0) {
        CHECK(fill_up(2 * MIB) == 64);
        puts("limits ok");
        return 0;
    }
    CHECK((small = malloc(100)) != NULL);
    for (int round = 0; round < 3; round++) {
        count = fill_up(2 * MIB);
        CHECKN(count >= 28 && count <= 31, count); /* small blocks have a SuperSlab or two */
        void *grown;
        errno = 0;
        CHECK((grown = realloc(block[0], 8 * MIB)) == NULL && errno == ENOMEM);
        CHECK(same(block[0], 4096, 0));
        free(block[--count]);
        free(block[--count]);
        free(block[--count]);
        CHECK((grown = realloc(block[0], 8 * MIB)) != NULL);
        CHECK(same(grown, 4096, 0));
        block[0] = grown;
        while (count > 0) free(block[--count]);
    }
    free(small);
    puts("limits ok");
    return 0;
}
