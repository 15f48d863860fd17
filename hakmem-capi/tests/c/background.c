/* The background thread as a C program has it, by the option (HAKMEM_BACKGROUND=on) or by the call.
 *
 *   background start|none|small|signals|fork|raw|ordinary|cancel|drop|keep|sleeper|orphans|records|exit|leave
 *
 * start: hak_background_start and _stop, and what is freed goes back; none: there is no such thread;
 * small: nor has a program with the option one that needs hardly any memory; signals: sent to the process
 * they reach a thread of the program; fork: a child starts its own when it allocates, not before, and may
 * stop it; raw: one made without handlers starts none, and may stop it, too; ordinary: it is no real-time
 * thread, and on all CPUs, whoever starts it; cancel: whoever is cancelled while stopping it has stopped
 * it; drop: 200 MiB come and go, twice; keep: with a long delay nothing of 200 MiB goes back;
 * sleeper: most blocks of a thread that sleeps are freed by another one, when there was nothing to do for a while;
 * orphans: most blocks of a thread that has ended are freed; records: what threads that have ended had in their
 * heaps goes back when asked for; exit: the process ends in the middle of a pass; leave: all its threads end, the first one by pthread_exit, and so the
 * process does. */
#define _GNU_SOURCE
#include "../support/test.h"
#include "hakmem.h"
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/wait.h>

enum { BLOCK = 200, BLOCKS = 1 << 20, MIB = 1 << 20 };

#pragma weak hak_background_start
#pragma weak hak_background_stop
#pragma weak hak_purge

static void *blocks[BLOCKS];

static long resident(void) {
    /* Without an allocation, which the background thread might hear of. */
    char text[128] = "";
    int f = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    CHECK(f >= 0 && read(f, text, sizeof text - 1) > 0);
    close(f);
    long pages;
    CHECK(sscanf(text, "%*d %ld", &pages) == 1);
    return pages * sysconf(_SC_PAGESIZE);
}

/* A figure of the library, preloaded. */
static unsigned long long figure(size_t offset) {
    int (*stats)(hak_stats_t *, size_t);
    *(void **)&stats = dlsym(RTLD_DEFAULT, "hak_stats");
    CHECK(stats);
    hak_stats_t now;
    stats(&now, sizeof now);
    return *(uint64_t *)((char *)&now + offset);
}

/* The id of the background thread, found by its name, or 0. Allocates nothing: that may start the thread. */
static pid_t thread_id(void) {
    pid_t found = 0;
    int tasks = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(tasks >= 0);
    _Alignas(struct dirent64) char all[4096];
    long size;
    while ((size = syscall(SYS_getdents64, tasks, all, sizeof all)) > 0) {
        struct dirent64 *entry;
        for (long at = 0; at < size; at += entry->d_reclen) {
            entry = (struct dirent64 *)(all + at);
            char path[300], name[32] = "";
            snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
            int f = entry->d_name[0] == '.' ? -1 : open(path, O_RDONLY | O_CLOEXEC);
            if (f < 0) continue;
            if (read(f, name, sizeof name - 1) > 0 && !strcmp(name, "hakmem\n")) {
                CHECK(found == 0);
                found = atoi(entry->d_name);
            }
            close(f);
        }
    }
    CHECK(size == 0);
    close(tasks);
    return found;
}

static void grow(int count) {
    for (int i = 0; i < count; i++) {
        blocks[i] = malloc(BLOCK);
        CHECK(blocks[i]);
        memset(blocks[i], 1, BLOCK);
    }
}

static void drop(int count) {
    for (int i = 0; i < count; i++) free(blocks[i]);
}

static void until(int (*condition)(long), long argument) {
    for (int i = 0; !condition(argument); i++) {
        CHECK(i < 3000);
        usleep(20000);
    }
}

static int below(long bytes) { return resident() < bytes; }
static int is_there(long yes) { return (thread_id() != 0) == yes; }

/* What is still there of what was dropped earlier is used again: `before` is what was resident without it. */
static void drop_and_wait(long before) {
    until(below, before + 20L * MIB);
    grow(BLOCKS);
    long peak = resident();
    CHECK(peak - before > 200L * MIB);
    drop(BLOCKS);
    until(below, before + (peak - before) / 10);
}

static int passes(long count) { return figure(offsetof(hak_stats_t, background_passes)) >= (unsigned long)count; }

static void keep(void) {
    until(passes, 1);
    grow(BLOCKS);
    long peak = resident();
    unsigned long long purged = figure(offsetof(hak_stats_t, bytes_purged));
    drop(BLOCKS);
    CHECK(resident() > peak - peak / 10);
    CHECK(figure(offsetof(hak_stats_t, bytes_purged)) == purged);
}

