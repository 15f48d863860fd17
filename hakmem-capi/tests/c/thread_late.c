/* Threads that do nothing, not even allocate. Each one that ends unmaps the stack of an earlier one, because
 * glibc keeps no stacks as large as these, and frees what belongs to it. That is the thread's only call of the
 * allocator, and comes after all destructors. Then the same with one that unmaps many small stacks at once, which
 * glibc had kept: it makes as many calls. */
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { SMALL = 60 };

static pthread_attr_t attributes, small;
static pthread_barrier_t started;

static void *nothing(void *argument) { return argument; }

static void *together(void *argument) {
    pthread_barrier_wait(&started);
    return argument;
}

static void ended(void) {
    for (int tasks = 2; tasks > 1; sched_yield()) {
        DIR *folder = opendir("/proc/self/task");
        tasks = -2;
        while (readdir(folder)) tasks++;
        closedir(folder);
    }
}

static void threads(int count) {
    for (int i = 0; i < count; i++) {
        pthread_t thread;
        if (pthread_create(&thread, &attributes, nothing, NULL) != 0) exit(2);
        if (i % 4 == 3) ended();
    }
}

static void after_small_ones(int rounds) {
    for (int i = 0; i < rounds; i++) {
        for (int j = 0; j < SMALL; j++) {
            pthread_t thread;
            if (pthread_create(&thread, &small, together, NULL) != 0) exit(2);
        }
        pthread_barrier_wait(&started);
        ended();
        threads(1);
        ended();
    }
}

static long mapped(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (fscanf(file, "%ld", &pages) != 1) exit(3);
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

int main(void) {
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 64 << 20);
    pthread_attr_init(&small);
    pthread_attr_setdetachstate(&small, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&small, 256 << 10);
    pthread_barrier_init(&started, NULL, SMALL + 1);
    threads(20);
    /* The C library keeps the stack of a thread that ends alone, and of several that end together more. */
    threads(1);
    ended();
    long before = mapped();
    threads(400);
    threads(1);
    ended();
    long more = mapped() - before;
    printf("%ld KiB more mapped after 400 threads\n", more);
    if (more > 80 << 10) return 1; /* with a heap for each that frees it was over 100 MiB */
#if __GLIBC_PREREQ(2, 35)
    after_small_ones(2);
    before = mapped();
    after_small_ones(40);
    more = mapped() - before;
    printf("%ld KiB more mapped after 40 threads that free much\n", more);
    if (more > 8 << 10) return 1; /* with a heap for each it was 20 MiB */
#endif
    return 0;
}
