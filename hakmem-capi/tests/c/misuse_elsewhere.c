/* A small block freed by one thread, in whose outbox it waits, and then again by the one that has its slab: SIZE.
 * The second free is not noticed, but the block is handed out once all the same. */
#include "../support/misuse.h"
#include <pthread.h>
#include <semaphore.h>

enum { WAITING = 3, MANY = 3000 };

static sem_t freed, end;
static char *first[WAITING], *all[2 * MANY];

/* It has a heap, since it has allocated: the first few frees of a thread without one go to their slabs at
 * once. */
static void *free_and_stay(void *size) {
    char *own = malloc(*(size_t *)size);
    CHECK(own);
    for (int i = 0; i < WAITING; i++) free(first[i]);
    CHECK(sem_post(&freed) == 0 && sem_wait(&end) == 0);
    free(own);
    return NULL;
}

static void make_many(int from, size_t size) {
    for (int i = from; i < from + MANY; i++) {
        CHECK((all[i] = malloc(size)));
        memset(all[i], i % 251, size);
    }
}

int main(int argc, char **argv) {
    CHECK(argc == 2 && sem_init(&freed, 0, 0) == 0 && sem_init(&end, 0, 0) == 0);
    size_t size = (size_t)atol(argv[1]);
    pthread_t thread;
    for (int i = 0; i < WAITING; i++) CHECK((first[i] = malloc(size)));
    CHECK(pthread_create(&thread, NULL, free_and_stay, &size) == 0 && sem_wait(&freed) == 0);
    free(first[1]);
    make_many(0, size);
    CHECK(sem_post(&end) == 0 && pthread_join(thread, NULL) == 0);
    make_many(MANY, size);
    for (int i = 0; i < 2 * MANY; i++)
        for (size_t at = 0; at < size; at++) CHECK(all[i][at] == (char)(i % 251));
    for (int i = 0; i < 2 * MANY; i++) free(all[i]);
    return 0;
}
