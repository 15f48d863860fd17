/* Limits set by the program: hak_set_limits and hak_on_soft_limit, at the limit and after it, across fork. */
#include "api_check.h"
#include <hakmem.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

#define MANY 4096

static void *block[MANY];
static atomic_int calls;
static size_t heard_held, heard_limit;
static void *heard_arg;

static struct hak_stats_t stats(void) {
    struct hak_stats_t s;
    hak_stats(&s, sizeof s);
    return s;
}

static void hear(size_t held, size_t limit, void *arg) {
    calls++;
    heard_held = held;
    heard_limit = limit;
    heard_arg = arg;
    errno = EBADF; /* the allocation leaves errno alone all the same */
    hak_free(hide(hak_malloc(1000)));
}

/* Takes blocks until there are no more; how many. */
static size_t fill_up(size_t n) {
    for (size_t i = 0;; i++) {
        CHECKN(i < MANY * 1000, i);
        errno = 0;
        void *p = hak_malloc(n);
        if (p == NULL) {
            CHECKN(errno == ENOMEM, errno);
            return i < MANY ? i : MANY;
        }
        if (i < MANY) block[i] = p;
        fill(p, n < 64 ? n : 64, i);
    }
}

static void drop(size_t count) {
    for (size_t i = 0; i < count; i++) hak_free(block[i]);
}

static void refuses(void *p, int line) {
    CHECKN(p == NULL && errno == ENOMEM, line);
    errno = 0;
}

/* Every function of the family is refused what is beyond the hard limit, with ENOMEM, and works again
 * afterwards. */
static void hard(size_t n) {
    void *out = block;
    size_t held = stats().bytes_held, limit = held + 24 * MIB, count;
    uint64_t hits = stats().hard_limit_hits;
    CHECK(hak_set_limits(0, limit) == 0);
    count = fill_up(n);
    CHECKN(count > 2 && stats().bytes_held <= limit, count);
    CHECKN(stats().hard_limit_hits == hits + 1, stats().hard_limit_hits);
    errno = 0;
    refuses(hak_malloc(25 * MIB), __LINE__);
    refuses(hak_calloc(25, MIB), __LINE__);
    refuses(hak_aligned_alloc(64, 25 * MIB), __LINE__);
    refuses(hak_aligned_alloc(4 * MIB, 22 * MIB), __LINE__);
    refuses(malloc(25 * MIB), __LINE__);
    refuses(calloc(25, MIB), __LINE__);
    refuses(aligned_alloc(64, 25 * MIB), __LINE__);
    refuses(memalign(4096, 25 * MIB), __LINE__);
    refuses(hak_realloc(block[1], n + 25 * MIB), __LINE__);
    refuses(hak_reallocarray(block[1], 25, MIB), __LINE__);
    CHECK(same(block[1], n < 64 ? n : 64, 1)); /* as it was */
    errno = EBADF;
    CHECK(hak_posix_memalign(&out, 64, 25 * MIB) == ENOMEM && out == block && errno == ENOMEM);
    CHECKN(stats().hard_limit_hits == hits + 12, stats().hard_limit_hits - hits);
    hak_free(block[--count]);
    block[count] = hak_malloc(n);
    CHECK(block[count] != NULL);
    CHECK(hak_set_limits(0, 0) == 0);
    void *p = hak_malloc(25 * MIB);
    CHECK(p != NULL);
    hak_free(p);
    drop(count + 1);
    hak_purge();
}

static void soft(void) {
    int mark;
    size_t limit = stats().bytes_held + 8 * MIB;
    errno = 7;
    size_t now[2] = {1, 1};
    CHECK(hak_set_limits(2, 1) == EINVAL && errno == 7);
    hak_get_limits(&now[0], &now[1]);
    CHECK(now[0] == 0 && now[1] == 0);
    CHECK(hak_set_limits(limit, limit + 1) == 0);
    hak_get_limits(&now[0], NULL);
    hak_get_limits(NULL, &now[1]);
    CHECK(now[0] == limit && now[1] == limit + 1 && errno == 7);
    CHECK(hak_set_limits(limit, limit) == 0);
    CHECK(hak_set_limits(limit, 0) == 0 && errno == 7);
    hak_on_soft_limit(hear, &mark);
    void *p = hak_malloc(7 * MIB);
    CHECKN(calls == 0, calls);
    void *q = hak_malloc(3 * MIB);
    CHECKN(calls == 1 && heard_arg == &mark && heard_limit == limit, calls);
    CHECKN(heard_held == limit + 2 * MIB && errno == 7, heard_held);
    void *r = hak_malloc(30 * MIB);
    CHECKN(calls == 1 && p != NULL && q != NULL && r != NULL, calls);
    uint64_t hits = stats().soft_limit_hits;
    CHECKN(hits >= 2, hits);
    hak_on_soft_limit(NULL, NULL);
    CHECK(hak_set_limits(limit, 0) == 0);
    hak_free(hide(hak_malloc(5 * MIB)));
    CHECKN(calls == 1, calls);
    CHECK(hak_set_limits(0, 0) == 0);
    hak_free(p);
    hak_free(q);
    hak_free(r);
    hak_purge();
}

