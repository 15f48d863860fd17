/* Near vm.max_map_count a block in the middle of a mapping cannot be unmapped. Such memory is kept: what may
 * go goes though the rest may not, and smaller blocks are made of the rest. */
#include "../support/maps.h"

enum { MOST = 701, SIZE = 8 << 20, MEDIUM = 512 << 10, SMALL = 100, SMALLS = (20 << 20) / SMALL };

static unsigned char *blocks[MOST], *smalls[SMALLS], *mediums[MOST * (SIZE / MEDIUM)];

static int by_address(const void *a, const void *b) {
    const unsigned char *x = *(unsigned char *const *)a, *y = *(unsigned char *const *)b;
    return (x > y) - (x < y);
}

static long mapped_mib(void) { return mapped_kib() >> 10; }

/* With so many blocks, an odd number. */
int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 0;
    CHECK(count % 2 && count <= MOST);
    if (too_many_maps()) {
        puts("skipped: vm.max_map_count is too high to reach");
        return 0;
    }
    long first = mapped_mib();
    for (int i = 0; i < count; i++) {
        CHECK((blocks[i] = malloc(SIZE)) != NULL);
        blocks[i][0] = 1;
    }
    qsort(blocks, (size_t)count, sizeof *blocks, by_address);
    /* A gap behind which two blocks follow each other, in the middle: at an end all would go at once. */
    int gap = count / 2 | 1;
    while (blocks[gap + 2] != blocks[gap] + 2 * SIZE) CHECK((gap -= 2) > 0);
    free(blocks[gap]);
    malloc_trim(0);
    struct used_up used = use_up_maps();
    long all = mapped_mib(), whole = SIZE >> 20;
    for (int i = 1; i < count; i += 2)
        if (i != gap) free(blocks[i]);
    malloc_trim(0);
    long kept = mapped_mib();
    /* Most lie between others, and their pages have been given back. */
    CHECK(all - kept < count / 2 * whole / 2);
    CHECK(malloc_trim(0) == 0);
    /* The one behind the gap may go. Then the one behind that lies at a gap. */
    free(blocks[gap + 1]);
    blocks[gap + 1] = NULL;
    malloc_trim(0);
    long gone = kept - mapped_mib(), small = 0, medium = 0;
    for (; small < SMALLS && (smalls[small] = malloc(SMALL)) != NULL; small++) memset(smalls[small], (int)small, SMALL);
    while ((mediums[medium] = malloc(MEDIUM)) != NULL) {
        mediums[medium++][0] = 2;
        CHECK(medium < MOST * (SIZE / MEDIUM));
    }
    dprintf(1, "%ld of %ld MiB could not be unmapped, then %ld MiB were; %ld small blocks, %ld of %d KiB\n", kept, all, gone,
            small, medium, MEDIUM >> 10);
    CHECK(gone >= 2 * whole);
    CHECK(small == SMALLS);
    /* Three of them in two MiB; and what is at the ends of kept memory is lost. */
    CHECK(medium >= (count / 2 - 2) * 3 * 3 - SMALL * SMALLS / (MEDIUM * 3 / 4));
    for (int i = 0; i < count; i += 2) CHECK(i == gap + 1 || blocks[i][0] == 1);
    for (long i = 0; i < small; i++) {
        CHECK(smalls[i][0] == (unsigned char)i && smalls[i][SMALL - 1] == (unsigned char)i);
        free(smalls[i]);
    }
    for (long i = 0; i < medium; i++) {
        CHECK(mediums[i][0] == 2);
        free(mediums[i]);
    }
    CHECK(munmap(used.area, used.length) == 0);
    for (int i = 0; i < count; i += 2) free(blocks[i]);
    malloc_trim(0);
    long left = mapped_mib() - first;
    dprintf(1, "%ld MiB more than at first\n", left);
    CHECK(left < 64);
    puts("ok");
    return 0;
}
