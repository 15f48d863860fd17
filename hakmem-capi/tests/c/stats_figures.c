/* The figures of hak_stats move as their names say. Usage: stats_figures SCENARIO (options come from the
 * environment). */
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
    hak_stats(&then, sizeof then);
    take(1000, 64);
    hak_stats(&now, sizeof now);
    RISES_BY(allocations, 1000);
    CHECKN(ROSE(allocated_bytes) == 64 * 1000, ROSE(allocated_bytes));
    then = now;
    drop(1000);
    hak_stats(&now, sizeof now);
    STAYS(allocations);
    RISES_BY(home_local, 1000);
    STAYS(home_foreign);
    CHECKN(then.allocated_bytes - now.allocated_bytes == 64 * 1000, then.allocated_bytes - now.allocated_bytes);
}

/* Magazines: hits are not counted, misses and overflows are. */
static void magazine(void) {
    uint64_t before;
    for (int i = 0; i < 10; i++) hak_free(hak_malloc(SIZE));
    hak_stats(&then, sizeof then);
    for (int i = 0; i < 100000; i++) hak_free(hide(hak_malloc(SIZE)));
    hak_stats(&now, sizeof now);
    CHECKN(ROSE(allocations) < 1000, ROSE(allocations));
    CHECKN(ROSE(magazine_misses) < 1000, ROSE(magazine_misses));
    before = now.allocated_bytes;
    then = now;
    take(MANY, SIZE);
    hak_stats(&now, sizeof now);
    /* Up to 63 have been cut ahead. */
    CHECKN(ROSE(magazine_misses) > 0 && ROSE(magazine_misses) <= MANY + 63, ROSE(magazine_misses));
    STAYS(magazine_overflows);
    CHECKN(ROSE(allocations) > MANY - 1000 && ROSE(allocations) < MANY + 1000, ROSE(allocations));
    CHECKN(now.allocated_bytes - before > MANY * SIZE - 1000 * SIZE, now.allocated_bytes - before);
    CHECKN(now.allocated_bytes - before < MANY * SIZE * 2, now.allocated_bytes - before);
    then = now;
    drop(MANY);
    hak_stats(&now, sizeof now);
    CHECKN(ROSE(magazine_overflows) > 0 && ROSE(magazine_overflows) <= MANY, ROSE(magazine_overflows));
    RISES(home_local);
    STAYS(home_foreign);
    STAYS(outbox_blocks);
    hak_purge();
    hak_stats(&now, sizeof now);
    CHECKN(ROSE(home_local) >= MANY && ROSE(home_local) < MANY + 1000, ROSE(home_local));
    CHECKN(now.allocated_bytes < before + SIZE * 1000, now.allocated_bytes);
}

/* Where refills come from. */
static void refills(void) {
    hak_stats(&then, sizeof then);
    take(MANY, SIZE);
    hak_stats(&now, sizeof now);
    RISES(refill_bump);
    RISES(refill_span);
    RISES(superslabs_mapped);
    RISES(bytes_mapped);
    STAYS(refill_orphan);
    for (size_t i = 0; i < MANY; i += 2) hak_free(block[i]);
    hak_stats(&then, sizeof then);
    for (size_t i = 0; i < MANY; i += 2) block[i] = hak_malloc(SIZE);
    hak_stats(&now, sizeof now);
    CHECKN(ROSE(refill_partial) + ROSE(refill_current) > 0, 0);
    RISES(refill_partial);
    CHECKN(ROSE(superslabs_mapped) == 0, ROSE(superslabs_mapped));
    drop(MANY);
}