static atomic_int waiting, go_on;

static void wait_in_hook(size_t held, size_t limit, void *arg) {
    (void)held, (void)limit, (void)arg;
    waiting = 1;
    while (!go_on) usleep(1000);
}

static void *cross(void *unused) {
    (void)unused;
    hak_free(hide(hak_malloc(20 * MIB)));
    return NULL;
}

static void child_is_fine(pid_t pid) {
    int status;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    CHECKN(WIFEXITED(status) && WEXITSTATUS(status) == 0, status);
}

static pid_t forked = -1;

static void fork_in_hook(size_t held, size_t limit, void *arg) {
    (void)held, (void)limit, (void)arg;
    forked = fork();
}

/* The child has the limits and what is held; another thread's hook does not run there, so its own can. */
static void forks(void) {
    size_t held = stats().bytes_held;
    void *kept = hak_malloc(5 * MIB);
    CHECK(hak_set_limits(0, held + 10 * MIB) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        CHECKN(stats().bytes_held == held + 5 * MIB, stats().bytes_held);
        errno = 0;
        refuses(hak_malloc(6 * MIB), __LINE__);
        hak_free(kept);
        kept = hak_malloc(6 * MIB);
        CHECK(kept != NULL);
        _exit(0);
    }
    child_is_fine(pid);
    CHECK(hak_set_limits(held + 10 * MIB, 0) == 0);
    hak_on_soft_limit(wait_in_hook, NULL);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, cross, NULL) == 0);
    while (!waiting) usleep(1000);
    pid = fork();
    if (pid == 0) {
        calls = 0;
        hak_on_soft_limit(hear, NULL);
        CHECK(hak_set_limits(stats().bytes_held, 0) == 0);
        CHECK(hak_malloc(2 * MIB) != NULL);
        CHECKN(calls == 1, calls);
        _exit(0);
    }
    child_is_fine(pid);
    go_on = 1;
    CHECK(pthread_join(thread, NULL) == 0);
    hak_purge();
    hak_on_soft_limit(fork_in_hook, NULL);
    CHECK(hak_set_limits(stats().bytes_held, 0) == 0);
    void *p = hak_malloc(12 * MIB);
    if (forked == 0) {
        calls = 0;
        hak_on_soft_limit(hear, NULL);
        CHECK(hak_set_limits(stats().bytes_held, 0) == 0);
        CHECK(hak_malloc(2 * MIB) != NULL && calls == 1);
        _exit(0);
    }
    child_is_fine(forked);
    hak_on_soft_limit(NULL, NULL);
    CHECK(hak_set_limits(0, 0) == 0);
    hak_free(p);
    hak_free(kept);
}

static atomic_int stop;

static void *hammer(void *argument) {
    uint64_t state = (uintptr_t)argument + 1;
    void *mine[16] = {0};
    while (!stop) {
        size_t at = next_random(&state) % 16;
        hak_free(mine[at]);
        mine[at] = hak_malloc(next_random(&state) % 4 ? MIB + next_random(&state) % (4 * MIB) : 100);
    }
    for (size_t i = 0; i < 16; i++) hak_free(mine[i]);
    return NULL;
}

/* Forks while four threads go up and down between the limits. */
static void forks_under_load(void) {
    pthread_t thread[4];
    size_t held = stats().bytes_held;
    calls = 0;
    hak_on_soft_limit(hear, NULL);
    CHECK(hak_set_limits(held + 24 * MIB, held + 48 * MIB) == 0);
    for (uintptr_t i = 0; i < 4; i++) CHECK(pthread_create(&thread[i], NULL, hammer, (void *)i) == 0);
    for (int i = 0; i < 200; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            void *p[64];
            size_t count = 0;
            while (count < 64 && (p[count] = hak_malloc(MIB + count * 4096)) != NULL) count++;
            CHECKN(count < 64, count);
            CHECKN(stats().bytes_held <= held + 48 * MIB, stats().bytes_held);
            while (count > 0) hak_free(p[--count]);
            _exit(0);
        }
        child_is_fine(pid);
    }
    stop = 1;
    for (int i = 0; i < 4; i++) CHECK(pthread_join(thread[i], NULL) == 0);
    CHECKN(calls > 0 && stats().hard_limit_hits > 0, calls);
    hak_on_soft_limit(NULL, NULL);
    CHECK(hak_set_limits(0, 0) == 0);
    hak_purge();
    CHECKN(stats().bytes_held <= held + 2 * MIB, stats().bytes_held);
}

int main(void) {
    static const size_t sizes[] = {24, 3000, 50000, 200000, 3 * 1024 * 1024 / 2, 6 * 1024 * 1024};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) hard(sizes[i]);
    soft();
    forks();
    forks_under_load();
    puts("limits ok");
    return 0;
}