/* Frees all but a block here and there, and waits until most of the memory is gone. */
static void *thin_out(void *before) {
    CHECK(resident() - *(long *)before > 200L * MIB);
    for (int i = 0; i < BLOCKS; i++)
        if (i % 300) free(blocks[i]);
    until(below, *(long *)before + 80L * MIB);
    return NULL;
}

static void *late_thin_out(void *before) {
    usleep(2500000);
    return thin_out(before);
}

static void *grow_all(void *unused) {
    grow(BLOCKS);
    return unused;
}

static pthread_barrier_t barrier;

/* Has blocks of many sizes in its magazines, and more than there is room for. */
static void *fill_record(void *unused) {
    enum { MANY = 300 };
    for (size_t size = 16; size < 2000; size += 100) {
        void *mine[MANY];
        for (int i = 0; i < MANY; i++) CHECK(mine[i] = malloc(size));
        for (int i = 0; i < MANY; i++) free(mine[i]);
    }
    pthread_barrier_wait(&barrier);
    return unused;
}

static void records(void) {
    enum { THREADS = 200 };
    pthread_t thread[THREADS];
    size_t metadata = offsetof(hak_stats_t, metadata_bytes);
    CHECK(pthread_barrier_init(&barrier, NULL, THREADS) == 0);
    hak_purge();
    unsigned long long before = figure(metadata);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&thread[i], NULL, fill_record, NULL) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(thread[i], NULL) == 0);
    unsigned long long all = figure(metadata);
    hak_purge();
    unsigned long long left = figure(metadata);
    dprintf(1, "records: %llu KiB, %llu KiB when they had ended, %llu KiB when asked for\n", before >> 10, all >> 10,
            left >> 10);
    CHECK(all - before > THREADS * 10 * 1024 && left - before < THREADS * 6 * 1024);
    /* They are as good as new. */
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&thread[i], NULL, fill_record, NULL) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(thread[i], NULL) == 0);
}

static volatile sig_atomic_t caught;
static volatile pid_t catcher;

static void on_signal(int number) {
    (void)number;
    catcher = gettid();
    caught++;
}

static void signals(void) {
    pid_t thread = thread_id();
    CHECK(thread != 0);
    char path[64], line[256];
    unsigned long long blocked = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/status", thread);
    FILE *f = fopen(path, "r");
    CHECK(f);
    while (fgets(line, sizeof line, f)) sscanf(line, "SigBlk: %llx", &blocked);
    fclose(f);
    /* All that can be blocked, but for the C library's own two. */
    unsigned long long all = ~0ULL & ~(1ULL << (SIGKILL - 1)) & ~(1ULL << (SIGSTOP - 1)) & ~(3ULL << 31);
    CHECK((blocked & all & ~(1ULL << 33)) == (all & ~(1ULL << 33)));
    signal(SIGUSR1, on_signal);
    for (int i = 1; i <= 50; i++) {
        CHECK(kill(getpid(), SIGUSR1) == 0);
        while (caught < i) usleep(100);
        CHECK(catcher == getpid());
    }
    /* With the program's own thread blocking it, it waits for sigwait. */
    sigset_t set, before;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    CHECK(pthread_sigmask(SIG_BLOCK, &set, &before) == 0);
    CHECK(!sigismember(&before, SIGUSR2) && !sigismember(&before, SIGUSR1));
    for (int i = 0; i < 50; i++) {
        int number = 0;
        CHECK(kill(getpid(), SIGUSR2) == 0);
        drop(1000);
        grow(1000);
        CHECK(sigwait(&set, &number) == 0 && number == SIGUSR2);
    }
}

static void child(int i, int handlers) {
    end_if_hung(60);
    CHECK(thread_id() == 0);
    if (i % 3 == 0 && hak_background_stop) hak_background_stop();
    if (i % 3 == 1) {
        drop(BLOCKS / 4);
        grow(BLOCKS / 4);
        if (handlers) until(is_there, 1);
        else CHECK(thread_id() == 0);
        if (hak_background_stop) {
            hak_background_stop();
            until(is_there, 0); /* its entry goes a moment after it */
        }
    }
    _exit(0);
}

static volatile int stop;

/* Keeps the thread at work. */
static void *swing(void *unused) {
    (void)unused;
    enum { LARGE = 24 };
    void *large[LARGE];
    while (!stop) {
        for (int i = 0; i < LARGE; i++) CHECK((large[i] = malloc(i % 2 ? 700000 : 1500000)) && memset(large[i], 1, 700000));
        for (int i = 0; i < LARGE; i++) free(large[i]);
        usleep(3000);
    }
    return NULL;
}

static void forks(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, swing, NULL) == 0);
    for (int i = 0; i < 90; i++) {
        int status;
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) child(i, 1);
        CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    }
    stop = 1;
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(thread_id() != 0);
}

