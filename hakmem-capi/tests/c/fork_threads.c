/* A process with one thread makes children without the handlers of fork; each starts threads, and all of
 * them allocate. */
#define _GNU_SOURCE
#include "../support/test.h"
#include <pthread.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SLOTS = 500, ROUNDS = 40000, THREADS = 4 };

static void *works(void *arg) {
    unsigned char *block[SLOTS] = {0};
    size_t size[SLOTS];
    unsigned char mark = (unsigned char)(uintptr_t)arg;
    uint32_t seed = mark * 2654435761u;
    for (int i = 0; i < ROUNDS; i++) {
        seed = seed * 1664525u + 1013904223u;
        unsigned slot = (seed >> 8) % SLOTS;
        if (block[slot]) {
            CHECK(block[slot][0] == mark && block[slot][size[slot] / 2] == mark && block[slot][size[slot] - 1] == mark);
            free(block[slot]);
            block[slot] = NULL;
        } else {
            size[slot] = 1 + (seed >> 12) % (seed & 0x70 ? 3000 : 200000);
            CHECK((block[slot] = malloc(size[slot])) != NULL);
            memset(block[slot], mark, size[slot]);
        }
    }
    for (int i = 0; i < SLOTS; i++) free(block[i]);
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    void *kept[200];
    for (int i = 0; i < 200; i++) kept[i] = malloc(10 + 37 * i);
    for (int i = 0; i < 200; i += 2) free(kept[i]);
    int raw = !strcmp(argv[1], "clone");
    for (int i = atoi(argv[2]); i > 0; i--) {
        pid_t child = raw ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : _Fork();
        if (child == 0) {
            end_if_hung(100);
            pthread_t thread[THREADS];
            for (uintptr_t t = 0; t < THREADS; t++) CHECK(pthread_create(&thread[t], NULL, works, (void *)(t + 1)) == 0);
            works((void *)9);
            for (int t = 0; t < THREADS; t++) CHECK(pthread_join(thread[t], NULL) == 0);
            _exit(0);
        }
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child);
        CHECK(status == 0);
    }
    return 0;
}