/* Blocks made by one thread and freed by another; `outbox` says whether they travel in bundles. */
static void foreign(int outbox) {
    take(MANY, SIZE);
    hak_stats(&then, sizeof then);
    on_thread(drop_there, NULL);
    hak_stats(&now, sizeof now);
    CHECKN(ROSE(home_foreign) >= MANY - 1000 && ROSE(home_foreign) <= MANY, ROSE(home_foreign));
    CHECKN(ROSE(outbox_blocks) == ROSE(home_foreign), ROSE(outbox_blocks));
    if (outbox) CHECKN(ROSE(outbox_pushes) > 0 && ROSE(outbox_pushes) * 2 < ROSE(outbox_blocks), ROSE(outbox_pushes));
    else CHECKN(ROSE(outbox_pushes) == ROSE(outbox_blocks), ROSE(outbox_pushes)); /* each travels alone */
    RISES(publishes);
    CHECKN(ROSE(publishes) <= MANY, ROSE(publishes));
    then = now;
    take(MANY, SIZE); /* the owner finds them on its ready list */
    hak_stats(&now, sizeof now);
    RISES(refill_ready);
    drop(MANY);
}

/* Slabs of a thread that has ended serve the next one. */
static void orphans(int adopted) {
    on_thread(take_there, NULL);
    for (size_t i = 0; i < MANY; i += 2) hak_free(block[i]); /* holes for the adopter */
    hak_stats(&then, sizeof then);
    for (size_t i = 0; i < MANY; i += 2) block[i] = hak_malloc(SIZE);
    hak_stats(&now, sizeof now);
    if (adopted) RISES(refill_orphan);
    else STAYS(refill_orphan);
    drop(MANY);
}

static void large(int cached) {
    void *p[3];
    hak_stats(&then, sizeof then);
    for (int i = 0; i < 3; i++) p[i] = hak_malloc(8 * MIB);
    hak_stats(&now, sizeof now);
    RISES_BY(large_allocs, 3);
    STAYS(large_frees);
    CHECKN(ROSE(bytes_mapped) >= 24 * MIB, ROSE(bytes_mapped));
    CHECKN(ROSE(allocated_bytes) >= 24 * MIB && ROSE(allocated_bytes) < 25 * MIB, ROSE(allocated_bytes));
    CHECKN(now.bytes_mapped_peak >= now.bytes_mapped, now.bytes_mapped_peak);
    for (int i = 0; i < 3; i++) hak_free(p[i]);
    hak_stats(&then, sizeof then);
    CHECKN(then.large_frees == now.large_frees + 3, then.large_frees);
    CHECKN(then.bytes_mapped_peak >= now.bytes_mapped, then.bytes_mapped_peak);
    CHECKN(now.allocated_bytes - then.allocated_bytes >= 24 * MIB, then.allocated_bytes);
    hak_free(hak_malloc(8 * MIB));
    hak_stats(&now, sizeof now);
    if (cached) RISES_BY(large_cache_hits, 1);
    else STAYS(large_cache_hits);
    if (!cached) CHECKN(now.bytes_mapped + 24 * MIB <= now.bytes_mapped_peak, now.bytes_mapped);
}

static void threads(void) {
    take_there(NULL);
    hak_stats(&then, sizeof then);
    for (int i = 0; i < 5; i++) on_thread(drop_there, NULL), take(MANY, SIZE);
    hak_stats(&now, sizeof now);
    RISES_BY(threads_started, 5);
    RISES_BY(threads_exited, 5);
    drop(MANY);
}

/* The sums of the documentation, to the byte; only this thread runs. */
static void check_sums(void) {
    struct hak_class_stats_t c;
    uint64_t active = 0, allocated = 0, resident = 0;
    hak_stats(&now, sizeof now);
    for (size_t i = 0; hak_class_stats(i, &c, sizeof c) == 0; i++) {
        uint64_t free_blocks = c.cached_blocks + c.free_blocks + c.fresh_blocks;
        CHECKN(c.active_bytes == c.allocated_bytes + free_blocks * c.block_bytes + c.slack_bytes, i);
        CHECKN(c.block_bytes == 0 || c.allocated_bytes == c.blocks * c.block_bytes, i);
        active += c.active_bytes, allocated += c.allocated_bytes, resident += c.resident_bytes;
    }
    CHECKN(now.active_bytes == active, active);
    CHECKN(now.allocated_bytes == allocated, allocated);
    CHECKN(now.active_bytes - now.untouched_bytes == resident, resident);
    CHECKN(now.active_bytes == now.allocated_bytes + now.cached_bytes + now.free_bytes + now.fresh_bytes + now.slack_bytes,
           now.active_bytes);
    CHECKN(now.resident_bytes == now.active_bytes - now.untouched_bytes + now.dirty_bytes + now.metadata_bytes,
           now.resident_bytes);
    CHECKN(now.bytes_mapped == now.resident_bytes + now.retained_bytes, now.bytes_mapped);
    CHECKN(now.resident_kernel_bytes > MIB / 2 && now.resident_kernel_bytes <= now.peak_resident_bytes + MIB,
           now.resident_kernel_bytes);
}

