/* A clock of its own for the program, as libfaketime has: it stands still, and sets itself up by calls that
 * allocate. An allocation that asks for the time meanwhile comes back to it. Preloaded beside the library. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int is_inside, is_ready;

static void fail(void) {
    static const char text[] = "an allocation asked a clock that allocates\n";
    if (write(2, text, sizeof text - 1) < 0) _exit(4);
    _exit(3);
}

__attribute__((constructor)) static void start(void) {
    is_inside = 1;
    for (int i = 0; i < 300; i++) {
        void *block = malloc((size_t)i << 14 | 16), *small = malloc(i + 1);
        if (!block || !small) _exit(5);
        free(small);
        free(block);
    }
    is_inside = 0;
    is_ready = 1;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    (void)clock;
    if (is_inside || !is_ready) fail();
    time->tv_sec = 1577836800;
    time->tv_nsec = 0;
    return 0;
}
