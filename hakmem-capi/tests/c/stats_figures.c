/* The figures of hak_stats move as their names say. Usage: stats_figures SCENARIO (options come from the environment). */
#include "api_check.h"
#include <hakmem.h>
#include <pthread.h>
#include <sys/resource.h>

#define MANY 20000
#define SIZE 200

static void *block[MANY];
static struct hak_stats_t then, now;
#define ROSE(member) (now.member - then.member)
#define RISES(member) CHECKN(now.member > then.member, now.member)
#define RISES_BY(member, n) CHECKN(now.member - then.member == (uint64_t)(n), now.member - then.member)
#define STAYS(member) CHECKN(now.member == then.member, now.member - then.member)

static void take(size_t count, size_t n) {
    for (size_t i = 0; i < count; i++) {
        block[i] = hak_malloc(n);
        CHECK(block[i] != NULL);
        fill(block[i], n < 32 ? n : 32, i);
    }
}

static void drop(size_t count) {
    for (size_t i = 0; i < count; i++) hak_free(block[i]);
}

static void *on_thread(void *(*body)(void *), void *argument) {
    pthread_t thread;
    void *result;
    CHECK(pthread_create(&thread, NULL, body, argument) == 0);
    CHECK(pthread_join(thread, &result) == 0);
    return result;
}

static void *take_there(void *unused) {
    take(MANY, SIZE);
    return unused;
}

static void *drop_there(void *unused) {
    hak_free(hak_malloc(SIZE)); /* a thread of ours, with a heap */
    drop(MANY);
    return unused;
}

/* HAKMEM_MAGAZINE=off: every block is counted. */
static void exact(void) {
    hak_stats(&then);
    take(1000, 64);
    hak_stats(&now);
    RISES_BY(allocations, 1000);
    CHECKN(ROSE(allocated_bytes) == 64 * 1000, ROSE(allocated_bytes));
    then = now;
    drop(1000);
    hak_stats(&now);
    STAYS(allocations);
    RISES_BY(home_local, 1000);
    STAYS(home_foreign);
    CHECKN(then.allocated_bytes - now.allocated_bytes == 64 * 1000, then.allocated_bytes - now.allocated_bytes);
}

/* Magazines: hits are not counted, misses and overflows are. */
static void magazine(void) {
    uint64_t before;
    for (int i = 0; i < 10; i++) hak_free(hak_malloc(SIZE));
    hak_stats(&then);
    for (int i = 0; i < 100000; i++) hak_free(hide(hak_malloc(SIZE)));
    hak_stats(&now);
    CHECKN(ROSE(allocations) < 1000, ROSE(allocations));
    CHECKN(ROSE(magazine_misses) < 1000, ROSE(magazine_misses));
    before = now.allocated_bytes;
    then = now;
    take(MANY, SIZE);
    hak_stats(&now);
    CHECKN(ROSE(magazine_misses) > 0 && ROSE(magazine_misses) <= MANY, ROSE(magazine_misses));
    STAYS(magazine_overflows);
    CHECKN(ROSE(allocations) > MANY - 1000 && ROSE(allocations) < MANY + 1000, ROSE(allocations));
    CHECKN(now.allocated_bytes - before > MANY * SIZE - 1000 * SIZE, now.allocated_bytes - before);
    CHECKN(now.allocated_bytes - before < MANY * SIZE * 2, now.allocated_bytes - before);
    then = now;
    drop(MANY);
    hak_stats(&now);
    CHECKN(ROSE(magazine_overflows) > 0 && ROSE(magazine_overflows) <= MANY, ROSE(magazine_overflows));
    RISES(home_local);
    STAYS(home_foreign);
    STAYS(outbox_blocks);
    hak_purge();
    hak_stats(&now);
    CHECKN(ROSE(home_local) >= MANY && ROSE(home_local) < MANY + 1000, ROSE(home_local));
    CHECKN(now.allocated_bytes < before + SIZE * 1000, now.allocated_bytes);
}

/* Where refills come from. */
static void refills(void) {
    hak_stats(&then);
    take(MANY, SIZE);
    hak_stats(&now);
    RISES(refill_bump);
    RISES(refill_span);
    RISES(superslabs_mapped);
    RISES(bytes_mapped);
    STAYS(refill_orphan);
    for (size_t i = 0; i < MANY; i += 2) hak_free(block[i]);
    hak_stats(&then);
    for (size_t i = 0; i < MANY; i += 2) block[i] = hak_malloc(SIZE);
    hak_stats(&now);
    CHECKN(ROSE(refill_partial) + ROSE(refill_current) > 0, 0);
    RISES(refill_partial);
    CHECKN(ROSE(superslabs_mapped) == 0, ROSE(superslabs_mapped));
    drop(MANY);
}

