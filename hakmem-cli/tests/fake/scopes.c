/* Scopes in C, and handlers on a stack of their own that allocate. With a rate of 1 KiB every block of SIZE
 * bytes is sampled.
 *
 *   scopes names     names of all kinds
 *   scopes signals   handlers that interrupt a thread anywhere; prints how often */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>

enum { SIZE = 40960, STACK = 16384 };

static unsigned (*begin)(const char *);
static void (*end)(unsigned);
static void *volatile last;

static void keep(int count) {
    while (count--) last = malloc(SIZE);
}

static void *other_thread(void *unused) {
    keep(11);
    begin("thread");
    keep(13);
    return unused;
}

static void names(void) {
    static char big[1000];
    memset(big, 'x', sizeof big - 1);
    unsigned outer = begin("outer");
    keep(1);
    unsigned none = begin(NULL);
    keep(2);
    end(none);
    keep(3);
    unsigned inner = begin("");
    keep(4);
    end(inner);
    inner = begin(big);
    keep(5);
    end(inner);
    inner = begin("\xff\xfe?");
    keep(6);
    end(inner);
    end(outer);
    keep(7);
    /* Of a scope that nobody began. */
    end(123456);
    keep(8);
    end(~0u);
    keep(9);
    end(0);
    end(0);
    keep(10);
    pthread_t thread;
    pthread_create(&thread, NULL, other_thread, NULL);
    pthread_join(thread, NULL);
}

static volatile long handled;
static void *volatile passed[16];

/* Blocks that a handler allocates are freed by another, or by the thread that it interrupts. */
static void handler(int unused) {
    (void)unused;
    unsigned scope = begin("handler");
    long at = handled++ % 16;
    free(__atomic_exchange_n(&passed[at], malloc(SIZE), __ATOMIC_ACQ_REL));
    free(malloc(100 + at * 1000));
    end(scope);
}

static void signals(void) {
    stack_t stack = {.ss_size = STACK};
    /* Nothing is mapped below it. */
    char *place = mmap(NULL, STACK + 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    stack.ss_sp = place + 65536;
    if (mprotect(stack.ss_sp, STACK, PROT_READ | PROT_WRITE) || sigaltstack(&stack, NULL)) abort();
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK | SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 500}, {0, 500}};
    setitimer(ITIMER_REAL, &often, NULL);
    void *kept[64] = {0};
    for (unsigned i = 0; handled < 1500; i++) {
        free(kept[i % 64]);
        kept[i % 64] = malloc(i * 61 % 5000 + 1);
        free(__atomic_exchange_n(&passed[i % 16], NULL, __ATOMIC_ACQ_REL));
    }
    memset(&often, 0, sizeof often);
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; i < 16; i++) free(passed[i]);
    printf("%ld\n", handled);
}

int main(int argc, char **argv) {
    begin = (unsigned (*)(const char *))dlsym(RTLD_DEFAULT, "hak_scope_begin");
    end = (void (*)(unsigned))dlsym(RTLD_DEFAULT, "hak_scope_end");
    if (argc == 2 && !strcmp(argv[1], "names")) names();
    else signals();
    return 0;
}