static void raw_forks(void) {
    for (int i = 0; i < 30; i++) {
        int status;
        pid_t pid = i % 2 ? _Fork() : (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        CHECK(pid >= 0);
        if (pid == 0) child(i / 2, 0);
        CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    }
    CHECK(thread_id() != 0);
}

static int real_time;

/* Grows as a thread of the highest kind, on one CPU. */
static void *special(void *cpu) {
    struct sched_param param = {.sched_priority = 10};
    real_time = pthread_setschedparam(pthread_self(), SCHED_FIFO, &param) == 0;
    CHECK(pthread_setaffinity_np(pthread_self(), sizeof(cpu_set_t), cpu) == 0);
    grow(BLOCKS / 4);
    until(is_there, 1);
    return NULL;
}

static int is_ordinary(long cpus) {
    cpu_set_t set;
    CHECK(sched_getaffinity(thread_id(), sizeof set, &set) == 0);
    return sched_getscheduler(thread_id()) == SCHED_OTHER && CPU_COUNT(&set) == cpus;
}

static void ordinary(void) {
    pthread_t thread;
    cpu_set_t all, one;
    CHECK(sched_getaffinity(0, sizeof all, &all) == 0);
    CPU_ZERO(&one);
    for (int i = 0; CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
    CHECK(pthread_create(&thread, NULL, special, &one) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    until(is_ordinary, CPU_COUNT(&all));
    dprintf(1, "%d CPUs, started by a real-time thread: %d\n", CPU_COUNT(&all), real_time);
}

static void *stop_cancelled(void *unused) {
    pthread_cancel(pthread_self());
    hak_background_stop();
    __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
    pthread_testcancel();
    return unused;
}

static void cancel(void) {
    for (int i = 0; i < 20; i++) {
        void *result;
        pthread_t thread;
        stop = 0;
        CHECK(hak_background_start() == 0);
        CHECK(pthread_create(&thread, NULL, stop_cancelled, NULL) == 0);
        CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
        CHECK(stop);
        until(is_there, 0);
    }
}

/* Needs more stack than the background thread has. */
static void last_words(void) {
    char much[1 << 20];
    memset(much, 'x', sizeof much);
    CHECK(much[sizeof much / 2] == 'x');
    dprintf(1, "ended\n");
}

/* Of three threads that outlive the first one, one has a heap. */
static void *outlive(void *allocates) {
    if (allocates) free(malloc(100));
    usleep(300000);
    dprintf(1, "outlived\n");
    return NULL;
}

static void leave(void) {
    CHECK(atexit(last_words) == 0);
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, outlive, i == 1 ? blocks : NULL) == 0);
    }
    pthread_exit(NULL);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    const char *mode = argv[1];
    long at_first = resident();
    if (!strcmp(mode, "start")) {
        CHECK(hak_background_start && hak_background_stop);
        CHECK(thread_id() == 0);
        errno = 0;
        CHECK(hak_background_start() == 0 && hak_background_start() == 0);
        CHECK(errno == 0);
        until(is_there, 1);
        drop_and_wait(at_first);
        hak_background_stop();
        until(is_there, 0);
        hak_background_stop();
    } else if (!strcmp(mode, "none")) {
        grow(BLOCKS / 4);
        drop(BLOCKS / 4);
        grow(BLOCKS / 4);
        CHECK(thread_id() == 0);
    } else if (!strcmp(mode, "records")) {
        records();
    } else if (!strcmp(mode, "ordinary")) {
        ordinary();
    } else if (!strcmp(mode, "cancel")) {
        cancel();
    } else if (!strcmp(mode, "small")) {
        grow(1000);
        drop(1000);
        CHECK(thread_id() == 0);
    } else {
        grow(BLOCKS / 4);
        until(is_there, 1);
        if (!strcmp(mode, "signals")) signals();
        if (!strcmp(mode, "fork")) forks();
        if (!strcmp(mode, "raw")) raw_forks();
        if (!strcmp(mode, "keep")) {
            keep();
            return 0;
        }
        drop(BLOCKS / 4);
        if (!strcmp(mode, "drop")) drop_and_wait(at_first), drop_and_wait(at_first);
        pthread_t thread;
        if (!strcmp(mode, "sleeper")) {
            grow(BLOCKS);
            CHECK(pthread_create(&thread, NULL, late_thin_out, &at_first) == 0);
            CHECK(pthread_join(thread, NULL) == 0);
        }
        if (!strcmp(mode, "orphans")) {
            CHECK(pthread_create(&thread, NULL, grow_all, NULL) == 0);
            CHECK(pthread_join(thread, NULL) == 0);
            thin_out(&at_first);
        }
        if (!strcmp(mode, "exit")) exit(0);
        if (!strcmp(mode, "leave")) leave();
    }
    dprintf(1, "%s ok\n", mode);
    return 0;
}
