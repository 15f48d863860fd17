/* Threads that do nothing, not even allocate. Each one that ends unmaps the stack of an earlier one, because
 * glibc keeps no stacks as large as these, and frees what belongs to it. That is the thread's only call of the
 * allocator, and comes after all destructors. */
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_attr_t attributes;

static void *nothing(void *argument) { return argument; }

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
    threads(20);
    long before = mapped();
    threads(400);
    long more = mapped() - before;
    printf("%ld KiB more mapped after 400 threads\n", more);
    return more > 80 << 10; /* with a heap for each that frees it was over 100 MiB */
}
