/* mallinfo2, mallinfo, malloc_stats, malloc_info, mallopt and malloc_trim: true figures, and no harm done. */
#include "api_check.h"

#define COUNT (64 * 1024)

static void *block[COUNT];

static void show(const char *what, struct mallinfo2 m) {
    printf("%s: arena %zu uordblks %zu fordblks %zu hblks %zu hblkhd %zu\n", what, m.arena, m.uordblks, m.fordblks,
           m.hblks, m.hblkhd);
}

/* Small blocks: what is in use rises by what was asked for and some rounding, and falls again. */
static void small(void) {
    struct mallinfo2 before = mallinfo2(), full, after;
    struct mallinfo old;
    size_t asked = 0, rise;
    for (size_t i = 0; i < COUNT; i++) {
        size_t n = 512 + i % 1024;
        block[i] = malloc(n);
        CHECK(block[i] != NULL);
        fill(block[i], 64, i);
        asked += n;
    }
    full = mallinfo2();
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    old = mallinfo();
#pragma GCC diagnostic pop
    show("before", before);
    show("full", full);
    rise = full.uordblks - before.uordblks;
    CHECKN(full.uordblks > before.uordblks, full.uordblks);
    CHECKN(rise >= asked, rise);
    CHECKN(rise < asked + asked / 4 + 2 * MIB, rise);
    CHECKN(full.arena >= full.uordblks, full.arena);
    CHECKN(full.uordblks + full.fordblks == full.arena, full.fordblks);
    CHECKN((size_t)old.uordblks == full.uordblks, old.uordblks);
    CHECKN((size_t)old.arena == full.arena, old.arena);
    for (size_t i = 0; i < COUNT; i++) free(block[i]);
    CHECK(malloc_trim(0) == 1);
    after = mallinfo2();
    show("after", after);
    CHECKN(after.uordblks < before.uordblks + MIB, after.uordblks);
    CHECKN(after.arena < full.arena, after.arena);
    CHECKN(after.uordblks + after.fordblks == after.arena, after.fordblks);
}

/* Longer blocks are in use like small ones, or mappings, as in hardened mode: but not both, and not free. */
static void medium(void) {
    struct mallinfo2 before = mallinfo2(), full, after;
    for (size_t i = 0; i < 500; i++) CHECK((block[i] = malloc(200000)) != NULL);
    full = mallinfo2();
    show("before", before);
    show("full", full);
    size_t used = full.uordblks - before.uordblks, mapped = full.hblkhd - before.hblkhd;
    CHECKN(used == 0 || mapped == 0, used);
    CHECKN(used + mapped >= 100 * 1000000, used + mapped);
    CHECKN(used + mapped < 140 * 1000000, used + mapped);
    CHECKN(full.hblks - before.hblks == (mapped ? 500 : 0), full.hblks);
    CHECKN(full.uordblks + full.fordblks == full.arena, full.fordblks);
    CHECKN(full.fordblks < before.fordblks + 40 * 1000000, full.fordblks);
    for (size_t i = 0; i < 500; i++) free(block[i]);
    after = mallinfo2();
    CHECKN(after.uordblks < before.uordblks + MIB && after.hblkhd == before.hblkhd, after.uordblks);
}

/* A block with a mapping of its own counts among the mappings. */
static void large(void) {
    struct mallinfo2 before = mallinfo2(), full, after;
    void *p = malloc(64 * MIB), *q = malloc(100 * MIB);
    CHECK(p != NULL && q != NULL);
    fill(p, 64, 1);
    fill(q, 64, 1);
    full = mallinfo2();
    show("before", before);
    show("full", full);
    CHECKN(full.hblks == before.hblks + 2, full.hblks);
    CHECKN(full.hblkhd >= before.hblkhd + 164 * MIB, full.hblkhd);
    CHECKN(full.hblkhd < before.hblkhd + 170 * MIB, full.hblkhd);
    free(p);
    free(q);
    malloc_trim(0);
    after = mallinfo2();
    show("after", after);
    CHECKN(after.hblks == before.hblks, after.hblks);
    CHECKN(after.hblkhd == before.hblkhd, after.hblkhd);
}

static void printed(void) {
    malloc_stats(); /* to stderr: the test looks at it */
    char *text = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    CHECK(stream != NULL);
    CHECK(malloc_info(1, stream) == EINVAL);
    void *large = malloc(8 * MIB); /* beside what the stream has */
    size_t count = 0, size = 0;
    CHECK(malloc_info(0, stream) == 0);
    fclose(stream);
    CHECK(text != NULL && strncmp(text, "<malloc", 7) == 0 && strstr(text, "</malloc>") != NULL);
    char *mapped = strstr(text, "type=\"mmap\"");
    CHECK(mapped != NULL && sscanf(mapped, "type=\"mmap\" count=\"%zu\" size=\"%zu\"", &count, &size) == 2);
    CHECKN(count >= 1 && size >= 8 * MIB && size < 64 * MIB, size);
    free(large);
    free(text);
}

static void options(void) {
    static const int known[] = {M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_MMAP_MAX, M_CHECK_ACTION, M_PERTURB,
                                M_ARENA_TEST, M_ARENA_MAX};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        CHECKN(mallopt(known[i], known[i] == M_PERTURB ? 0 : 128 * 1024) == 1, i);
        void *p = malloc(1000), *q = malloc(300000), *z = calloc(1, 5000);
        CHECK(p != NULL && q != NULL && z != NULL && all_zero(z, 5000));
        free(p);
        free(q);
        free(z);
    }
    int unknown = mallopt(987654, 1);
    CHECK(unknown == 0 || unknown == 1);
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    free(malloc(1));
    small();
    medium();
    large();
    printed();
    options();
    malloc_trim(0);
    int again = malloc_trim(0); /* nothing is left that could be returned */
    CHECKN(again == 0 || again == 1, again);
    puts("figures ok");
    return 0;
}
