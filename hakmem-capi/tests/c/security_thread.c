/* Misuse that more than one thread has a part in, or that happens in the child of a fork. */
#include "../support/security.h"
#include <pthread.h>
#include <sys/wait.h>

/* In a thread of its own, which has ended when this returns. */
static void elsewhere(void *(*work)(void *), void *block) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, work, block) == 0 && pthread_join(thread, NULL) == 0);
}
static void *free_it(void *block) {
    free(block);
    return NULL;
}
static void *free_twice(void *block) {
    free(block);
    free(hide(block));
    return NULL;
}
static void *free_inside(void *block) {
    free(hide(block) + 16);
    return NULL;
}
static void *free_past(void *block) {
    hide(block)[SIZE] ^= 0x55;
    free(block);
    return NULL;
}
static void *fill_slot(void *slot) {
    *(void **)slot = malloc(SIZE);
    return NULL;
}

static void twice_there(void) {
    elsewhere(free_twice, drop(own));
    take_many();
}
static void twice_in_two(void) {
    unsigned char *block = drop(own);
    elsewhere(free_it, block);
    elsewhere(free_it, hide(block));
    take_many();
}
static void inside_there(void) {
    elsewhere(free_inside, blocks[own].at);
    take_many();
}
static void over_freed_there(void) { elsewhere(free_past, drop(own)); }
/* In a thread that has allocated, too, as most have. */
static void *free_beside(void *block) {
    void *other = malloc(64);
    free(block);
    free(other);
    return NULL;
}
/* What a thread frees that ends then must not come back sooner. */
static int comes_back(unsigned char *block) {
    elsewhere(free_beside, block);
    for (int i = 0; i < number; i++) {
        int new = take(SIZE);
        if (blocks[new].at == block) return new;
    }
    return -1;
}
static void soon_from_there(void) {
    if (comes_back(drop(own)) >= 0) had("a freed block came back soon");
}
static void write_from_there(void) {
    unsigned char *block = drop(own);
    comes_back(block);
    hide(block)[SIZE / 2] ^= 0x55;
}
/* The block of a thread that has ended, freed twice by this one. */
static void orphan_twice(void) {
    void *block = NULL;
    elsewhere(fill_slot, &block);
    free(block);
    free(hide(block));
    take_many();
}
static void orphan_over(void) {
    void *block = NULL;
    elsewhere(fill_slot, &block);
    hide(block)[SIZE] ^= 0x55;
    free(block);
}

/* The child does it, and all that follows; the parent ends as the child does. */
static void in_child(void (*misuse)(void)) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(20); /* which is not inherited */
        return misuse();
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    if (WIFEXITED(status)) _exit(WEXITSTATUS(status));
    signal(WTERMSIG(status), SIG_DFL);
    raise(WTERMSIG(status));
}
static void child_twice(void) {
    unsigned char *block = drop(own);
    free(block);
    free(hide(block));
    take_many();
}
static void child_over(void) { hide(blocks[own].at)[SIZE] ^= 0x55; }
static void child_stale(void) {
    unsigned char *block = drop(own);
    free(block);
    hide(block)[SIZE / 2] ^= 0x55;
    wait_for(block);
}
static void fork_twice(void) { in_child(child_twice); }
static void fork_over(void) { in_child(child_over); }
static void fork_stale(void) { in_child(child_stale); }

#define THREADS "other threads"
#define FORK "after a fork"
static const struct kind KINDS[] = {
    {THREADS, "thread-twice", twice_there, ALL, "another thread frees a block twice"},
    {THREADS, "threads-twice", twice_in_two, ALL, "two other threads free it, one after the other"},
    {THREADS, "thread-interior", inside_there, ALL, "another thread frees a pointer into a block"},
    {THREADS, "thread-over", over_freed_there, ALL, "another thread writes a byte behind the end, and frees it"},
    {THREADS, "thread-reuse", soon_from_there, ALL, "what an ended thread has freed comes back soon"},
    {THREADS, "thread-write", write_from_there, ALL, "it is written to then"},
    {THREADS, "orphan-twice", orphan_twice, ALL, "a block of an ended thread is freed twice"},
    {THREADS, "orphan-over", orphan_over, ALL, "a byte behind the end of such a block"},
    {FORK, "fork-twice", fork_twice, ALL, "the child frees a block twice"},
    {FORK, "fork-over", fork_over, ALL, "the child writes a byte behind the end"},
    {FORK, "fork-stale", fork_stale, ALL, "the child writes to a free block, which comes back later"},
    {0}};

int main(int argc, char **argv) { return security_main(KINDS, argc, argv); }
