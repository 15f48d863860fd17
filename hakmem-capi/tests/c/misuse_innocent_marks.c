/* A correct program, but for reading what it has freed: it learns the mark of each block that way, and has it
 * in blocks in use, at the mark's own place and at others. It must not be accused, and its blocks are its own
 * to the last byte. */
#include "../support/test.h"
#include <pthread.h>

enum { MOST = 600, BYTES = 2 << 20 };

static const size_t sizes[] = {1, 8, 9, 16, 17, 24, 40, 64, 100, 256, 1000, 1024, 1025, 4096, 16384, 40000};
static char *blocks[MOST], *was[MOST], marks[MOST][16];
static int count;

static void *free_all(void *unused) {
    for (int i = 0; i < count; i++) free(blocks[i]);
    return unused;
}

/* The second word is where it was: in a magazine or on a list. */
static void learn(void) {
    for (int i = 0; i < count; i++) memcpy(marks[i], blocks[i], 16);
}

static void all(size_t size) {
    for (int i = 0; i < count; i++) {
        blocks[i] = malloc(size);
        CHECK(blocks[i] && malloc_usable_size(blocks[i]) >= 16);
    }
}

/* Blocks come back in another order, so each gets the mark that belongs to its address. For blocks that another
 * thread will free, what they hold in a magazine: a whole mark counts as proof there, for it would have to come
 * from a block that was freed. */
static void forge(int elsewhere) {
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++)
            if (blocks[i] == was[j]) memcpy(blocks[i], marks[j], elsewhere ? 12 : 16);
    for (int i = 0; i < count && elsewhere; i++) memset(blocks[i] + 12, 0, 4);
}

static void round_of(size_t size, int elsewhere) {
    count = BYTES / size < MOST ? (int)(BYTES / size) : MOST;
    pthread_t thread;
    all(size);
    for (int i = 0; i < count; i++) {
        size_t usable = malloc_usable_size(blocks[i]);
        memset(blocks[i], i, usable);
    }
    for (int i = 0; i < count; i++) {
        size_t usable = malloc_usable_size(blocks[i]);
        for (size_t j = 0; j < usable; j++) CHECK(blocks[i][j] == (char)i);
    }
    memcpy(was, blocks, sizeof was);
    free_all(NULL);
    learn();
    all(size);
    forge(elsewhere);
    if (elsewhere) {
        CHECK(pthread_create(&thread, NULL, free_all, NULL) == 0 && pthread_join(thread, NULL) == 0);
    } else {
        free_all(NULL);
    }
    /* The marks of other blocks, and whole freed blocks copied. */
    all(size);
    for (int i = 0; i < count; i++) memcpy(blocks[i], marks[(i + 7) % count], 16);
    free_all(NULL);
    all(size);
    for (int i = 0; i < count / 2; i++) {
        size_t usable = malloc_usable_size(blocks[i]);
        char *other = blocks[count - 1 - i];
        memcpy(other, blocks[i], usable); /* whatever it came with */
    }
    free_all(NULL);
    /* Freed as it came, again and again. */
    for (int i = 0; i < 3000; i++) {
        char *p = malloc(size);
        CHECK(p);
        free(p);
    }
    char *zero = calloc(1, size);
    CHECK(zero);
    for (size_t i = 0; i < size; i++) CHECK(zero[i] == 0);
    zero = realloc(zero, 70000);
    CHECK(zero);
    zero = realloc(zero, size);
    CHECK(zero);
    for (size_t i = 0; i < size; i++) CHECK(zero[i] == 0);
    free(zero);
}

int main(void) {
    for (int round = 0; round < 3; round++)
        for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) round_of(sizes[i], round == 1);
    puts("ok");
    return 0;
}
