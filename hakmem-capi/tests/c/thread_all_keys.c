/* All keys for thread-local data that there are: thread_all_keys take|churn.
 *
 * take: the program gets each of them, and threads that end without the allocator's exit hook leave their
 * heaps to those that begin; churn: keys come and go while threads do, and no destructor gets a value
 * that the program has not set. */
#include "../support/test.h"
#include "hakmem.h"
#include <limits.h>
#include <pthread.h>

static pthread_key_t keys[PTHREAD_KEYS_MAX];

static uint64_t figure(size_t offset) {
    int (*stats)(hak_stats_t *, size_t);
    *(void **)&stats = dlsym(RTLD_DEFAULT, "hak_stats");
    hak_stats_t now;
    CHECK(stats);
    stats(&now, sizeof now);
    return *(uint64_t *)((char *)&now + offset);
}

static int value;
static long destroyed;

static void destroy(void *arg) {
    CHECK(arg == &value);
    __atomic_add_fetch(&destroyed, 1, __ATOMIC_RELAXED);
}

static int take(int taken) {
    while (taken < PTHREAD_KEYS_MAX && pthread_key_create(&keys[taken], destroy) == 0) taken++;
    return taken;
}

static void *allocates(void *arg) {
    void *blocks[500];
    for (int i = 0; i < 500; i++) CHECK((blocks[i] = malloc(40 + (size_t)i)) != NULL);
    for (int i = 0; i < 500; i++) free(blocks[i]);
    return arg;
}

static void threads(int count) {
    for (int i = 0; i < count; i++) {
        pthread_t pair[2];
        for (int j = 0; j < 2; j++) CHECK(pthread_create(&pair[j], NULL, allocates, NULL) == 0);
        for (int j = 0; j < 2; j++) CHECK(pthread_join(pair[j], NULL) == 0);
    }
}

static volatile int stop;

static void *starts(void *arg) {
    while (!stop) threads(1);
    return arg;
}

static void *sets(void *arg) {
    allocates(NULL);
    CHECK(pthread_setspecific(keys[*(int *)arg], &value) == 0);
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    threads(10);
    if (!strcmp(argv[1], "take")) {
        CHECK(take(0) == PTHREAD_KEYS_MAX);
        pthread_key_t more;
        CHECK(pthread_key_create(&more, NULL) == EAGAIN && pthread_key_create(&more, NULL) == EAGAIN);
        threads(20);
        uint64_t before = figure(offsetof(hak_stats_t, metadata_bytes));
        long resident = resident_kib();
        threads(1000);
        dprintf(1, "metadata %lu bytes, then %lu; resident %ld KiB, then %ld\n", before,
                figure(offsetof(hak_stats_t, metadata_bytes)), resident, resident_kib());
        CHECK(figure(offsetof(hak_stats_t, metadata_bytes)) <= before + (1 << 20));
        CHECK(resident_kib() < resident + 2048);
        /* The last key is one that was the allocator's. */
        for (int i = PTHREAD_KEYS_MAX - 8; i < PTHREAD_KEYS_MAX; i++) {
            pthread_t thread;
            CHECK(pthread_create(&thread, NULL, sets, &i) == 0 && pthread_join(thread, NULL) == 0);
        }
        CHECK(destroyed == 8);
        return 0;
    }
    pthread_t churn[2];
    for (int j = 0; j < 2; j++) CHECK(pthread_create(&churn[j], NULL, starts, NULL) == 0);
    usleep(20000);
    for (int round = 0; round < 300; round++) {
        int taken = take(0);
        /* The allocator waits some milliseconds for threads that use its key: one may be stopped longer. */
        for (int i = 0; i < 5000 && taken < PTHREAD_KEYS_MAX; i++) {
            usleep(1000);
            taken = take(taken);
        }
        CHECK(taken == PTHREAD_KEYS_MAX);
        for (int i = 0; i < taken; i++) CHECK(pthread_key_delete(keys[i]) == 0);
    }
    stop = 1;
    for (int j = 0; j < 2; j++) CHECK(pthread_join(churn[j], NULL) == 0);
    CHECK(destroyed == 0);
    return 0;
}
