/* Allocates in several threads and in a child, beside a library whose `syscall` is in the place of the C
 * library's. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 4, BLOCKS = 500 };
static void *blocks[THREADS][BLOCKS];
static pthread_barrier_t meet;

static void *work(void *arg) {
    long me = (long)arg;
    for (int round = 0; round < 8; round++) {
        for (int i = 0; i < BLOCKS; i++) {
            size_t size = ((size_t)(i % 89) << (i % 13)) | 24;
            if (!(blocks[me][i] = malloc(size))) _exit(5);
            memset(blocks[me][i], 1, 24);
        }
        pthread_barrier_wait(&meet);
        for (int i = 0; i < BLOCKS; i++) free(blocks[(me + 1) % THREADS][i]);
        pthread_barrier_wait(&meet);
    }
    return NULL;
}

static void all(void) {
    pthread_t ids[THREADS];
    pthread_barrier_init(&meet, NULL, THREADS);
    for (long i = 0; i < THREADS; i++)
        if (pthread_create(&ids[i], NULL, work, (void *)i)) _exit(6);
    for (int i = 0; i < THREADS; i++) pthread_join(ids[i], NULL);
    malloc_trim(0);
}

int main(void) {
    all();
    pid_t child = fork();
    if (child == 0) {
        all();
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status) return 7;
    /* The library has a `prctl` of its own. */
    char name[16] = "";
    if (prctl(PR_SET_NAME, "a name") || prctl(PR_GET_NAME, name) || strcmp(name, "a name")) return 8;
    errno = 0;
    if (prctl(-1) != -1 || errno != EINVAL) return 9;
    return syscall(SYS_getppid) != 4711;
}
