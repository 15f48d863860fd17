// Programs with handlers of SIGSEGV of their own, beside that of the guard pages.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static char *page;
static struct sigaction before;

__attribute__((noipa)) static int deep(int n) {
    volatile char room[1024];
    memset((char *)room, n, sizeof room);
    return n ? deep(n - 1) + room[5] : room[7];
}

static void handle(void (*f)(int, siginfo_t *, void *), int flags) {
    struct sigaction action = {.sa_sigaction = f, .sa_flags = SA_SIGINFO | flags};
    sigaction(SIGSEGV, &action, &before);
}

// Makes the page accessible, with more stack than the alternate one has.
static void repair(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info, (void)context;
    deep(20);
    stack_t stack;
    sigaltstack(NULL, &stack);
    write(1, stack.ss_flags & SS_ONSTACK ? "alternate\n" : "ordinary\n", 9 + !!(stack.ss_flags & SS_ONSTACK));
    mprotect(page, 4096, PROT_READ | PROT_WRITE);
}

static void repairs(int flags, size_t room) {
    page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *lowest = mmap(NULL, 16384 + room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    stack_t stack = {.ss_sp = lowest + 16384, .ss_size = room};
    mprotect(stack.ss_sp, room, PROT_READ | PROT_WRITE);
    sigaltstack(&stack, NULL);
    handle(repair, flags);
    free(malloc(100));
    page[0] = 1;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    int is(const char *name) { return !strcmp(what, name); }
    if (is("ordinary")) {
        repairs(0, 12288);
    } else if (is("alternate")) {
        repairs(SA_ONSTACK, 65536);
    }
    puts("survived");
    return 0;
}
