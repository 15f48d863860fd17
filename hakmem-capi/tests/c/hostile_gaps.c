/* Blocks at multiples of more than their length leave gaps, so each is a mapping of its own: until
 * vm.max_map_count is reached. What was mapped in vain there must be gone as well, again and again. */
#include "../support/test.h"

enum { ALIGN = 128 << 10 };

static long pages(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%ld", &pages) == 1);
    fclose(file);
    return pages;
}

int main(void) {
    long most = proc_number("/proc/sys/vm/max_map_count", ""), first = 0;
    if (most > 300000) {
        puts("skipped: vm.max_map_count is too high to reach");
        return 0;
    }
    size_t limit = (size_t)most * 2;
    void **blocks = calloc(limit, sizeof *blocks);
    CHECK(blocks != NULL);
    for (int round = 0; round < 3; round++) {
        long before = pages(), made = 0;
        while ((size_t)made < limit && posix_memalign(&blocks[made], ALIGN, 64) == 0) {
            CHECK((uintptr_t)blocks[made] % ALIGN == 0);
            memset(blocks[made], made, 64);
            made++;
        }
        for (long i = 0; i < made; i++) {
            CHECK(((unsigned char *)blocks[i])[63] == (unsigned char)i);
            free(blocks[i]);
        }
        malloc_trim(0);
        long more = (pages() - before) * sysconf(_SC_PAGESIZE) >> 20;
        dprintf(1, "%ld blocks; %ld MiB of address space more afterwards\n", made, more);
        CHECK(more < 64);
        CHECK(round == 0 || made > first / 10 * 9);
        if (round == 0) first = made;
    }
    puts("ok");
    return 0;
}
