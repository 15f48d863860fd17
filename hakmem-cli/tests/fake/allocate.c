/* Makes a known number of calls, as its first argument says; writes with write alone, as stdio allocates. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void *volatile keep[20000];

static void many(int from, int to, size_t size) {
    for (int i = from; i < to; i++) keep[i] = malloc(size);
}

static void free_all(int from, int to) {
    for (int i = from; i < to; i++) free(keep[i]);
}

/* 100 + 10 + 1 + 1 + 1 + 1 + 1 + 1 allocations, 5 of them zeroed, 5 aligned; 4 new sizes; 101 + 5 frees. */
static int all(void) {
    errno = 77;
    many(0, 100, 24);
    for (int i = 100; i < 105; i++) keep[i] = malloc(0);
    for (int i = 105; i < 110; i++) keep[i] = calloc(3, 50);
    keep[110] = aligned_alloc(64, 128);
    keep[111] = memalign(256, 100);
    void *aligned;
    if (posix_memalign(&aligned, 4096, 10)) return 2;
    if (posix_memalign(&aligned, 3, 10) != EINVAL) return 3;
    keep[113] = valloc(5);
    keep[114] = pvalloc(5);
    keep[115] = realloc(NULL, 60);
    keep[115] = realloc(keep[115], 6000);
    keep[115] = realloc(keep[115], 600000);
    keep[115] = reallocarray(keep[115], 7, 7);
    keep[0] = realloc(keep[0], 5);
    free_all(0, 100);
    free_all(100, 105);
    keep[105] = realloc(keep[105], 0);
    free(NULL);
    if (errno != 77) return 4;
    if (malloc(~(size_t)0 >> 1) || calloc(~(size_t)0, 2) || realloc(keep[115], ~(size_t)0 >> 1)) return 5;
    if (reallocarray(keep[115], ~(size_t)0, 2) || errno != ENOMEM) return 6;
    return write(1, "done\n", 5) == 5 ? 7 : 1;
}

static void *work(void *passed) {
    for (int i = 0; i < 1000; i++) free(malloc(48));
    free(passed);
    return malloc(333);
}

/* Each of 4 threads: 1001 allocations and frees; main: 4 of 777 bytes, 4 frees. And what creating threads
 * takes. */
static int threads(void) {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, work, malloc(777));
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(threads[i], &result);
        free(result);
    }
    return 0;
}

static int child(long pid) {
    if (pid == 0) {
        /* Not ours: from before. */
        free_all(0, 10);
        many(100, 600, 40);
        _exit(0);
    }
    many(10, 30, 20);
    int status;
    return waitpid(pid, &status, 0) == pid && status == 0 ? 0 : 1;
}

int main(int count, char **arguments) {
    const char *what = arguments[1];
    if (!strcmp(what, "all")) return all();
    if (!strcmp(what, "threads")) return threads();
    if (!strcmp(what, "fork")) return many(0, 10, 20), child(fork());
    /* Behind the C library's back: nobody's fork handlers run. */
    if (!strcmp(what, "raw-fork")) return many(0, 10, 20), child(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
    if (!strcmp(what, "kill")) return many(0, 5000, 100), kill(getpid(), SIGKILL);
    if (!strcmp(what, "exec")) return many(0, 50, 30), execl(arguments[0], arguments[0], "all", NULL);
    if (!strcmp(what, "closed")) {
        for (int fd = 0; fd < 256; fd++) close(fd);
        return many(0, 5000, 100), 0;
    }
    if (!strcmp(what, "endless")) {
        for (int i = 0; i < 200000; i++) free(malloc(64));
        return 0;
    }
    return 1;
}
