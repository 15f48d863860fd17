/* Allocation in destructors of pthread keys, which run before and after the allocator's own exit hook.
 *
 * A hundred keys: glibc allocates the table of the later ones with calloc at the first
 * pthread_setspecific, so in these threads that is the first allocation of all. Each destructor sets its
 * key again, so that all PTHREAD_DESTRUCTOR_ITERATIONS rounds happen, the later ones certainly after the
 * allocator's hook. */
#include "../support/test.h"
#include <limits.h>
#include <pthread.h>

enum { KEYS = 100, ROUNDS = PTHREAD_DESTRUCTOR_ITERATIONS };

static pthread_key_t keys[KEYS];
static __thread unsigned char visits[KEYS];
static __thread uint64_t state;
static long destroyed;
static box *shared; /* a block that one thread's destructor leaves for the next one's */

struct value {
    int key;
    box *inside;
};

static void set_value(int key) {
    struct value *v = calloc(1, sizeof *v);
    CHECK(v != NULL && v->inside == NULL);
    v->key = key;
    v->inside = box_make(random_size(&state, 0), next_random(&state));
    CHECK(pthread_setspecific(keys[key], v) == 0);
}

static void destroy(void *arg) {
    struct value *v = arg;
    int key = v->key;
    v->inside = realloc(v->inside, v->inside->size + 1 + next_random(&state) % 3000);
    CHECK(v->inside != NULL);
    box_free(v->inside);
    free(v);
    __atomic_add_fetch(&destroyed, 1, __ATOMIC_RELAXED);
    box *mine = box_make(random_size(&state, 0), next_random(&state));
    box *old = __atomic_exchange_n(&shared, mine, __ATOMIC_ACQ_REL);
    if (old) box_free(old);
    if (++visits[key] < ROUNDS) set_value(key);
}

static void *body(void *arg) {
    state = 0x2545f4914f6cdd1dULL * ((uintptr_t)arg + 1);
    for (int i = KEYS - 1; i >= 0; i--) set_value(i);
    return NULL;
}

/* Does nothing but set a late key to something that is not an allocation: the table is calloc'ed by glibc. */
static void *late_key_only(void *arg) {
    pthread_key_t key = *(pthread_key_t *)arg;
    CHECK(pthread_setspecific(key, arg) == 0);
    CHECK(pthread_getspecific(key) == arg);
    return NULL;
}

static void run_threads(long from, long to) {
    for (long i = from; i < to; i += 2) {
        pthread_t pair[2];
        for (long j = 0; j < 2; j++) CHECK(pthread_create(&pair[j], NULL, body, (void *)(i + j)) == 0);
        for (long j = 0; j < 2; j++) CHECK(pthread_join(pair[j], NULL) == 0);
    }
}

int main(int argc, char **argv) {
    long threads = argc > 1 ? atol(argv[1]) : 300;
    pthread_key_t plain;
    pthread_t thread;
    for (int i = 0; i < KEYS; i++) CHECK(pthread_key_create(&keys[i], destroy) == 0);
    CHECK(pthread_key_create(&plain, NULL) == 0);
    for (int i = 0; i < 50; i++) {
        CHECK(pthread_create(&thread, NULL, late_key_only, &plain) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
    }
    run_threads(0, threads);
    /* Nothing that waits to be given back counts, however long this takes. */
    malloc_trim(0);
    long before = resident_kib();
    run_threads(threads, 3 * threads);
    malloc_trim(0);
    long after = resident_kib();
    CHECK(destroyed == 3 * threads * KEYS * ROUNDS);
    dprintf(1, "resident %ld KiB after %ld threads, %ld KiB after %ld\n", before, threads, after,
            3 * threads);
    /* What allocates after its exit hook gets memory that comes back: no growth with the number of
     * threads. */
    CHECK(after <= before + 1024);
    if (shared) box_free(shared);
    return 0;
}
