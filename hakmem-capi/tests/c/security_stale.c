/* Use of what has been freed, what is left in fresh blocks, which addresses come back; blocks of no bytes. */
#include "../support/security.h"

static const char SECRET[] = "secret: ";
static _Alignas(4096) unsigned char target[65536];

static void write_secret(unsigned char *at, size_t size) {
    for (size_t i = 0; i + 8 <= size; i += 8) memcpy(at + i, SECRET, 8);
}
static int has_secret(unsigned char *at, size_t size) {
    uint64_t secret, found;
    memcpy(&secret, SECRET, 8);
    for (size_t i = 0; i + 8 <= size; i += 8) {
        memcpy(&found, at + i, 8);
        if (found == secret) return 1;
    }
    return 0;
}
static void find_secret(unsigned char *at, size_t size) {
    if (has_secret(at, size)) had("the secret was read");
}
/* Frees the block and allocates until it comes back, at most as many as before. Whose it is then, or -1. */
static int reused(unsigned char *block) {
    free(block);
    for (int i = 0; i < number; i++) {
        int new = take(SIZE);
        if (blocks[new].at == block) return new;
    }
    return -1;
}

/* Writes. */
static void write_link(void) {
    unsigned char *block = drop(own), *fake = watch(target, sizeof target) + 4096;
    free(block);
    memcpy(hide(block), &fake, sizeof fake);
    take_many();
}
/* So many frees before that the block's is beyond what the allocator keeps at hand. */
static void write_link_full(void) {
    unsigned char *others[2000], *block = drop(own), *fake = watch(target, sizeof target) + 4096;
    int many = SIZES[scale].many;
    for (int i = 0; i < many; i++) others[i] = (unsigned char *)malloc(SIZE);
    for (int i = 0; i < many; i++) free(hide(others[i]));
    free(block);
    memcpy(hide(block), &fake, sizeof fake);
    take_many();
}
static void write_all(void) {
    unsigned char *block = drop(own);
    free(block);
    memset(hide(block), 'A', SIZE);
    for (int i = 0; i < number; i++) {
        unsigned char *zero = (unsigned char *)calloc(1, SIZE);
        for (size_t j = 0; zero && j < SIZE; j++) {
            if (zero[j]) had("calloc's memory is not zero");
        }
        enter(zero, SIZE);
    }
}
static void write_last(void) {
    unsigned char *block = drop(own);
    free(block);
    hide(block)[SIZE - 1] ^= 0x55;
    for (int i = 0; i < number; i++) take(SIZE);
}
static void write_reused(void) {
    unsigned char *block = drop(own);
    reused(block);
    hide(block)[SIZE / 2] ^= 0x55;
}
/* Much traffic before the write: the block is likely to be somebody else's, or has left a quarantine. */
static void write_late(void) {
    unsigned char *block = drop(own);
    free(block);
    for (int i = 0; i < 4000; i++) free(hide(malloc(some_size(i))));
    for (int i = 0; i < 4 * number; i++) give(take(SIZE));
    for (int i = 0; i < 2 * number; i++) take(SIZE);
    hide(block)[SIZE / 2] ^= 0x55;
}
/* As often as it takes: written while it is free, and then handed out; handed out, and then written. */
static void write_then_wait(void) {
    unsigned char *block = drop(own);
    free(block);
    hide(block)[SIZE / 2] ^= 0x55;
    wait_for(block);
}
static void wait_then_write(void) {
    unsigned char *block = drop(own);
    free(block);
    wait_for(block);
    hide(block)[SIZE / 2] ^= 0x55;
}

