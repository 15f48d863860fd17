/* Scenarios in which fault_shim.c fails one call.
 *
 *   fault_scenarios blocks       blocks of all sizes, resized, zeroed and aligned; trimmed
 *   fault_scenarios threads      freed by other threads, and after their threads have ended; visits
 *   fault_scenarios background   the background thread: started, woken, stopped, inherited by a child
 *   fault_scenarios profile      a profile of every block, written twice; statistics
 *   fault_scenarios limits       at the hard limit, and back
 *   fault_scenarios fork         children that allocate and start threads
 *
 * An allocation may be refused, with ENOMEM; nothing else may happen. Then everything is done once more, and
 * must work: unless the call that fails is one of that second round. */
#include "../support/test.h"
#include "hakmem.h"
#include <pthread.h>
#include <sys/wait.h>

enum { KEPT = 300 };

struct kept {
    unsigned char *at;
    size_t size;
};
struct hand {
    struct kept kept[KEPT];
    int count;
};

static long refused;

static void *got(void *p, int error) {
    if (!p) {
        CHECK(error == ENOMEM);
        __atomic_add_fetch(&refused, 1, __ATOMIC_RELAXED);
    }
    return p;
}

static void keep(struct hand *hand, void *p, size_t size, size_t align) {
    if (!got(p, errno)) return;
    CHECK((uintptr_t)p % align == 0 && malloc_usable_size(p) >= size && hand->count < KEPT);
    fill(p, size, (uintptr_t)p);
    hand->kept[hand->count].at = p, hand->kept[hand->count++].size = size;
}

static void check_all(const struct hand *hand) {
    for (int i = 0; i < hand->count; i++)
        CHECK(holds(hand->kept[i].at, hand->kept[i].size, (uintptr_t)hand->kept[i].at));
}

static void free_all(struct hand *hand) {
    check_all(hand);
    while (hand->count > 0) {
        errno = 77;
        free(hand->kept[--hand->count].at);
        CHECK(errno == 77);
    }
}

static void resize(struct hand *hand, int i, size_t size) {
    struct kept *k = &hand->kept[i];
    size_t both = k->size < size ? k->size : size;
    uint64_t seed = (uintptr_t)k->at;
    errno = 0;
    unsigned char *p = got(realloc(k->at, size), errno);
    if (!p) return;
    /* Whole words of the smaller size: the pattern of the last few bytes depends on where it ends. */
    for (size_t at = 0; at + 8 <= both; at += 8) {
        uint64_t word = (seed + at) * 0x9e3779b97f4a7c15ULL;
        CHECK(memcmp(p + at, &word, 8) == 0);
    }
    k->at = p, k->size = size;
    fill(p, size, (uintptr_t)p);
}

static void zeroed(struct hand *hand, size_t size) {
    errno = 0;
    unsigned char *p = calloc(1, size);
    for (size_t i = 0; p && i < size; i++) CHECK(p[i] == 0);
    keep(hand, p, size, 8);
}

static void some(struct hand *hand, size_t largest) {
    for (size_t size = 8; size <= largest; size = size * 5 / 3) {
        for (int i = 0; i < 3; i++) errno = 0, keep(hand, malloc(size), size, 8);
        zeroed(hand, size);
    }
}

static void blocks(void) {
    static struct hand hand;
    some(&hand, 1500000);
    errno = 0, keep(&hand, aligned_alloc(4096, 5000), 5000, 4096);
    errno = 0, keep(&hand, memalign(1 << 20, 70000), 70000, 1 << 20);
    errno = 0, keep(&hand, memalign(4 << 20, 2000000), 2000000, 4 << 20);
    for (int i = 0; i < hand.count; i += 7) resize(&hand, i, hand.kept[i].size * 3);
    for (int i = 3; i < hand.count; i += 7) resize(&hand, i, hand.kept[i].size / 3 + 1);
    for (int i = 0; i < 2 && hand.count > 2; i++) resize(&hand, hand.count - 1 - i, 5000000);
    check_all(&hand);
    for (int i = 0; i < hand.count; i += 2) { /* every second one, so that slabs stay */
        free(hand.kept[i].at);
        hand.kept[i] = hand.kept[--hand.count];
    }
    malloc_trim(0);
    check_all(&hand);
    some(&hand, 200000);
    free_all(&hand);
    malloc_trim(0);
    zeroed(&hand, 3000000), zeroed(&hand, 100000);
    free_all(&hand);
}

