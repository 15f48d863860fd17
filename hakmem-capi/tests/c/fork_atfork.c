/* pthread_atfork handlers of the program that allocate and free, in all three places, under load.
 *
 * With -DEARLY this is a library to preload whose constructor registers its handlers before the allocator can
 * have registered its own: its prepare handler then runs after the allocator's, inside the fork. */
#include "../support/test.h"
#include <pthread.h>
#include <sys/wait.h>

static box *kept[3][8];
static long called[3];

static void allocate(int where) {
    uint64_t state = (uint64_t)called[where]++ * 31 + 1;
    for (int i = 0; i < 8; i++) {
        int from = (where + i) % 3; /* also what another handler made */
        if (kept[from][i]) box_free(kept[from][i]);
        kept[from][i] = box_make(next_random(&state) % 3000, state);
    }
    box *big = box_make(400000, 3);
    big = realloc(big, 800000);
    CHECK(big != NULL);
    box_free(big);
}

static void prepare(void) { allocate(0); }
static void parent(void) { allocate(1); }
static void in_child(void) { allocate(2); }

#ifdef EARLY
__attribute__((constructor(101)))
#endif
static void register_handlers(void) {
    CHECK(pthread_atfork(prepare, parent, in_child) == 0);
}

#ifndef EARLY
static volatile int stop;

static void *hammer(void *arg) {
    uint64_t state = (uintptr_t)arg + 1;
    box *mine[64] = {0};
    while (!stop) {
        unsigned at = next_random(&state) % 64;
        if (mine[at]) box_free(mine[at]);
        mine[at] = box_make(random_size(&state, 0), state);
    }
    for (int i = 0; i < 64; i++)
        if (mine[i]) box_free(mine[i]);
    return NULL;
}

int main(int argc, char **argv) {
    long forks = argc == 2 ? atol(argv[1]) : 200;
    pthread_t hammers[3], thread;
    register_handlers();
    register_handlers();
    for (uintptr_t i = 0; i < 3; i++) CHECK(pthread_create(&hammers[i], NULL, hammer, (void *)i) == 0);
    for (long i = 0; i < forks; i++) {
        int status;
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            end_if_hung(30);
            stop = 1;
            for (int j = 0; j < 3; j++) /* made in the parent by the prepare handler */
                for (int k = 0; k < 8; k++)
                    if (kept[j][k]) box_free(kept[j][k]);
            CHECK(pthread_create(&thread, NULL, hammer, (void *)77) == 0);
            CHECK(pthread_join(thread, NULL) == 0);
            _exit(called[2] == 2 && called[0] == 2 * (i + 1) ? 0 : 7);
        }
        CHECK(waitpid(pid, &status, 0) == pid);
        if (status) dprintf(2, "the child of fork %ld ended with status %#x\n", i, status);
        CHECK(status == 0);
    }
    CHECK(called[1] == 2 * forks);
    stop = 1;
    for (int i = 0; i < 3; i++) CHECK(pthread_join(hammers[i], NULL) == 0);
    puts("ok");
    return 0;
}
#endif
