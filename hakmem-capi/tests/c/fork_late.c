/* A process with a background thread, which visits the heap of the thread that forks, makes children without
 * the handlers of fork. Each starts a thread, which notices the fork first, and whose end the other awaits
 * before it allocates: it must not wait for the visitor, which it does not have. */
#define _GNU_SOURCE
#include "../support/test.h"
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MANY = 20000, FEW = 500 };

static void *works(void *unused) {
    void *block[FEW];
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < FEW; i++) CHECK((block[i] = malloc(16 + i * 13 % 3000)) != NULL);
        for (int i = 0; i < FEW; i++) free(block[i]);
    }
    return unused;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    static void *block[MANY];
    int forks = atoi(argv[1]);
    for (int f = 0; f < forks; f++) {
        for (int i = 0; i < MANY; i++) CHECK((block[i] = malloc(16 + i % 61 * 16)) != NULL);
        for (int i = 0; i < MANY; i++) free(block[i]);
        usleep(f % 50 * 100);
        pid_t child = _Fork();
        if (child == 0) {
            end_if_hung(100);
            pthread_t thread;
            CHECK(pthread_create(&thread, NULL, works, NULL) == 0 && pthread_join(thread, NULL) == 0);
            works(NULL);
            _exit(7);
        }
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    }
    return 0;
}
