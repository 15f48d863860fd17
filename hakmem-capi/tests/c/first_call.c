/* The first allocation of the process is one that the C library makes while it holds a lock of its own. */
#include "../support/test.h"
#include <pthread.h>

enum { MANY = 200 };
static int called;

static void at_exit(void) {
    if (++called == MANY) printf("fine\n"), fflush(stdout);
}

static void in_child(void) {}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    int atfork = !strcmp(argv[1], "atfork");
    for (int i = 0; i < MANY; i++) CHECK((atfork ? pthread_atfork(NULL, NULL, in_child) : atexit(at_exit)) == 0);
    if (atfork) printf("fine\n");
    return 0;
}
