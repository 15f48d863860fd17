/* What an allocator, a guest in the process, must leave alone or get right: guest MODE.
 *
 * locked, limit: memory that the program has locked does not keep other memory from going back; zeroed:
 * what calloc returns is zero (under lying_madvise_shim.c, which says yes to all advice and takes none);
 * hopeless: what can never be had empties nobody's caches; retries: nor does, each time, what cannot be
 * had now; daemon PATH: statistics do not go into a file of the program's; stats: a thread that is to be
 * cancelled is not while it prints statistics; first: nor the first one while it allocates first (in a
 * static program: pthread_cancel itself may allocate); pipe: statistics that cannot be written are no signal
 * to the program, and do not take its own; probe: who asks whether there are filters, or to lose the right
 * to new privileges by no right argument, does not confine itself; confined: a process that confines itself does not empty what
 * other threads have cached, but one of whose children in its own memory has done so does. */
#include "../support/test.h"
#include "hakmem.h"
#include <errno.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#pragma weak hak_set_limits

/* A figure of the library, preloaded. */
static uint64_t figure(size_t offset) {
    int (*stats)(hak_stats_t *, size_t);
    *(void **)&stats = dlsym(RTLD_DEFAULT, "hak_stats");
    CHECK(stats);
    hak_stats_t now;
    stats(&now, sizeof now);
    return *(uint64_t *)((char *)&now + offset);
}

static void locked(void) {
    enum { PAIRS = 60, LOCKED = 20, SIZE = 900000 };
    static char *freed[PAIRS], *kept[PAIRS];
    for (int i = 0; i < PAIRS; i++) {
        CHECK((freed[i] = malloc(SIZE)) && (kept[i] = malloc(SIZE)));
        memset(freed[i], 1, SIZE), memset(kept[i], 1, SIZE);
    }
    for (int i = PAIRS - LOCKED; i < PAIRS; i++)
        if (mlock(freed[i], SIZE) != 0) {
            puts("skipped: memory cannot be locked");
            return;
        }
    for (int i = 0; i < PAIRS; i++) free(freed[i]);
    CHECK(malloc_trim(0) == 1);
    /* Some has gone before, for being too much. All that is left of what was freed is locked. */
    long left = resident_kib() - PAIRS * (SIZE / 1024);
    dprintf(1, "%ld KiB beside the blocks in use, %d locked\n", left, LOCKED * (SIZE / 1024));
    CHECK(left < LOCKED * (SIZE / 1024) + 2500);
}

/* So it is when memory is given back because a limit would refuse more; under HAKMEM_PURGE_DELAY=-1. */
static void locked_at_limit(void) {
    enum { BLOCKS = 100, LOCKED = 40, SIZE = 900000 };
    static char *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) CHECK((blocks[i] = malloc(SIZE)) && memset(blocks[i], 1, SIZE));
    for (int i = BLOCKS - LOCKED; i < BLOCKS; i += 2)
        if (mlock(blocks[i], SIZE) != 0) {
            puts("skipped: memory cannot be locked");
            return;
        }
    for (int i = 0; i < BLOCKS; i++)
        if (i < BLOCKS - LOCKED || i % 2 == 0) free(blocks[i]);
    int (*set_limits)(size_t, size_t);
    *(void **)&set_limits = dlsym(RTLD_DEFAULT, "hak_set_limits");
    uint64_t held = figure(offsetof(hak_stats_t, bytes_held));
    CHECK(held > 80 << 20 && set_limits && set_limits(0, held) == 0);
    CHECK(malloc(40 << 20) != NULL);
}

static void zeroed(void) {
    enum { BLOCKS = 400, SIZE = 60000, LARGE = 600000, MAPPED = 3 << 20 };
    static unsigned char *blocks[BLOCKS];
    static const size_t sizes[] = {SIZE, LARGE, MAPPED};
    for (int kind = 0; kind < 3; kind++) {
        size_t size = sizes[kind];
        int count = kind == 0 ? BLOCKS : 30;
        for (int i = 0; i < count; i++) CHECK((blocks[i] = malloc(size)) && memset(blocks[i], 0xaa, size));
        for (int i = 0; i < count; i++)
            if (i % 10) free(blocks[i]);
        malloc_trim(0);
        for (int i = 0; i < count; i++) {
            unsigned char *block = calloc(1, size);
            CHECK(block);
            for (size_t k = 0; k < size; k++) CHECK(block[k] == 0);
        }
    }
}

static pthread_barrier_t meet;

static void *caches(void *arg) {
    enum { BLOCKS = 100 };
    void *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) CHECK((blocks[i] = malloc(16 * (size_t)(i % 20) + 1)) != NULL);
    for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
    pthread_barrier_wait(&meet);
    pause();
    return arg;
}

/* Threads that hold a few blocks in their caches and sleep. */
static void sleepers(void) {
    enum { THREADS = 4 };
    pthread_barrier_init(&meet, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, caches, NULL) == 0);
    }
    pthread_barrier_wait(&meet);
}

static void limit_address_space(size_t more) {
    rlim_t most = (rlim_t)mapped_kib() * 1024 + more;
    struct rlimit limit = {most, most};
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
}

