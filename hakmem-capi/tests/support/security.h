/* What the security_*.c programs share: PROGRAM WHAT/SIZE does one kind of misuse, once, in the middle of an
 * ordinary small history of allocations, goes on for a little, and says how it ended by its status:
 *   0  nobody is worse off; 3  somebody is: EFFECT, the line on stdout, and nobody has noticed;
 *   4  this allocator has no such function; anything else is a fault of the program.
 * PROGRAM list prints the kinds: group, WHAT/SIZE, words, with tabs between. */
#ifndef HAKMEM_SECURITY_H
#define HAKMEM_SECURITY_H

#include "test.h"
#include <sys/mman.h>
#include <sys/resource.h>

enum { SMALL = 1, MEDIUM = 2, LARGE = 4, HUGE = 8, ALL = 15, ONE = 16 };
enum { HARMLESS = 0, UNNOTICED = 3, ABSENT = 4 };

/* A row of a program's table: `what/small` and so on, or `what` alone for those that have no size. */
struct kind {
    const char *group, *what;
    void (*misuse)(void);
    int sizes;
    const char *words;
};
static const struct {
    const char *name;
    size_t about;
    int number, many, patience;
} SIZES[] = {{"small", 32, 200, 2000, 1000000},
             {"medium", 5000, 40, 300, 100000},
             {"large", 200 << 10, 6, 24, 5000},
             {"huge", 4 << 20, 3, 8, 1000}};

/* What the program believes to own. `watched` is memory that is no block: an allocator must never return it. */
struct block {
    unsigned char *at;
    size_t size;
    uint64_t seed;
    char live, watched;
};
static struct block blocks[4096];
static int count;
static const char *effect;
static uint64_t state = 88172645463325252ULL;
/* The size under test, which the allocator serves without rounding it up, and the blocks that have it. */
static size_t SIZE;
static int scale, number, first, own;

static inline void had(const char *what) {
    if (!effect) effect = what;
}

/* The compiler is not to know where a pointer comes from, nor that it is freed. */
static inline unsigned char *hide(void *pointer) {
    void *volatile hidden = pointer;
    return (unsigned char *)hidden;
}

/* A block of no bytes has an address of its own. */
static inline int overlaps(const unsigned char *at, size_t size, const struct block *other) {
    return other->live && at < other->at + other->size + !other->size && other->at < at + size + !size;
}

/* Enters a block that was just allocated, and fills it with a pattern of its own. Its number. */
static int enter(void *block, size_t size) {
    CHECK(count < 4096);
    struct block *added = &blocks[count];
    *added = (struct block){(unsigned char *)block, size, next_random(&state), 0, 0};
    if (!block) had("no memory");
    for (int i = 0; block && i < count; i++) {
        if (!overlaps(added->at, size, &blocks[i])) continue;
        had(blocks[i].watched ? "memory that is no block was handed out" : "memory was handed out twice");
        if (blocks[i].watched) return count++; /* to be left as it is, and not freed */
    }
    if (block) fill(block, size, added->seed);
    added->live = block != NULL;
    return count++;
}

static int take(size_t size) { return enter(malloc(size), size); }

/* More blocks of the size than an allocator keeps within reach of a thread. */
static inline void take_many(void) {
    for (int i = 0; i < SIZES[scale].many * 5 / 4; i++) take(SIZE);
}

/* Allocates and frees until a freed block is handed out again, for a long time. Whose it is then, or -1. */
static inline int wait_for(const unsigned char *block) {
    for (int i = 0; i < SIZES[scale].patience; i++) {
        unsigned char *other = hide(malloc(SIZE));
        if (other == block) return enter(other, SIZE);
        free(other);
    }
    return -1;
}

static void look(int i) {
    if (blocks[i].live && !blocks[i].watched && !holds(blocks[i].at, blocks[i].size, blocks[i].seed))
        had("the data of a block was changed");
}

/* The program means no longer to own it: the address, still to be freed. */
static unsigned char *drop(int i) {
    blocks[i].live = 0;
    return hide(blocks[i].at);
}

static void give(int i) {
    look(i);
    if (blocks[i].live && !blocks[i].watched) free(drop(i));
}

static void look_at_all(void) {
    for (int i = 0; i < count; i++) look(i);
}

/* Memory of the program's own that is no block. */
static inline unsigned char *watch(void *memory, size_t size) {
    CHECK(count < 4096);
    blocks[count++] = (struct block){(unsigned char *)memory, size, 0, 1, 1};
    return hide(memory);
}

static size_t some_size(int i) {
    uint64_t r = next_random(&state) >> 20;
    return i % 8 == 7 ? 1024 + r % 40000 : i % 32 == 1 ? 60000 + r % 5000 : i % 64 == 2 ? 200000 : 1 + r % 512;
}

/* Blocks of many sizes, of which a third is freed; then those of the size under test one after the other. */
static void history(size_t about) {
    void *probe = malloc(about);
    SIZE = malloc_usable_size(probe);
    free(probe);
    for (int i = 0; i < 240; i++) take(some_size(i));
    for (int i = 0; i < count; i += 3) give(i);
    first = count;
    for (int i = 0; i < number; i++) take(SIZE);
    for (int i = 2; i < number / 2; i += 7) give(first + i);
    own = first + number * 3 / 4;
    if (scale == 3) own = first + 1; /* the one in the middle of three */
}

/* Frees half, allocates, frees all, allocates again: what is noticed late is noticed here. */
static void go_on(void) {
    look_at_all();
    for (int i = 0; i < count; i += 2) give(i);
    for (int i = 0; i < 150; i++) take(some_size(i));
    for (int i = 0; i < number / 2 + 2; i++) {
        take(SIZE);
        if (scale < 3) take(SIZE / 2), take(SIZE * 2);
    }
    look_at_all();
    for (int i = 0; i < count; i++) give(i);
    for (int i = 0, from = count; i < 100; i++) {
        take(some_size(i));
        if (i % 10 == 9) give(from + i / 2);
    }
    look_at_all();
    for (int i = 0; i < count; i++) give(i);
}

static int list(const struct kind *kinds) {
    for (const struct kind *kind = kinds; kind->what; kind++) {
        if (kind->sizes & ONE) printf("%s\t%s\t%s\n", kind->group, kind->what, kind->words);
        for (int s = 0; s < 4; s++) {
            if (kind->sizes >> s & 1) printf("%s\t%s/%s\t%s\n", kind->group, kind->what, SIZES[s].name, kind->words);
        }
    }
    return 0;
}

static int security_main(const struct kind *kinds, int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "list")) return list(kinds);
    CHECK(argc == 2);
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    alarm(30);
    const char *slash = strchr(argv[1], '/');
    size_t length = slash ? (size_t)(slash - argv[1]) : strlen(argv[1]);
    while (slash && scale < 4 && strcmp(SIZES[scale].name, slash + 1)) scale++;
    CHECK(scale < 4);
    number = SIZES[scale].number;
    history(SIZES[scale].about);
    /* `none/SIZE`: the same history without misuse. */
    const struct kind *kind = kinds;
    int misuse = strncmp(argv[1], "none/", 5) != 0;
    while (misuse && kind->what && (strncmp(kind->what, argv[1], length) || kind->what[length])) kind++;
    CHECK(!misuse || (kind->what && kind->sizes & (slash ? 1 << scale : ONE)));
    if (misuse) kind->misuse();
    go_on();
    if (effect) dprintf(1, "%s\n", effect);
    return effect ? UNNOTICED : HARMLESS;
}

#endif
