/* A thread without a heap, for which there is no memory, frees blocks of another thread: nothing is lost. And misuse is
 * reported as ever. */
#include <hakmem.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define CHECK(cond)                                                                                                    \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #cond);                                         \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { COUNT = 6000 };

static char *blocks[COUNT];
static int goes[2], done[2];
static const char *mode;

static void *frees(void *unused) {
    char byte;
    int i;
    (void)unused;
    CHECK(read(goes[0], &byte, 1) == 1);
    for (i = 0; i < COUNT; i++) free(blocks[i]);
    if (strcmp(mode, "twice") == 0) free(blocks[COUNT / 2]);
    if (strcmp(mode, "interior") == 0) free(blocks[0] + 8);
    CHECK(write(done[1], "", 1) == 1);
    CHECK(read(goes[0], &byte, 1) == 1);
    return NULL;
}

static size_t in_use(void) {
    struct hak_stats_t stats;
    CHECK(hak_stats(&stats, sizeof stats) == 0);
    return stats.allocated_bytes;
}

static unsigned long threads(void) {
    struct hak_stats_t stats;
    CHECK(hak_stats(&stats, sizeof stats) == 0);
    return stats.threads_started;
}

int main(int argc, char **argv) {
    struct rlimit limit, none = {1 << 20, RLIM_INFINITY};
    pthread_t thread;
    size_t before;
    unsigned long started;
    char byte;
    int i;
    mode = argc > 1 ? argv[1] : "";
    CHECK(pipe(goes) == 0 && pipe(done) == 0);
    before = in_use();
    /* Of several classes, some without room for a mark. */
    for (i = 0; i < COUNT; i++) {
        blocks[i] = malloc(8 + i % 7 * 90);
        CHECK(blocks[i] != NULL);
        memset(blocks[i], 1, 8);
    }
    CHECK(pthread_create(&thread, NULL, frees, NULL) == 0);
    started = threads();
    CHECK(getrlimit(RLIMIT_AS, &limit) == 0 && setrlimit(RLIMIT_AS, &none) == 0);
    CHECK(write(goes[1], "", 1) == 1);
    CHECK(read(done[0], &byte, 1) == 1);
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    /* It has had none: otherwise this tests something else. */
    CHECK(threads() == started);
    /* What pthread_create and stdio have taken, and what is in magazines. */
    if (in_use() > before + 16384) {
        fprintf(stderr, "%zu bytes in use, %zu before\n", in_use(), before);
        return 1;
    }
    CHECK(write(goes[1], "", 1) == 1 && pthread_join(thread, NULL) == 0);
    for (i = 0; i < COUNT; i++) CHECK((blocks[i] = malloc(8 + i % 7 * 90)) != NULL);
    for (i = 0; i < COUNT; i++) free(blocks[i]);
    puts("nothing lost");
    return 0;
}
