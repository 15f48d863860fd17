/* Loops whose instructions are counted: budget_loop KIND SIZE ROUNDS. One round is BATCH operations (or
 * pairs). */
#include "../support/test.h"

enum { BATCH = 50, BURST = 1000 };

static void *blocks[BURST];

/* Kept out of line so that the loops are what a caller's would be, and not merged with main. */
__attribute__((noinline)) static void lifo(size_t size, long rounds) {
    for (long r = 0; r < rounds; r++) {
        for (int i = 0; i < BATCH; i++) blocks[i] = malloc(size);
        for (int i = BATCH - 1; i >= 0; i--) free(blocks[i]);
    }
}

__attribute__((noinline)) static void zeroed(size_t size, long rounds) {
    for (long r = 0; r < rounds; r++) {
        for (int i = 0; i < BATCH; i++) blocks[i] = calloc(1, size);
        for (int i = BATCH - 1; i >= 0; i--) free(blocks[i]);
    }
}

/* A block that changes its size within its class. */
__attribute__((noinline)) static void in_place(size_t size, long rounds) {
    char *volatile p = malloc(size);
    for (long r = 0; r < rounds; r++)
        for (int i = 0; i < BATCH; i++) p = realloc(p, size - (unsigned)(i & 1));
    free(p);
}

/* New blocks by `realloc` of null, as interpreters ask for them. */
__attribute__((noinline)) static void anew(size_t size, long rounds) {
    for (long r = 0; r < rounds; r++) {
        for (int i = 0; i < BATCH; i++) blocks[i] = realloc(*(void *volatile *)&blocks[BURST - 1], size);
        for (int i = BATCH - 1; i >= 0; i--) free(blocks[i]);
    }
}

/* A block that gets another class each time, and is copied. */
__attribute__((noinline)) static void moved(size_t size, long rounds) {
    char *volatile p = malloc(size);
    for (long r = 0; r < rounds; r++)
        for (int i = 0; i < BATCH; i++) p = realloc(p, i & 1 ? size : 4 * size);
    free(p);
}

__attribute__((noinline)) static void nothing(size_t size, long rounds) {
    (void)size;
    for (long r = 0; r < rounds; r++)
        for (int i = 0; i < BATCH; i++) free(*(void *volatile *)&blocks[BURST - 1]);
}

__attribute__((noinline)) static void burst(size_t size, long rounds) {
    for (long r = 0; r < rounds; r++) {
        for (int i = 0; i < BURST; i++) blocks[i] = malloc(size);
        for (int i = 0; i < BURST; i++) free(blocks[i]);
    }
}

/* Two blocks in turn: large ones, which are kept when they are freed. */
__attribute__((noinline)) static void two(size_t size, long rounds) {
    for (long r = 0; r < rounds; r++)
        for (int i = 0; i < BATCH; i++) {
            free(blocks[i & 1]);
            blocks[i & 1] = malloc(size);
        }
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    size_t size = (size_t)atol(argv[2]);
    long rounds = atol(argv[3]);
    if (!strcmp(argv[1], "malloc_free")) lifo(size, rounds);
    else if (!strcmp(argv[1], "calloc_free")) zeroed(size, rounds);
    else if (!strcmp(argv[1], "realloc_in_place")) in_place(size, rounds);
    else if (!strcmp(argv[1], "realloc_null")) anew(size, rounds);
    else if (!strcmp(argv[1], "realloc_moved")) moved(size, rounds);
    else if (!strcmp(argv[1], "free_null")) nothing(size, rounds);
    else if (!strcmp(argv[1], "burst")) burst(size, rounds);
    else if (!strcmp(argv[1], "two")) two(size, rounds);
    else CHECK(!"a known kind");
    return 0;
}