/* Reads. */
static void read_freed(void) {
    unsigned char *block = drop(own);
    write_secret(block, SIZE);
    free(block);
    find_secret(hide(block), SIZE);
}
static void read_reused(void) {
    unsigned char *block = drop(own);
    int new = reused(block);
    if (new >= 0) write_secret(drop(new), SIZE);
    find_secret(hide(block), SIZE);
    if (new >= 0) free(hide(block));
}
static void wait_then_read(void) {
    unsigned char *block = drop(own);
    free(block);
    int next = wait_for(block);
    if (next >= 0) write_secret(drop(next), SIZE);
    find_secret(hide(block), SIZE);
    if (next >= 0) free(hide(block));
}
static void read_fresh(void) {
    unsigned char *block = drop(own);
    write_secret(block, SIZE);
    free(block);
    for (int i = 0; i < number; i++) {
        unsigned char *fresh = (unsigned char *)malloc(SIZE);
        find_secret(hide(fresh), SIZE);
        enter(fresh, SIZE);
    }
}
/* All blocks of the size go; what they held is looked for in blocks of another. */
static void free_secrets(void) {
    for (int i = first; i < first + number; i++) {
        if (!blocks[i].live) continue;
        unsigned char *block = drop(i);
        write_secret(block, SIZE);
        free(block);
    }
}
static void read_other_size(void) {
    free_secrets();
    for (int i = 0; i < SIZES[scale].many; i++) {
        unsigned char *fresh = (unsigned char *)malloc(SIZE * 3 / 8);
        find_secret(hide(fresh), SIZE * 3 / 8);
        free(hide(fresh));
    }
}
static void read_grown(void) {
    free_secrets();
    for (int i = 0; i < number; i++) {
        unsigned char *fresh = (unsigned char *)malloc(SIZE / 3);
        memset(fresh, 0, SIZE / 3);
        fresh = (unsigned char *)realloc(hide(fresh), SIZE);
        find_secret(hide(fresh), SIZE);
        enter(fresh, SIZE);
    }
}

/* Reuse: what an attacker has to know. */
static void at_once(void) {
    unsigned char *block = drop(own);
    free(block);
    if (blocks[take(SIZE)].at == block) had("a freed block came back at once");
}
static void soon(void) {
    if (reused(drop(own)) >= 0) had("a freed block came back soon");
}
static void in_order(void) {
    int batch = number >= 40 ? 16 : 3, last = -9, beside = 0;
    unsigned char *freed[16];
    for (int i = 0; i < batch; i++) free(freed[i] = drop(first + number - 1 - i));
    for (int i = 0; i < batch; i++) {
        unsigned char *at = blocks[take(SIZE)].at;
        int at_freed = 0;
        while (at_freed < batch && freed[at_freed] != at) at_freed++;
        beside += at_freed < batch && abs(at_freed - last) == 1;
        last = at_freed < batch ? at_freed : -9;
    }
    if (2 * beside >= batch) had("freed blocks came back in a known order");
}
/* How many of a hundred new blocks lie as far from the one before as that one from its own. */
static int equal_steps(void) {
    int batch = number >= 40 ? 64 : 8, equal = 0;
    for (int i = 0; i < batch; i++) take(SIZE);
    struct block *last = &blocks[count - batch + 2];
    for (; last < &blocks[count]; last++) equal += last[0].at - last[-1].at == last[-1].at - last[-2].at;
    return 100 * equal / (batch - 2);
}
static void in_a_row(void) {
    if (equal_steps() > 50) had("blocks came in a row");
}
static void all_in_a_row(void) {
    if (equal_steps() > 90) had("all blocks came in a row");
}
static void as_another_size(void) {
    for (int i = first; i < first + number; i++) {
        if (blocks[i].live) free(drop(i));
    }
    for (int i = 0; i < 300; i++) {
        struct block *new = &blocks[take(SIZE * 3 / 8)];
        for (int j = first; j < first + number; j++) {
            if (new->at < blocks[j].at + SIZE && blocks[j].at < new->at + new->size)
                had("memory came back as a block of another size");
        }
    }
}

