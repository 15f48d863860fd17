// Misuse of blocks that lie between guard pages, and what else may happen beside these.
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((weak)) void free_sized(void *block, size_t size);

static volatile char sink;
static size_t size = 64;

// Functions that must be in the stacks.
__attribute__((noipa)) static char *maker(void) {
    char *block = malloc(size);
    printf("%p\n", (void *)block);
    fflush(stdout);
    return block;
}

__attribute__((noipa)) static void dropper(char *block) {
    free(block);
    __asm__ volatile("" ::: "memory");
}

// The same, of a large block, which nothing says more about.
__attribute__((noipa)) static char *large_maker(void) {
    char *block = malloc(1000000);
    __asm__ volatile("" ::: "memory");
    return block;
}

__attribute__((noipa)) static void large_dropper(char *block) {
    free(block);
    __asm__ volatile("" ::: "memory");
}

// A small block where a large one was, after that was freed.
static char *make_in_large(void) {
    static char *large[400];
    enum { COUNT = sizeof large / sizeof *large };
    for (int i = 0; i < COUNT; i++) {
        large[i] = large_maker();
    }
    for (int i = 0; i < COUNT; i++) {
        large_dropper(large[i]);
    }
    for (int tries = 0; tries < 100000; tries++) {
        char *block = maker();
        for (int i = 0; i < COUNT; i++) {
            // What lies at its very beginning is told apart in any case.
            if ((uintptr_t)block - (uintptr_t)large[i] - 1 < 1000000 - 1) {
                return block;
            }
        }
    }
    puts("survived: no small block where a large one was");
    exit(0);
}

static void *make(void *unused) {
    (void)unused;
    return maker();
}

static void *drop(void *block) {
    dropper(block);
    return NULL;
}

static void *in_thread(void *(*f)(void *), void *argument) {
    pthread_t thread;
    void *result;
    if (pthread_create(&thread, NULL, f, argument) || pthread_join(thread, &result)) {
        abort();
    }
    return result;
}

// A program that does everything right: four threads hand blocks to each other.
enum { THREADS = 4, PLACES = 64 };
static char *_Atomic places[PLACES];

static void check(const char *block) {
    size_t n;
    memcpy(&n, block, sizeof n);
    for (size_t i = sizeof n; i < n; i++) {
        if (block[i] != (char)(n + i)) {
            abort();
        }
    }
}

static void fill(char *block, size_t n) {
    memcpy(block, &n, sizeof n);
    for (size_t i = sizeof n; i < n; i++) {
        block[i] = (char)(n + i);
    }
}

static void *innocent(void *seed) {
    uint64_t x = (uintptr_t)seed * 2654435761u + 1;
    for (int round = 0; round < 4000; round++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        size_t n = sizeof n + (x >> 33) % (round % 50 ? 500 : 40000);
        char *block;
        switch ((x >> 20) % 4) {
        case 0:
            block = malloc(n);
            break;
        case 1:
            block = calloc(1, n);
            for (size_t i = 0; i < n; i++) {
                if (block[i]) {
                    abort();
                }
            }
            break;
        case 2:
            block = aligned_alloc((size_t)16 << (x >> 50) % 9, n);
            break;
        default:
            block = malloc(n / 2 + sizeof n);
            fill(block, n / 2 + sizeof n);
            block = realloc(block, n);
            if (!block) {
                abort();
            }
            size_t old;
            memcpy(&old, block, sizeof old);
            if (old <= n) {
                check(block);
            }
        }
        if (!block || malloc_usable_size(block) < n) {
            abort();
        }
        fill(block, n);
        block = __atomic_exchange_n((char **)&places[x % PLACES], block, __ATOMIC_ACQ_REL);
        if (block) {
            check(block);
            free(block);
        }
    }
    return NULL;
}

static void all_innocent(void) {
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) {
        if (pthread_create(&threads[i], NULL, innocent, (void *)(i + 1))) {
            abort();
        }
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    pid_t child = fork();
    if (child == 0) {
        innocent((void *)99);
        _exit(7);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status != 7 << 8) {
        abort();
    }
    for (int i = 0; i < PLACES; i++) {
        if (places[i]) {
            check(places[i]);
        }
        free(places[i]);
    }
}

static sigjmp_buf back;
static volatile int recovers;

static void handler(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info, (void)context;
    if (recovers) {
        recovers = 0;
        siglongjmp(back, 1);
    }
    _exit(42);
}

static void handle(void) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
}

// A fault in the program's own memory, from which it recovers.
static void own_fault(void) {
    char *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    recovers = 1;
    if (sigsetjmp(back, 1) == 0) {
        sink = *page;
    }
    puts("recovered");
    fflush(stdout);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    size = argc > 2 ? strtoul(argv[2], NULL, 0) : size;
    int is(const char *name) { return !strcmp(what, name); }
    if (is("innocent")) {
        all_innocent();
        return 0;
    }
    if (is("handled")) {
        handle();
    }
    if (is("alternate")) {
        stack_t stack = {.ss_sp = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)};
        // The least that the system asks for, and what a handler may count on besides.
        stack.ss_size = (size_t)sysconf(_SC_MINSIGSTKSZ) + 4096;
        sigaltstack(&stack, NULL);
    }
    char *block = is("threads") ? in_thread(make, NULL) : is("in-large") ? make_in_large() : maker();
    if (is("over")) {
        memset(block, 1, size + 70000);
    } else if (is("over-one") || is("in-large")) {
        // What stands there is odd.
        block[size] = 2;
        dropper(block);
    } else if (is("under")) {
        for (size_t i = 1; i < 70000; i++) {
            sink = block[-(ptrdiff_t)i];
        }
    } else if (is("under-one")) {
        block[-1] = 2;
        dropper(block);
    } else if (is("stale-read") || is("alternate")) {
        dropper(block);
        sink = block[size / 2];
    } else if (is("stale-write")) {
        dropper(block);
        block[0] = 1;
    } else if (is("stale-realloc")) {
        dropper(block);
        block = realloc(block, 10 * size);
    } else if (is("stale-size")) {
        dropper(block);
        size = malloc_usable_size(block);
    } else if (is("twice")) {
        dropper(block);
        free(block);
    } else if (is("inside")) {
        free(block + 16);
    } else if (is("sized")) {
        free_sized(block, size / 2);
    } else if (is("threads")) {
        in_thread(drop, block);
        block[1] = 1;
    } else if (is("child")) {
        pid_t child = fork();
        if (child == 0) {
            dropper(block);
            sink = *block;
        }
        int status;
        waitpid(child, &status, 0);
        // The parent still has it.
        block[0] = 1;
        dropper(block);
        signal(SIGSEGV, SIG_DFL);
        raise(WTERMSIG(status));
    } else if (is("handled")) {
        own_fault();
        dropper(block);
        sink = *block;
    } else if (is("replaced")) {
        handle();
        dropper(block);
        sink = *block;
    } else if (is("null")) {
        sink = *(volatile char *)NULL;
    } else if (is("sent")) {
        kill(getpid(), SIGSEGV);
        pause();
    } else if (is("late")) {
        // Reused as late as possible: so many allocations later the page is still closed.
        dropper(block);
        for (int i = 0; i < 5; i++) {
            free(malloc(size));
        }
        sink = *block;
    }
    puts("survived");
    return 0;
}
