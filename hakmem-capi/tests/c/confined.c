/* A process under a seccomp filter that ends it at the first system call that it may not make.
 *
 *   confined self              confines itself to what any allocator needs, and works on, with threads
 *   confined under PROGRAM...  may not make the calls that only some allocators make, from the start
 *   confined later             the latter for threads that start after the first allocation
 *   confined again             frees a block twice that was between guard pages before
 *   confined guarded           frees and resizes blocks that were between guard pages before
 *   confined starting          while the background thread starts; on one processor, as other threads may have it
 *   confined ends              may not open files any more, nor may its child, and ends with both
 *   confined work              the work alone */
#include "../support/test.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { BLOCKS = 200000, THREADS = 3 };

#pragma weak hak_background_start
int hak_background_start(void);

static pthread_barrier_t meet;
static void *blocks[THREADS][BLOCKS];

/* Frees what another thread has allocated, while that sleeps, and grows large blocks. */
static void *work(void *arg) {
    long me = (long)arg;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < BLOCKS; i++) {
            size_t size = 16 + (size_t)(i * 7 + round) % 600;
            CHECK((blocks[me][i] = malloc(size)) != NULL);
            memset(blocks[me][i], 1, size);
        }
        pthread_barrier_wait(&meet);
        if (me == round)
            for (int other = 0; other < THREADS; other++)
                for (int i = 0; i < BLOCKS; i++) free(blocks[other][i]);
        pthread_barrier_wait(&meet);
        size_t size = 100000;
        char *large = malloc(size);
        for (; size < 200 << 20; size = size * 3 / 2) {
            CHECK(large != NULL);
            memset(large + size / 2, 1, size / 2);
            large = realloc(large, size * 3 / 2);
        }
        free(large);
        malloc_trim(0);
    }
    pthread_barrier_wait(&meet);
    return NULL;
}

/* Allows, or forbids, the calls; the others the other way round. For this thread, or for all. */
static void filter(int all, const int *calls, int count, unsigned then, unsigned otherwise) {
    struct sock_filter code[64] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    int length = 1;
    for (int i = 0; i < count; i++) {
        code[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)calls[i], 0, 1);
        code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, then);
    }
    code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, otherwise);
    struct sock_fprog program = {(unsigned short)length, code};
    if (all) {
        CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0);
        return;
    }
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

#define FILTER(then, otherwise, ...)                                                                         \
    filter(0, (const int[]){__VA_ARGS__}, sizeof((const int[]){__VA_ARGS__}) / sizeof(int), then, otherwise)
#define FILTER_ALL(then, otherwise, ...)                                                                     \
    filter(1, (const int[]){__VA_ARGS__}, sizeof((const int[]){__VA_ARGS__}) / sizeof(int), then, otherwise)

static void *starts(void *arg) {
    free(malloc(100));
    pthread_barrier_wait(&meet);
    /* The filter is the first thread's, and these inherit it where they are made after it: so it is put
     * on here, too. */
    FILTER(SECCOMP_RET_ALLOW, SECCOMP_RET_KILL_PROCESS, SYS_mmap, SYS_munmap, SYS_mremap, SYS_madvise, SYS_futex, SYS_write,
           SYS_exit_group, SYS_restart_syscall);
    work(arg);
    pthread_barrier_wait(&meet);
    _exit(0);
}

int main(int argc, char **argv) {
    CHECK(argc >= 2);
    if (!strcmp(argv[1], "under")) {
        FILTER(SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_ALLOW, SYS_mincore, SYS_membarrier, SYS_sched_yield,
               SYS_sched_getaffinity, SYS_getcwd, SYS_fcntl);
        execv(argv[2], argv + 2);
        CHECK(0);
    }
    if (!strcmp(argv[1], "later")) { /* threads that start, and allocate for the first time, after that */
        free(malloc(100));
        FILTER(SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_ALLOW, SYS_mincore, SYS_membarrier, SYS_sched_yield, SYS_getrandom);
    }
    if (!strcmp(argv[1], "again")) {
        void *block = malloc(100);
        FILTER(SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_ALLOW, SYS_openat, SYS_process_vm_readv, SYS_mincore);
        free(block);
        free(block);
        return 1;
    }
    if (!strcmp(argv[1], "guarded")) {
        char *block = malloc(100), *other = malloc(100);
        FILTER(SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_ALLOW, SYS_getpid, SYS_gettid, SYS_process_vm_readv, SYS_mincore);
        free(block);
        CHECK((other = realloc(other, 5000)) != NULL);
        free(other);
        for (int i = 0; i < 1000; i++) free(malloc(100));
        _exit(0);
    }
    if (!strcmp(argv[1], "starting")) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(sched_getcpu(), &one);
        CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
        for (int i = 0; i < 50; i++) {
            pid_t child = fork();
            CHECK(child >= 0);
            if (child == 0) {
                CHECK(hak_background_start() == 0);
                CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
                FILTER_ALL(SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_ALLOW, SYS_prctl, SYS_sched_setaffinity,
                           SYS_sched_getscheduler, SYS_rt_sigprocmask, SYS_set_robust_list);
                usleep(20000);
                _exit(0);
            }
            int status = -1;
            CHECK(waitpid(child, &status, 0) == child && status == 0);
        }
        return 0;
    }
    if (!strcmp(argv[1], "ends")) {
        free(malloc(100));
        FILTER(SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_ALLOW, SYS_openat, SYS_getrusage, SYS_fcntl);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            free(malloc(100));
            exit(0);
        }
        int status = -1;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        return 0;
    }
    pthread_barrier_init(&meet, NULL, THREADS);
    for (long i = 1; i < THREADS; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, strcmp(argv[1], "self") ? work : starts, (void *)i) == 0);
    }
    if (!strcmp(argv[1], "self")) starts(NULL);
    CHECK(!strcmp(argv[1], "work") || !strcmp(argv[1], "later"));
    work(NULL);
    _exit(0);
}
