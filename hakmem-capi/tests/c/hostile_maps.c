/* Near vm.max_map_count every system call that would make one mapping more fails with ENOMEM: mmap, and
 * also the munmap or madvise that would cut one in two. */
#include "../support/maps.h"

enum { BLOCKS = 3000, RUNS = 2000 };

static struct {
    unsigned char *at;
    size_t size;
} blocks[BLOCKS];
static unsigned char *runs[RUNS];
static long refused;

static void allocate(uint64_t *state, int strict) {
    for (int i = 0; i < BLOCKS; i++) {
        size_t size = random_size(state, 1);
        if (i % 50 == 0) size = 70000 + next_random(state) % 3000000;
        errno = 0;
        unsigned char *p = i % 3 ? malloc(size) : memalign(4096 << i % 7, size);
        CHECK(p != NULL || (errno == ENOMEM && !strict));
        refused += p == NULL;
        if (p && i % 25 == 0) {
            unsigned char *moved = realloc(p, size * 2);
            CHECK(moved != NULL || !strict);
            if (moved) p = moved;
        }
        if (p) fill(p, size < 10000 ? size : 10000, size);
        blocks[i].at = p, blocks[i].size = size;
    }
}

static void release(int step) {
    for (int i = 0; i < BLOCKS; i += step) {
        if (!blocks[i].at) continue;
        size_t size = blocks[i].size;
        CHECK(holds(blocks[i].at, size < 10000 ? size : 10000, size));
        free(blocks[i].at);
        blocks[i].at = NULL;
    }
    malloc_trim(0);
}

int main(void) {
    uint64_t state = 4711;
    if (too_many_maps()) {
        puts("skipped: vm.max_map_count is too high to reach");
        return 0;
    }
    allocate(&state, 1);
    struct used_up used = use_up_maps();
    release(2);
    allocate(&state, 0);
    for (int i = 0; i < RUNS; i++) { /* 4 GiB that is never touched: more than was free before */
        errno = 0;
        runs[i] = malloc(2000000 + (size_t)i * 100);
        CHECK(runs[i] != NULL || errno == ENOMEM);
        refused += runs[i] == NULL;
    }
    CHECK(refused > 0); /* else the limit was not felt */
    for (int i = 0; i < RUNS; i++) free(runs[i]);
    release(2);
    release(1);
    allocate(&state, 0);
    release(1);
    dprintf(1, "about %ld mappings of our own; %ld allocations refused at the limit\n", 2 * used.made, refused);
    CHECK(munmap(used.area, used.length) == 0);
    allocate(&state, 1);
    release(1);
    puts("ok");
    return 0;
}
