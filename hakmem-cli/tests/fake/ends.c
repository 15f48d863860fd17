/* What may happen to a process that is profiled. With a rate of 1 KiB every block of HELD or OWN bytes is
 * sampled, and no other block has these sizes.
 *
 *   ends fork HOW END ROUNDS [hand|thread]   children, beside threads that allocate and free
 *   ends exec                                becomes "ends own"
 *   ends own                                 holds OWN blocks, and returns
 *   ends work                                allocates and frees on three threads until it is killed
 *   ends write FILE                          writes FILE again and again until it is killed
 *   ends steps                               as "own", with a pause for each line of its input
 *   ends link TARGET                         as "own", with its profile's file a link to TARGET
 *   ends empty                               as "own", and holds HOLD blocks of no bytes */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HELD = 40960, OWN = 49152, HOLD = 200, FREE = 80, MORE = 150, SLOTS = 64 };

extern char **environ;
static void *held[HOLD];
static void *volatile own[MORE + 1];
static void *slots[SLOTS];
static char self[4096];
static int (*profile_start)(size_t);
static int (*profile_write)(const char *);

static void die(const char *what) {
    dprintf(2, "%s\n", what);
    _exit(99);
}

static void *make(size_t size) {
    char *block = malloc(size);
    if (!block) die("no memory");
    block[0] = block[size - 1] = 1;
    return block;
}

static uint64_t next(uint64_t *x) {
    *x ^= *x << 13;
    *x ^= *x >> 7;
    return *x ^= *x << 17;
}

/* Blocks that one thread allocates are freed by another. */
static void *work(void *seed) {
    for (uint64_t x = (uintptr_t)seed;;) {
        size_t size = next(&x) % 16 ? next(&x) % 500 : next(&x) % 30000;
        free(__atomic_exchange_n(&slots[next(&x) % SLOTS], make(size + 1), __ATOMIC_ACQ_REL));
    }
}

static void hold(void) {
    for (int i = 0; i < HOLD; i++) held[i] = make(HELD);
}

/* Longer than the interval ever is, so that the next sample comes with a snapshot. */
static void snapshot(void) {
    usleep(70000);
    own[MORE] = make(OWN);
}

static void have_own(void) {
    for (int i = 0; i < MORE; i++) own[i] = make(OWN);
}

static void start_threads(void) {
    for (uintptr_t i = 1; i <= 3; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, (void *)i)) die("no thread");
    }
}

/* Frees blocks of its parent, has some of its own, and ends. Returns to return from main. */
static int child(const char *how, const char *end, int hand) {
    /* As if left by another process of this number, long ago. Before the first allocation. */
    char old[64];
    snprintf(old, sizeof old, "p.%d.hakprof", getpid());
    if (!hand && !strcmp(how, "fork")) close(creat(old, 0644));
    for (int i = 0; i < FREE; i++) free(held[i]);
    have_own();
    if (hand) {
        char path[64];
        snprintf(path, sizeof path, "hand.%d.hakprof", getpid());
        if (profile_write(path)) die("no file");
    }
    if (!strcmp(end, "exit")) exit(0);
    if (!strcmp(end, "return")) return 0;
    if (!hand) snapshot();
    if (!strcmp(end, "_exit")) _exit(0);
    if (!strcmp(end, "kill")) kill(getpid(), SIGKILL);
    if (!strcmp(end, "abort")) abort();
    die("no such end");
    return 1;
}

static pid_t start(const char *how) {
    char *arguments[] = {self, "own", NULL};
    pid_t pid = -1;
    if (!strcmp(how, "fork")) return fork();
    if (!strcmp(how, "_Fork")) return _Fork();
    if (!strcmp(how, "vfork")) {
        if ((pid = vfork()) == 0) {
            execv(self, arguments);
            _exit(98);
        }
    } else if (posix_spawn(&pid, self, NULL, NULL, arguments, environ)) {
        die("not spawned");
    }
    return pid;
}

static int is_child;

static void *forks(void *arguments) {
    char **argv = arguments;
    int hand = argv[5] && !strcmp(argv[5], "hand");
    hold();
    for (int i = 0; i < atoi(argv[4]); i++) {
        pid_t pid = start(argv[2]);
        if (pid < 0) die("no child");
        if (pid == 0) {
            is_child = 1;
            /* A thread that is no process's first cannot return from main. */
            int code = child(argv[2], argv[3], hand);
            if (argv[5] && !strcmp(argv[5], "thread")) exit(code);
            return (void *)(intptr_t)code;
        }
        int status;
        if (waitpid(pid, &status, 0) != pid) die("no end");
        if (WIFEXITED(status) && WEXITSTATUS(status)) die("the child failed");
        dprintf(1, "%d\n", pid);
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 2 || readlink("/proc/self/exe", self, sizeof self - 1) < 0) die("no mode");
    profile_start = (int (*)(size_t))dlsym(RTLD_DEFAULT, "hak_profile_start");
    profile_write = (int (*)(const char *))dlsym(RTLD_DEFAULT, "hak_profile_write");
    char *mode = argv[1];
    if (!strcmp(mode, "fork")) {
        int hand = argv[5] && !strcmp(argv[5], "hand");
        if (hand && profile_start(1024)) die("not started");
        start_threads();
        if (argv[5] && !strcmp(argv[5], "thread")) {
            pthread_t thread;
            if (pthread_create(&thread, NULL, forks, argv) || pthread_join(thread, NULL)) die("no thread");
        } else {
            int code = (int)(intptr_t)forks(argv);
            if (is_child) return code;
        }
        if (hand && profile_write("hand.hakprof")) die("no file of the parent");
        return 0;
    }
    if (!strcmp(mode, "exec")) {
        hold();
        usleep(70000);
        free(make(HELD));
        execl(self, "ends", "own", NULL);
        die("no exec");
    }
    if (!strcmp(mode, "work") || !strcmp(mode, "write")) {
        if (argc > 2 && profile_start(1024)) die("not started");
        start_threads();
        while (argc > 2)
            if (profile_write(argv[2])) die("not written");
        pause();
    }
    if (!strcmp(mode, "link")) {
        char path[512];
        snprintf(path, sizeof path, "%s.%d.hakprof", getenv("HAKMEM_PROFILE"), getpid());
        if (symlink(argv[2], path)) die("no link");
    }
    if (!strcmp(mode, "empty"))
        for (int i = 0; i < HOLD; i++)
            if (!(held[i] = malloc(0))) die("no memory");
    have_own();
    if (!strcmp(mode, "steps"))
        for (char byte; read(0, &byte, 1) == 1;) {
            snapshot();
            dprintf(1, "%c", byte);
        }
    return 0;
}
