/* A program that has a malloc of its own, which counts and passes on to glibc's second names: interposer
 * [ours]. */
#include "../support/test.h"
#include "hakmem.h"
#include <pthread.h>

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);

static long calls;

static void count(void) { __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED); }

void *malloc(size_t size) { return count(), __libc_malloc(size); }
void *calloc(size_t n, size_t size) { return count(), __libc_calloc(n, size); }
void *realloc(void *p, size_t size) { return count(), __libc_realloc(p, size); }
void *memalign(size_t align, size_t size) { return count(), __libc_memalign(align, size); }
void free(void *p) { count(), __libc_free(p); }

/* What the C library's does, ours has to: it calls the program's realloc. */
static void resize(void) {
    long before = calls;
    void *block = reallocarray(NULL, 10, 10);
    CHECK(block && calls == before + 1);
    free(block);
}

static void *body(void *arg) {
    for (int i = 0; i < 1000; i++) {
        char *text = strdup("copied by the C library");
        /* Functions that the program has not got itself. */
        void *aligned = NULL;
        CHECK(text && posix_memalign(&aligned, 64, 100) == 0 && malloc_usable_size(aligned) >= 100);
        text = realloc(text, 1000);
        CHECK(text && !strcmp(text, "copied by the C library"));
        free(text);
        free(aligned);
        free(reallocarray(NULL, 10, (size_t)i));
    }
    return arg;
}

int main(int argc, char **argv) {
    (void)argv;
    pthread_t thread;
    resize();
    CHECK(pthread_create(&thread, NULL, body, NULL) == 0);
    body(NULL);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(calls > 8000);
    if (argc > 1) {
        int (*stats)(hak_stats_t *, size_t);
        *(void **)&stats = dlsym(RTLD_DEFAULT, "hak_stats");
        hak_stats_t now;
        CHECK(stats);
        stats(&now, sizeof now);
        CHECK(now.threads_started >= 2);
    }
    return 0;
}
