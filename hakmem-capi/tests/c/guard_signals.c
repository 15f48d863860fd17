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

static char *volatile freed;
static volatile int turn;
static int inside;

// Takes a while, and must not be disturbed: a second thread waits.
static void dump(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info, (void)context;
    if (__atomic_fetch_add(&inside, 1, __ATOMIC_SEQ_CST)) {
        sleep(10);
    }
    usleep(600000);
    write(1, "dumped\n", 7);
    _exit(42);
}

static void *touch(void *number) {
    while (turn < (int)(size_t)number) {
    }
    freed[50]++;
    return NULL;
}

// Two threads touch a freed block. The second does so while the first reports it, which takes until somebody
// reads standard error.
static void crowd(void) {
    int ends[2], ours = dup(2);
    pthread_t threads[2];
    handle(dump, 0);
    for (size_t i = 0; i < 2; i++) {
        pthread_create(&threads[i], NULL, touch, (void *)(i + 1));
    }
    freed = malloc(100);
    free(freed);
    pipe2(ends, O_NONBLOCK);
    while (write(ends[1], "\n", 1) == 1) {
    }
    fcntl(ends[0], F_SETFL, 0);
    fcntl(ends[1], F_SETFL, 0);
    dup2(ends[1], 2);
    for (int i = 0; i < 2; i++) {
        turn++;
        usleep(100000);
    }
    char text[4096];
    for (;;) {
        write(ours, text, read(ends[0], text, sizeof text));
    }
}

// Calls the handler that was there before: ours.
static void pass_on(int signal, siginfo_t *info, void *context) {
    write(1, "passed on\n", 10);
    before.sa_sigaction(signal, info, context);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    int is(const char *name) { return !strcmp(what, name); }
    if (is("ordinary")) {
        repairs(0, 12288);
    } else if (is("alternate")) {
        repairs(SA_ONSTACK, 65536);
    }
    if (is("crowd")) {
        crowd();
    }
    if (is("vfork")) {
        pid_t child = vfork();
        if (child == 0) {
            freed = malloc(100);
            free(freed);
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
    freed = malloc(100);
    free(freed);
    if (is("vfork-faults")) {
        pid_t child = vfork();
        if (child == 0) {
            freed[50]++;
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
    if (is("passed-on")) {
        handle(pass_on, 0);
    }
    if (is("vfork") || is("vfork-faults") || is("passed-on")) {
        freed[50]++;
    }
    puts("survived");
    return 0;
}
