/* Blocks freed by a thread that did not allocate them. argv[1] says which thread that is. */
#include "../support/test.h"
#include <pthread.h>

enum { BLOCKS = 20000, SLOTS = 2048, THREADS = 4 };

static box *blocks[BLOCKS];
static box *slots[SLOTS];
static pthread_barrier_t meet;
static long rounds = 100000;

static void *allocate_all(void *arg) {
    uint64_t state = 88172645463325252ULL + (uintptr_t)arg;
    for (int i = 0; i < BLOCKS; i++) blocks[i] = box_make(random_size(&state, 0), next_random(&state));
    return NULL;
}

/* Goes over the blocks in steps of 7, so that the order differs from that of the allocations. */
static void *free_all(void *arg) {
    (void)arg;
    for (int i = 0; i < BLOCKS; i++) {
        int at = (int)((long)i * 7 % BLOCKS);
        box_free(blocks[at]);
        blocks[at] = NULL;
    }
    return NULL;
}

static void run_thread(void *(*body)(void *)) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, body, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

/* The owner lives on while somebody else frees its blocks, then uses what came home. */
static void *patient_owner(void *arg) {
    for (int round = 0; round < 3; round++) {
        allocate_all((void *)(uintptr_t)round);
        pthread_barrier_wait(&meet);
        pthread_barrier_wait(&meet);
    }
    return arg;
}

/* Random replacement in slots that all threads share: every block may be freed by any thread. */
static void *swap(void *arg) {
    uint64_t state = 0x9e3779b97f4a7c15ULL * ((uintptr_t)arg + 1);
    for (long i = 0; i < rounds; i++) {
        uint64_t draw = next_random(&state);
        box *mine = NULL;
        if (draw >> 61) mine = box_make(random_size(&state, 0), draw); /* one time in eight leave it empty */
        box *old = __atomic_exchange_n(&slots[draw % SLOTS], mine, __ATOMIC_ACQ_REL);
        if (old) box_free(old);
    }
    return NULL;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    if (argc > 2) rounds = atol(argv[2]);
    if (!strcmp(mode, "alive")) { /* main frees what a living thread allocated */
        pthread_t owner;
        pthread_barrier_init(&meet, NULL, 2);
        CHECK(pthread_create(&owner, NULL, patient_owner, NULL) == 0);
        for (int round = 0; round < 3; round++) {
            pthread_barrier_wait(&meet);
            free_all(NULL);
            pthread_barrier_wait(&meet);
        }
        CHECK(pthread_join(owner, NULL) == 0);
    } else if (!strcmp(mode, "never")) { /* the freeing thread has never allocated and never will */
        for (int round = 0; round < 3; round++) {
            allocate_all(NULL);
            run_thread(free_all);
        }
    } else if (!strcmp(mode, "exited")) { /* the owner is gone; freed by main, by a thread, and used again */
        for (int round = 0; round < 3; round++) {
            run_thread(allocate_all);
            free_all(NULL);
            run_thread(allocate_all);
            run_thread(free_all);
        }
    } else if (!strcmp(mode, "swap")) {
        pthread_t threads[THREADS];
        for (int round = 0; round < 3; round++) {
            for (uintptr_t i = 0; i < THREADS; i++)
                CHECK(pthread_create(&threads[i], NULL, swap, (void *)(i + 10 * (uintptr_t)round)) == 0);
            for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
        }
        for (int i = 0; i < SLOTS; i++)
            if (slots[i]) box_free(slots[i]);
    } else {
        CHECK(!"a known mode");
    }
    puts("ok");
    return 0;
}