/* Blocks of no bytes, each between blocks of 8. */
static unsigned char *nothing(void *(*made)(void)) {
    for (int i = 0; i < 20; i++) take(8), enter(made(), 0);
    take(8);
    return hide(blocks[count - 22].at);
}
static void *malloc_nothing(void) { return malloc(0); }
static void *calloc_nothing(void) { return calloc(0, 16); }
static void zero_write_1(void) { nothing(malloc_nothing)[0] ^= 0x55; }
static void zero_calloc(void) { nothing(calloc_nothing)[0] ^= 0x55; }
static void zero_write_32(void) {
    unsigned char *at = nothing(malloc_nothing);
    for (int i = 0; i < 32; i++) ((volatile unsigned char *)at)[i] ^= 0x55;
}
static void zero_under(void) { nothing(malloc_nothing)[-1] ^= 0x55; }
static void zero_read(void) {
    for (int i = first; i < first + 60; i++) {
        unsigned char *small = (unsigned char *)malloc(8);
        write_secret(small, 8);
        free(hide(small));
    }
    find_secret(nothing(malloc_nothing), 16);
}
static void zero_double(void) {
    unsigned char *at = nothing(malloc_nothing);
    blocks[count - 22].live = 0;
    free(at);
    free(hide(at));
    for (int i = 0; i < 20; i++) take(8);
}

static const struct kind KINDS[] = {
    {"write after free", "write-link", write_link, ALL, "an address into the first word"},
    {"write after free", "write-link-full", write_link_full, ALL, "the same after many other frees"},
    {"write after free", "write-all", write_all, ALL, "all of the block, then calloc"},
    {"write after free", "write-last", write_last, ALL, "the last byte"},
    {"write after free", "write-reused", write_reused, ALL, "after it is somebody else's, if it can be had"},
    {"write after free", "write-late", write_late, ALL, "after much traffic"},
    {"write after free", "write-then-wait", write_then_wait, ALL, "a byte, then waiting long for it to come back"},
    {"write after free", "wait-then-write", wait_then_write, ALL, "a byte, after waiting long for it to come back"},
    {"read after free", "read-freed", read_freed, ALL, "a secret that the block held"},
    {"read after free", "read-reused", read_reused, ALL, "a secret of its next owner, if it can be had"},
    {"read after free", "wait-then-read", wait_then_read, ALL, "the same, after waiting long for it"},
    {"uninitialised read", "fresh", read_fresh, ALL, "a secret of an earlier block of the size"},
    {"uninitialised read", "fresh-other-size", read_other_size, ALL, "of earlier blocks of another size"},
    {"uninitialised read", "fresh-grown", read_grown, ALL, "of earlier blocks, in what realloc has added"},
    {"reuse", "reuse-at-once", at_once, ALL, "a freed block is the next one handed out"},
    {"reuse", "reuse-soon", soon, ALL, "a freed block comes back soon"},
    {"reuse", "reuse-order", in_order, ALL, "freed blocks come back in a known order"},
    {"reuse", "fresh-row", in_a_row, ALL, "most new blocks lie behind the one before"},
    {"reuse", "fresh-known", all_in_a_row, ALL, "from one new block follows where the next 60 lie (or 8)"},
    {"reuse", "reuse-other-size", as_another_size, ALL, "freed memory becomes blocks of another size"},
    {"no bytes", "zero-write-1", zero_write_1, ONE, "a byte is written into a block of malloc(0)"},
    {"no bytes", "zero-write-32", zero_write_32, ONE, "32 bytes are written into it"},
    {"no bytes", "zero-calloc", zero_calloc, ONE, "a byte is written into a block of calloc(0, 16)"},
    {"no bytes", "zero-under", zero_under, ONE, "a byte is written before a block of malloc(0)"},
    {"no bytes", "zero-read", zero_read, ONE, "16 bytes are read from it"},
    {"no bytes", "zero-double", zero_double, ONE, "it is freed twice"},
    {0}};

int main(int argc, char **argv) { return security_main(KINDS, argc, argv); }
