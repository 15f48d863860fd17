/* fork() while other threads allocate. The child checks and frees what the parent's threads made, starts
 * threads that allocate, and ends; an alarm kills a child that hangs.
 *
 *   fork_load load|many|large|churn|thread|nested FORKS
 *
 * load: mixed sizes; many: by twelve threads, each of which frees what the others have made; large: runs, direct mappings and realloc; churn: threads start and end at that
 * moment; thread: a thread other than main forks; nested: the child forks again, from a thread of its
 * own. */
#include "../support/test.h"
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { FEW = 4, MANY = 12, SLOTS = 48 };

static box *slots[MANY][SLOTS];
static volatile int stop;
static long replaced;
static int large_only, nested, hammers = FEW;

static size_t draw_size(uint64_t *state) {
    if (large_only) return 30000 + next_random(state) % (next_random(state) % 4 ? 300000 : 3000000);
    return random_size(state, 0) % 200000;
}

/* Only the ends of a big block are written: the child would pay for each page that the parent touches. */
static box *make(uint64_t *state) {
    size_t size = draw_size(state);
    if (size < 20000) return box_make(size, next_random(state));
    box *b = malloc(size);
    CHECK(b != NULL);
    b->next = NULL, b->seed = next_random(state), b->size = size;
    memcpy((char *)b + size - 8, &b->seed, 8);
    return b;
}

static void release(box *b) {
    if (b->size < 20000) {
        box_free(b);
        return;
    }
    CHECK(memcmp((char *)b + b->size - 8, &b->seed, 8) == 0);
    free(b);
}

static void replace(box **slot, uint64_t *state) {
    box *old = __atomic_exchange_n(slot, NULL, __ATOMIC_ACQ_REL);
    if (old && old->size >= 20000 && next_random(state) % 2) {
        size_t size = old->size + next_random(state) % 100000;
        old = realloc(old, size);
        CHECK(old != NULL);
        old->size = size;
        memcpy((char *)old + size - 8, &old->seed, 8);
    } else if (old) {
        release(old);
        old = NULL;
    }
    if (!old) old = make(state);
    old = __atomic_exchange_n(slot, old, __ATOMIC_ACQ_REL);
    if (old) release(old);
}

/* The forking thread gets a processor soon: more forks in the same time, at points just as random. */
static void step_back(void) { setpriority(PRIO_PROCESS, (id_t)gettid(), 10); }

static void *hammer(void *arg) {
    step_back();
    uint64_t state = 0x9e3779b97f4a7c15ULL * ((uintptr_t)arg + 1);
    while (!stop) {
        uint64_t draw = next_random(&state);
        /* Mostly its own slots, sometimes those of another: remote frees are on their way too. */
        uint64_t row = draw % 8 && hammers == FEW ? (uintptr_t)arg : draw / 8 % (unsigned)hammers;
        replace(&slots[row][draw / 64 % SLOTS], &state);
        __atomic_add_fetch(&replaced, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void *short_life(void *arg) {
    uint64_t state = 0x2545f4914f6cdd1dULL * ((uintptr_t)arg + 1);
    box *kept[16];
    for (int i = 0; i < 16; i++) kept[i] = make(&state);
    for (int i = 0; i < 16; i++) release(kept[i]);
    return NULL;
}

static void *churn(void *arg) {
    step_back();
    while (!stop) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, short_life, arg) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
        for (int i = 0; i < 3; i++) {
            uint64_t state = (uint64_t)__atomic_add_fetch(&replaced, 1, __ATOMIC_RELAXED) * 2 + 1;
            replace(&slots[(uintptr_t)arg][state % SLOTS], &state);
        }
    }
    return NULL;
}

static void child(uint64_t seed) {
    uint64_t state = seed | 1;
    box *mine[100];
    end_if_hung(30);
    for (int i = 0; i < 100; i++) mine[i] = make(&state);
    for (int i = 0; i < hammers; i++)
        for (int j = 0; j < SLOTS; j++)
            if (slots[i][j]) release(slots[i][j]);
    pthread_t threads[2];
    for (uintptr_t i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, short_life, (void *)(seed + i)) == 0);
    for (int i = 0; i < 100; i++) release(mine[i]);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    if (seed % 8 == 0) malloc_trim(0);
}

static void fork_once(uint64_t seed, int depth);

static void *fork_in_thread(void *arg) {
    uint64_t packed = (uintptr_t)arg;
    fork_once(packed / 8, (int)(packed % 8));
    return NULL;
}

static void fork_once(uint64_t seed, int depth) {
    int status;
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        if (depth > 0) { /* first deeper, then the rest, which frees what was inherited */
            pthread_t thread;
            end_if_hung(60);
            uintptr_t packed = seed * 8 + (unsigned)depth - 1;
            CHECK(pthread_create(&thread, NULL, fork_in_thread, (void *)packed) == 0);
            short_life((void *)(uintptr_t)seed);
            CHECK(pthread_join(thread, NULL) == 0);
        }
        child(seed);
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    if (status != 0) {
        dprintf(2, "the child of fork %lu (depth %d) ended with status %#x%s\n", (unsigned long)seed, depth,
                status, WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM ? ": it hung" : "");
        _exit(1);
    }
}

static void *fork_loop(void *arg) {
    long forks = (long)(uintptr_t)arg;
    for (long i = 1; i <= forks; i++) {
        fork_once((uint64_t)i, nested ? 2 : 0);
        free(malloc((size_t)i % 1000));
    }
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    long forks = atol(argv[2]);
    const char *mode = argv[1];
    pthread_t threads[MANY], forker;
    if (!strcmp(mode, "many")) hammers = MANY;
    large_only = !strcmp(mode, "large");
    nested = !strcmp(mode, "nested");
    int churning = !strcmp(mode, "churn");
    for (uintptr_t i = 0; i < (uintptr_t)hammers; i++)
        CHECK(pthread_create(&threads[i], NULL, churning ? churn : hammer, (void *)i) == 0);
    while (__atomic_load_n(&replaced, __ATOMIC_RELAXED) < 1000) usleep(1000);
    if (!strcmp(mode, "thread")) {
        CHECK(pthread_create(&forker, NULL, fork_loop, (void *)forks) == 0);
        CHECK(pthread_join(forker, NULL) == 0);
    } else {
        fork_loop((void *)forks);
    }
    stop = 1;
    for (int i = 0; i < hammers; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < hammers; i++)
        for (int j = 0; j < SLOTS; j++)
            if (slots[i][j]) release(slots[i][j]);
    dprintf(1, "%s: %ld forks while %ld blocks were replaced\n", mode, forks, replaced);
    return 0;
}
