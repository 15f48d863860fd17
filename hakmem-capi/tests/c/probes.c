// Says what it allocates and frees, for a comparison with what the probes say (tests/probes.rs).
#include <hakmem.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static char out[1 << 16];

static void *said(void *p, size_t size) {
    printf("program: alloc %zx %zu\n", (size_t)(uintptr_t)p, size);
    return p;
}

static void drop(void *p) {
    printf("program: free %zx\n", (size_t)(uintptr_t)p);
    free(p);
}

__attribute__((noinline)) void work(void) {
    static const size_t sizes[] = {24, 5000, 300000, 3 << 20};
    void *kept[4];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 4; i++)
            kept[i] = said(malloc(sizes[i]), sizes[i]);
        for (int i = 0; i < 4; i++)
            drop(kept[i]);
    }
    // Moved or not, it is one block that is freed and one that is allocated.
    void *p = said(malloc(1000), 1000);
    uintptr_t old = (uintptr_t)p;
    p = realloc(p, 9000);
    printf("program: free %zx\n", (size_t)old);
    said(p, 9000);
    old = (uintptr_t)p;
    p = realloc(p, 5 << 20);
    printf("program: free %zx\n", (size_t)old);
    said(p, 5 << 20);
    old = (uintptr_t)p;
    p = realloc(p, 9 << 20);
    printf("program: free %zx\n", (size_t)old);
    said(p, 9 << 20);
    // What is refused changes nothing.
    if (realloc(p, (size_t)1 << 48))
        exit(4);
    // Copied: it would leave most of a mapping unused.
    old = (uintptr_t)p;
    p = realloc(p, 2 << 20);
    printf("program: free %zx\n", (size_t)old);
    said(p, 2 << 20);
    // So is a run that has another one behind it.
    void *run = said(malloc(300000), 300000), *behind = said(malloc(300000), 300000);
    old = (uintptr_t)run;
    run = realloc(run, 600000);
    printf("program: free %zx\n", (size_t)old);
    said(run, 600000);
    drop(run);
    drop(behind);
    drop(p);
}

// A profile begins and ends while somebody listens, who is to notice nothing.
__attribute__((noinline)) void profile(const char *file) {
    void *before = said(malloc(5000), 5000);
    if (hak_profile_start(1) != 0)
        exit(2);
    drop(before);
    void *during = said(malloc(2500), 2500);
    hak_profile_stop();
    drop(during);
    drop(said(malloc(5000), 5000));
    if (hak_profile_write(file) != 0)
        exit(3);
    hak_profile_stop();
    drop(said(malloc(5000), 5000));
}

// Where the test attaches, and where it looks away.
__attribute__((noinline)) void attach_here(void) { __asm__ volatile(""); }
__attribute__((noinline)) void detach_here(void) { __asm__ volatile(""); }

int main(int argc, char **argv) {
    setvbuf(stdout, out, _IOFBF, sizeof out);
    attach_here();
    // At these it sees that somebody listens.
    free(malloc(2 << 20));
    printf("program: begin\n");
    work();
    if (argc > 1)
        profile(argv[1]);
    printf("program: end\n");
    detach_here();
    free(malloc(2 << 20));
    printf("program: begin\n");
    work();
    printf("program: end\n");
    return 0;
}
