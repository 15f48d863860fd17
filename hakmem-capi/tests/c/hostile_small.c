/* A small program for valgrind: every function, two threads, and an answer that can be compared. */
#include "../support/test.h"
#include <pthread.h>

static uint64_t total;

static void *body(void *arg) {
    uint64_t state = (uintptr_t)arg + 1, sum = 0;
    box *kept[50] = {0};
    for (int i = 0; i < 3000; i++) {
        unsigned at = next_random(&state) % 50;
        if (kept[at]) box_free(kept[at]);
        kept[at] = box_make(random_size(&state, 0), state);
        sum += kept[at]->size;
    }
    for (int i = 0; i < 50; i++)
        if (kept[i]) box_free(kept[i]);
    __atomic_add_fetch(&total, sum, __ATOMIC_RELAXED);
    return NULL;
}

int main(void) {
    pthread_t threads[2];
    /* No call fails, so errno stays. */
    errno = 7;
    body(NULL);
    CHECK(errno == 7);
    for (uintptr_t i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, body, (void *)i) == 0);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    char *text = NULL, *zero = calloc(1000, 100);
    size_t size = 0, i;
    for (i = 0; i < 100000; i++) CHECK(zero[i] == 0);
    zero = realloc(zero, 5 << 20);
    CHECK(zero && zero[99999] == 0);
    zero = realloc(zero, 50);
    CHECK(posix_memalign((void **)&text, 4096, 10000) == 0 && (uintptr_t)text % 4096 == 0);
    free(text);
    text = NULL;
    FILE *stream = open_memstream(&text, &size);
    for (i = 0; i < 1000; i++) fprintf(stream, "%zu,", i);
    fclose(stream);
    free(zero);
    malloc_trim(0);
    printf("%lu %zu\n", (unsigned long)total, size);
    free(text);
    return 0;
}