/* The class with blocks of `size` bytes. */
static struct hak_class_stats_t class_of(size_t size) {
    struct hak_class_stats_t c;
    size_t i = 0;
    do CHECK(hak_class_stats(i++, &c, sizeof c) == 0);
    while (c.block_bytes != size);
    return c;
}

static void classes(void) {
    struct hak_class_stats_t before, after, untouched;
    uint64_t last = 0;
    size_t count = 0;
    void *run, *direct;
    errno = 77;
    while (hak_class_stats(count, &after, sizeof after) == 0) {
        CHECKN(after.block_bytes > last || after.block_bytes == 0, count);
        last = after.block_bytes;
        count++;
    }
    CHECKN(count > 2 && last == 0, count); /* the two kinds of large blocks */
    memset(&untouched, 0xab, sizeof untouched);
    after = untouched;
    CHECK(hak_class_stats(count, &after, sizeof after) == EINVAL);
    CHECK(hak_class_stats((size_t)-1, &after, sizeof after) == EINVAL);
    CHECK(hak_class_stats(0, NULL, sizeof after) == EINVAL);
    CHECKN(memcmp(&after, &untouched, sizeof after) == 0 && errno == 77, errno);

    for (size_t size = 48; size <= 3072; size *= 4) {
        before = class_of(size);
        take(1000, size);
        after = class_of(size);
        CHECKN(after.blocks == before.blocks + 1000, after.blocks);
        CHECKN(after.allocated_bytes == before.allocated_bytes + 1000 * size, after.allocated_bytes);
        CHECKN(after.slabs > 0 && after.active_bytes >= after.allocated_bytes, after.active_bytes);
        check_sums();
        drop(500);
        before = class_of(size);
        CHECKN(before.blocks == after.blocks - 500, before.blocks);
        for (size_t i = 500; i < 1000; i++) hak_free(block[i]);
        check_sums();
        hak_purge();
        CHECKN(class_of(size).cached_blocks == 0, size);
    }
    run = hak_malloc(300 * KIB), direct = hak_malloc(5 * MIB);
    CHECK(hak_class_stats(count - 2, &after, sizeof after) == 0);
    CHECK(after.blocks == 1 && after.active_bytes == 320 * KIB);
    CHECK(hak_class_stats(count - 1, &after, sizeof after) == 0);
    CHECK(after.blocks == 1 && after.active_bytes == 5 * MIB);
    check_sums();
    hak_free(run), hak_free(direct);
    CHECK(hak_class_stats(count - 2, &after, sizeof after) == 0 && after.blocks == 0);
    CHECK(hak_class_stats(count - 1, &after, sizeof after) == 0 && after.blocks == 0);
    check_sums();
    CHECKN(now.dirty_bytes >= 5 * MIB + 320 * KIB, now.dirty_bytes);
    hak_purge();
    check_sums();
    CHECKN(now.dirty_bytes == 0, now.dirty_bytes);
}

static void purge(void) {
    struct rusage usage;
    size_t returned;
    take(MANY, 4000);
    for (size_t i = 0; i < MANY; i++) memset(hide(block[i]), 1, 4000);
    hak_stats(&then, sizeof then);
    CHECKN(then.peak_resident_bytes >= (uint64_t)MANY * 4000, then.peak_resident_bytes);
    CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
    CHECKN(then.peak_resident_bytes <= (uint64_t)usage.ru_maxrss * 1024, then.peak_resident_bytes);
    drop(MANY);
    returned = hak_purge();
    hak_stats(&now, sizeof now);
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
    else if (strcmp(what, "classes") == 0) classes();
    else CHECK(!"known scenario");
    puts("figures ok");
    return 0;
}
