/* free before any malloc, allocation before and after main, and errno, which free leaves alone. */
#include "api_check.h"

static void *from_preinit, *from_constructor;
static int stages;

/* Runs before the constructors of every library; under musl not at all. */
static void preinit(void) {
    free(NULL);
    CHECK(malloc_usable_size(NULL) == 0);
    from_preinit = malloc(100);
    CHECK(from_preinit != NULL);
    fill(from_preinit, 100, 1);
    stages++;
}
__attribute__((section(".preinit_array"), used)) static void (*const preinit_entry)(void) = preinit;

__attribute__((constructor(101))) static void early(void) {
    free(NULL);
    from_constructor = malloc(300000);
    CHECK(from_constructor != NULL);
    fill(from_constructor, 300000, 2);
    free(malloc(16));
    stages++;
}

/* Runs after the exit handlers and nearly all destructors: malloc and free still work. */
__attribute__((destructor(101))) static void late(void) {
    void *p = malloc(5000);
    CHECK(p != NULL);
    fill(p, 5000, 3);
    CHECK(same(p, 5000, 3));
    free(p);
    CHECK(same(from_constructor, 300000, 2));
    free(from_constructor);
    free(NULL);
}

static void at_exit(void) {
    CHECK(from_preinit == NULL || same(from_preinit, 100, 1));
    free(from_preinit);
}

/* free keeps errno, whatever it has to do to give the memory back. */
static void keeps_errno(void) {
    for (size_t n = 1; n < 200 * MIB; n = n * 3 + 5) {
        enum { COUNT = 40 };
        void *p[COUNT];
        size_t count = n > MIB ? 2 : COUNT;
        for (size_t i = 0; i < count; i++) {
            p[i] = malloc(n);
            CHECKN(p[i] != NULL, n);
            fill(p[i], n > MIB ? MIB : n, n);
        }
        errno = 4242;
        for (size_t i = 0; i < count; i++) free(p[i]);
        free(NULL);
        CHECKN(errno == 4242, n);
    }
}

int main(void) {
#ifdef __GLIBC__
    CHECK(stages == 2);
#else
    CHECK(stages >= 1);
#endif
    CHECK(atexit(at_exit) == 0);
    keeps_errno();
    puts("first ok");
    return 0;
}