/* Blocks made by one thread and freed by another; `outbox` says whether they travel in bundles. */
static void foreign(int outbox) {
    take(MANY, SIZE);
    hak_stats(&then);
    on_thread(drop_there, NULL);
    hak_stats(&now);
    CHECKN(ROSE(home_foreign) >= MANY - 1000 && ROSE(home_foreign) <= MANY, ROSE(home_foreign));
    CHECKN(ROSE(outbox_blocks) == ROSE(home_foreign), ROSE(outbox_blocks));
    if (outbox) CHECKN(ROSE(outbox_pushes) > 0 && ROSE(outbox_pushes) * 2 < ROSE(outbox_blocks), ROSE(outbox_pushes));
    else CHECKN(ROSE(outbox_pushes) == ROSE(outbox_blocks), ROSE(outbox_pushes)); /* each travels alone */
    RISES(publishes);
    CHECKN(ROSE(publishes) <= MANY, ROSE(publishes));
    then = now;
    take(MANY, SIZE); /* the owner finds them on its ready list */
    hak_stats(&now);
    RISES(refill_ready);
    drop(MANY);
}

/* Slabs of a thread that has ended serve the next one. */
static void orphans(int adopted) {
    on_thread(take_there, NULL);
    for (size_t i = 0; i < MANY; i += 2) hak_free(block[i]); /* holes for the adopter */
    hak_stats(&then);
    for (size_t i = 0; i < MANY; i += 2) block[i] = hak_malloc(SIZE);
    hak_stats(&now);
    if (adopted) RISES(refill_orphan);
    else STAYS(refill_orphan);
    drop(MANY);
}

static void large(int cached) {
    void *p[3];
    hak_stats(&then);
    for (int i = 0; i < 3; i++) p[i] = hak_malloc(8 * MIB);
    hak_stats(&now);
    RISES_BY(large_allocs, 3);
    STAYS(large_frees);
    CHECKN(ROSE(bytes_mapped) >= 24 * MIB, ROSE(bytes_mapped));
    CHECKN(ROSE(allocated_bytes) >= 24 * MIB && ROSE(allocated_bytes) < 25 * MIB, ROSE(allocated_bytes));
    CHECKN(now.bytes_mapped_peak >= now.bytes_mapped, now.bytes_mapped_peak);
    for (int i = 0; i < 3; i++) hak_free(p[i]);
    hak_stats(&then);
    CHECKN(then.large_frees == now.large_frees + 3, then.large_frees);
    CHECKN(then.bytes_mapped_peak >= now.bytes_mapped, then.bytes_mapped_peak);
    CHECKN(now.allocated_bytes - then.allocated_bytes >= 24 * MIB, then.allocated_bytes);
    hak_free(hak_malloc(8 * MIB));
    hak_stats(&now);
    if (cached) RISES_BY(large_cache_hits, 1);
    else STAYS(large_cache_hits);
    if (!cached) CHECKN(now.bytes_mapped + 24 * MIB <= now.bytes_mapped_peak, now.bytes_mapped);
}

static void threads(void) {
    take_there(NULL);
    hak_stats(&then);
    for (int i = 0; i < 5; i++) on_thread(drop_there, NULL), take(MANY, SIZE);
    hak_stats(&now);
    RISES_BY(threads_started, 5);
    RISES_BY(threads_exited, 5);
    drop(MANY);
}

static void purge(void) {
    struct rusage usage;
    size_t returned;
    take(MANY, 4000);
    for (size_t i = 0; i < MANY; i++) memset(hide(block[i]), 1, 4000);
    hak_stats(&then);
    CHECKN(then.peak_resident_bytes >= (uint64_t)MANY * 4000, then.peak_resident_bytes);
    CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
    CHECKN(then.peak_resident_bytes <= (uint64_t)usage.ru_maxrss * 1024, then.peak_resident_bytes);
    drop(MANY);
    returned = hak_purge();
    hak_stats(&now);
    CHECKN(ROSE(bytes_purged) >= returned, returned); /* the rest went while the blocks were freed */
    CHECKN(ROSE(bytes_purged) >= (uint64_t)MANY * 4000 * 9 / 10, ROSE(bytes_purged));
    CHECKN(returned > 0 && returned <= now.bytes_mapped_peak, returned);
    CHECKN(hak_purge() < MIB, 0);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    hak_free(hak_malloc(1));
    if (strcmp(what, "exact") == 0) exact();
    else if (strcmp(what, "magazine") == 0) magazine();
    else if (strcmp(what, "refills") == 0) refills();
    else if (strcmp(what, "foreign") == 0) foreign(1);
    else if (strcmp(what, "no-outbox") == 0) foreign(0);
    else if (strcmp(what, "orphans") == 0) orphans(1);
    else if (strcmp(what, "no-orphans") == 0) orphans(0);
    else if (strcmp(what, "large") == 0) large(1);
    else if (strcmp(what, "no-cache") == 0) large(0);
    else if (strcmp(what, "threads") == 0) threads();
    else if (strcmp(what, "purge") == 0) purge();
    else CHECK(!"known scenario");
    puts("figures ok");
    return 0;
}