static struct hand handed[3];
static pthread_barrier_t meet;

static void *in_thread(void *arg) {
    long me = (long)arg;
    some(&handed[me], 100000);
    pthread_barrier_wait(&meet);
    struct hand *others = &handed[(me + 1) % 3];
    if (me != 2) free_all(others); /* the blocks of thread 0 stay, when it has ended */
    pthread_barrier_wait(&meet);
    if (me == 2) malloc_trim(0); /* the others sleep: they are visited */
    pthread_barrier_wait(&meet);
    if (me != 0) some(&handed[me], 20000);
    return NULL;
}

static void threads(void) {
    pthread_t ids[3];
    pthread_barrier_init(&meet, NULL, 3);
    for (long i = 0; i < 3; i++) CHECK(pthread_create(&ids[i], NULL, in_thread, (void *)i) == 0);
    for (int i = 0; i < 3; i++) CHECK(pthread_join(ids[i], NULL) == 0);
    for (int i = 0; i < 3; i++) free_all(&handed[i]);
    malloc_trim(0);
}

static void in_child(void (*work)(void)) {
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        end_if_hung(60);
        work();
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

static void background(void) {
    static struct hand hand;
    int error = hak_background_start();
    CHECK(error == 0 || error == EAGAIN || error == EINVAL || error == ENOMEM);
    for (int i = 0; i < 2; i++) {
        some(&hand, 300000);
        free_all(&hand);
        usleep(15000); /* with a purge delay of 1 ms there is a pass */
    }
    in_child(threads);
    hak_background_stop();
    CHECK(hak_background_start() == 0 || error == 0);
    hak_background_stop();
}

static void profile(void) {
    static struct hand hand;
    char path[100];
    snprintf(path, sizeof path, "/tmp/hakmem-fault-%d.hakprof", (int)getpid());
    int error = hak_profile_start(1);
    CHECK(error == 0 || error == ENOMEM);
    unsigned before = hak_scope_begin("a tag");
    some(&hand, 200000);
    hak_scope_end(before);
    for (int i = 0; i < 2; i++) {
        error = hak_profile_write(path);
        CHECK(error == 0 || error == EIO || error == ESRCH || error == ENOMEM);
        resize(&hand, 3, 5000);
    }
    struct hak_stats_t stats;
    hak_stats(&stats, sizeof stats);
    CHECK(stats.bytes_mapped > 0);
    free_all(&hand);
    hak_profile_stop();
    unlink(path);
}

static void limits(void) {
    static struct hand hand;
    struct hak_stats_t stats;
    hak_stats(&stats, sizeof stats);
    size_t held = (size_t)stats.bytes_held;
    CHECK(hak_set_limits(held + (4 << 20), held + (8 << 20)) == 0);
    some(&hand, 3000000);
    hak_stats(&stats, sizeof stats);
    CHECK(stats.bytes_held <= held + (8 << 20));
    check_all(&hand);
    CHECK(hak_set_limits(0, 0) == 0);
    some(&hand, 200000);
    free_all(&hand);
}

static void fork_twice(void) {
    static struct hand hand;
    some(&hand, 100000);
    in_child(blocks);
    in_child(threads);
    free_all(&hand);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } scenarios[] = {{"blocks", blocks},   {"threads", threads}, {"background", background},
                     {"profile", profile}, {"limits", limits},   {"fork", fork_twice}};
    for (size_t i = 0; argc == 2 && i < sizeof scenarios / sizeof *scenarios; i++) {
        if (strcmp(scenarios[i].name, argv[1])) continue;
        for (int round = 0; round < 2; round++) scenarios[i].run();
        dprintf(1, "%ld refused\nok\n", refused);
        return 0;
    }
    return 2;
}
