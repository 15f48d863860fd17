/* Near vm.max_map_count a block in the middle of a mapping cannot be unmapped. Such memory is kept: what may
 * go goes though the rest may not, and small blocks are made of the rest. */
#include "../support/maps.h"

enum { BLOCKS = 301, SIZE = 5 << 20, MIB = 1 << 20, SMALL = 100, SMALLS = 150 * MIB / SMALL };

static unsigned char *blocks[BLOCKS];
static unsigned char *smalls[SMALLS];

static int by_address(const void *a, const void *b) {
    const unsigned char *x = *(unsigned char *const *)a, *y = *(unsigned char *const *)b;
    return (x > y) - (x < y);
}

static long mapped_mib(void) { return mapped_kib() >> 10; }

int main(void) {
    if (too_many_maps()) {
        puts("skipped: vm.max_map_count is too high to reach");
        return 0;
    }
    for (int i = 0; i < BLOCKS; i++) {
        CHECK((blocks[i] = malloc(SIZE)) != NULL);
        blocks[i][0] = 1;
    }
    qsort(blocks, BLOCKS, sizeof *blocks, by_address);
    /* A gap, behind which three blocks follow each other. */
    int gap = BLOCKS - 4;
    while (blocks[gap + 2] != blocks[gap] + 2 * SIZE) CHECK((gap -= 2) > BLOCKS / 2);
    free(blocks[gap]);
    malloc_trim(0);
    struct used_up used = use_up_maps();
    long all = mapped_mib();
    for (int i = 1; i < BLOCKS; i += 2)
        if (i != gap) free(blocks[i]);
    malloc_trim(0);
    long kept = mapped_mib();
    /* Most lie between others. */
    CHECK(all - kept < BLOCKS / 2 * 5 / 2);
    /* The one behind the gap may go. Then the one behind that lies at a gap. */
    free(blocks[gap + 1]);
    blocks[gap + 1] = NULL;
    malloc_trim(0);
    long gone = kept - mapped_mib();
    long made = 0;
    for (; made < SMALLS && (smalls[made] = malloc(SMALL)) != NULL; made++) memset(smalls[made], (int)made, SMALL);
    dprintf(1, "%ld of %ld MiB could not be unmapped, then %ld MiB were; %ld small blocks\n", kept, all, gone, made);
    CHECK(gone >= 10);
    CHECK(made == SMALLS);
    for (int i = 0; i < BLOCKS; i += 2) CHECK(i == gap + 1 || blocks[i][0] == 1);
    for (long i = 0; i < made; i++) {
        CHECK(smalls[i][0] == (unsigned char)i && smalls[i][SMALL - 1] == (unsigned char)i);
        free(smalls[i]);
    }
    CHECK(munmap(used.area, used.length) == 0);
    for (int i = 0; i < BLOCKS; i += 2) free(blocks[i]);
    malloc_trim(0);
    dprintf(1, "%ld MiB left\n", mapped_mib());
    puts("ok");
    return 0;
}