static void hopeless(void) {
    sleepers();
    free(malloc(2 << 20));
    uint64_t purged = figure(offsetof(hak_stats_t, bytes_purged));
    uint64_t cached = figure(offsetof(hak_stats_t, cached_bytes));
    CHECK(cached > 10000);
    void *volatile block;
    for (int i = 0; i < 20; i++) {
        errno = 0;
        CHECK((block = malloc((size_t)1 << 48)) == NULL && errno == ENOMEM);
        CHECK((block = calloc((size_t)1 << 42, 64)) == NULL && (block = aligned_alloc(1 << 21, (size_t)1 << 48)) == NULL);
    }
    CHECK(hak_set_limits == NULL || hak_set_limits(0, 64 << 20) == 0);
    if (hak_set_limits) {
        for (int i = 0; i < 20; i++) CHECK((block = malloc(65 << 20)) == NULL && errno == ENOMEM);
        CHECK(figure(offsetof(hak_stats_t, hard_limit_hits)) == 20);
        CHECK(hak_set_limits(0, 0) == 0);
    }
    limit_address_space(64 << 20);
    for (int i = 0; i < 20; i++) CHECK((block = malloc(1 << 30)) == NULL && errno == ENOMEM);
    CHECK(figure(offsetof(hak_stats_t, bytes_purged)) == purged);
    CHECK(figure(offsetof(hak_stats_t, cached_bytes)) == cached);
    /* What can be had by giving back is had. */
    char *large = malloc(40 << 20);
    CHECK(large);
    free(large);
    CHECK((block = malloc(50 << 20)) != NULL);
    free(block);
}

/* There is as much in small blocks as is asked for: only trying tells that it cannot be given back. */
static void retries(void) {
    enum { BLOCKS = 100000, TRIES = 200 };
    sleepers();
    static void *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) CHECK((blocks[i] = malloc(1000)) != NULL);
    limit_address_space(8 << 20);
    void *volatile block;
    dprintf(2, "the first\n");
    for (int i = 0; i < TRIES; i++) {
        CHECK((block = malloc(50 << 20)) == NULL && errno == ENOMEM);
        if (i == 0) dprintf(2, "the others\n");
    }
    dprintf(2, "done\n");
    for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
    CHECK((block = malloc(50 << 20)) != NULL);
}

static void as_daemon(const char *path) {
    free(malloc(100));
    int errors = dup(2);
    for (int fd = 0; fd < 1000; fd++)
        if (fd != errors) close(fd);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd == 0 && write(fd, "DATA", 4) == 4);
    while (fd < 200 && fd >= 0) fd = dup(fd);
    close(errors);
}

static volatile int printed;

static void *prints(void *unused) {
    pthread_cancel(pthread_self());
    malloc_stats();
    printed = 1;
    pthread_testcancel();
    return unused;
}

static void stats(void) {
    pthread_t thread;
    void *result;
    CHECK(pthread_create(&thread, NULL, prints, NULL) == 0);
    CHECK(pthread_join(thread, &result) == 0);
    CHECK(printed && result == PTHREAD_CANCELED);
}

/* Whether what other threads have cached goes back on request. */
static int goes_back(void) {
    sleepers();
    uint64_t cached = figure(offsetof(hak_stats_t, cached_bytes));
    CHECK(cached > 10000);
    malloc_trim(0);
    return figure(offsetof(hak_stats_t, cached_bytes)) < cached / 2;
}

static void ends_well(pid_t child) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void confined(void) {
    free(malloc(100));
    pid_t child = vfork();
    if (child == 0) _exit(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0);
    ends_well(child);
    /* A copy of the memory is the child's own, also where nobody has told it that it is one. */
    for (int told = 0; told < 2; told++) {
        child = told ? fork() : (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (child == 0) {
            if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) _exit(2);
            _exit(goes_back());
        }
        ends_well(child);
    }
    CHECK(goes_back());
    /* So also a child in the memory of a child. */
    child = fork();
    if (child == 0) {
        pid_t grandchild = vfork();
        if (grandchild == 0) _exit(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0);
        ends_well(grandchild);
        _exit(!goes_back());
    }
    ends_well(child);
}

static void probe(void) {
    free(malloc(100));
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL, 0, 0) == -1 && errno == EFAULT);
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0) == -1 && errno == EINVAL);
    CHECK(goes_back());
}

static int is_pending(int signal) {
    sigset_t set;
    return sigpending(&set) == 0 && sigismember(&set, signal);
}

/* With nobody at the other end of standard error. */
static void broken_pipe(void) {
    sigset_t set, now;
    malloc_stats();
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &now) == 0 && !sigismember(&now, SIGPIPE) && !sigismember(&now, SIGXFSZ));
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
    malloc_stats();
    CHECK(!is_pending(SIGPIPE));
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &now) == 0 && sigismember(&now, SIGPIPE) && !sigismember(&now, SIGXFSZ));
    raise(SIGPIPE);
    malloc_stats();
    CHECK(is_pending(SIGPIPE) && !is_pending(SIGXFSZ));
    _exit(0);
}

static void first(void) {
    pthread_cancel(pthread_self());
    void *volatile block = malloc(100);
    /* Not one of stdio's or the like, which may be where the thread ends. */
    syscall(SYS_write, 1, block ? "got it\n" : "null\n", block ? 7 : 5);
    syscall(SYS_exit_group, block ? 0 : 1);
}

int main(int argc, char **argv) {
    CHECK(argc >= 2);
    if (!strcmp(argv[1], "locked")) locked();
    else if (!strcmp(argv[1], "limit")) locked_at_limit();
    else if (!strcmp(argv[1], "zeroed")) zeroed();
    else if (!strcmp(argv[1], "hopeless")) hopeless();
    else if (!strcmp(argv[1], "retries")) retries();
    else if (!strcmp(argv[1], "daemon") && argc == 3) as_daemon(argv[2]);
    else if (!strcmp(argv[1], "stats")) stats();
    else if (!strcmp(argv[1], "confined")) confined();
    else if (!strcmp(argv[1], "probe")) probe();
    else if (!strcmp(argv[1], "pipe")) broken_pipe();
    else if (!strcmp(argv[1], "first")) first();
    else return 2;
    return 0;
}
