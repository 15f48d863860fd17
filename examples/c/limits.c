/* A C program that uses Hakmem by malloc and free as ever, and its own interface for limits and
 * statistics. */
#include <errno.h>
#include <hakmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MIB = 1 << 20, BLOCKS = 100 };

/* Called inside an allocation: it may allocate, but must not wait for locks that are held around
 * allocations. */
static void too_much(size_t held, size_t limit, void *calls) {
    (void)held;
    (void)limit;
    ++*(int *)calls;
}

int main(void) {
    static int calls;
    static void *blocks[BLOCKS];
    int allocated = 0;

    printf("Hakmem %s\n", hak_version());
    hak_on_soft_limit(too_much, &calls);
    if (hak_set_limits(32 * (size_t)MIB, 64 * (size_t)MIB) != 0)
        return 1;

    while (allocated < BLOCKS && (blocks[allocated] = malloc(2 * MIB)) != NULL)
        memset(blocks[allocated++], 1, 2 * MIB);
    if (allocated == BLOCKS || errno != ENOMEM)
        return 2;
    printf("%d blocks of 2 MiB below the hard limit of 64 MiB, then ENOMEM\n", allocated);
    printf("hook calls: %d\n", calls);

    while (allocated > 0)
        free(blocks[--allocated]);
    printf("purge gave memory back: %s\n", hak_purge() > 0 ? "yes" : "no");

    hak_stats_t stats;
    hak_stats(&stats, sizeof stats);
    printf("refusals by the hard limit: %d\n", (int)stats.hard_limit_hits);
    return 0;
}
