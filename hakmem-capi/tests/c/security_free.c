/* Frees of what is free already, and of what is no block; realloc and malloc_usable_size of such pointers. */
#include "../support/security.h"
#include <pthread.h>

enum { KIB = 1024 };

/* Double frees. */
static void direct(void) {
    unsigned char *block = drop(own);
    free(block);
    free(hide(block));
}
static void interleaved(void) {
    unsigned char *block = drop(own), *other = drop(own + 1);
    free(block);
    free(other);
    free(hide(block));
}
/* Many other frees of the size between the two. */
static void delayed(void) {
    void *others[2000];
    int many = SIZES[scale].many;
    for (int i = 0; i < many; i++) others[i] = malloc(SIZE);
    unsigned char *block = drop(own);
    free(block);
    for (int i = 0; i < many; i++) free(others[i]);
    free(hide(block));
    take_many();
}
/* Many allocations and frees of all sizes between the two, of which none keeps the block. */
static void after_traffic(void) {
    unsigned char *block = drop(own);
    free(block);
    for (int i = 0; i < 4000; i++) free(hide(malloc(some_size(i))));
    for (int i = 0; i < SIZES[scale].many; i++) free(hide(malloc(SIZE)));
    free(hide(block));
    take_many();
}
/* Allocates until `block` comes back, at most as many as before. */
static void reuse(unsigned char *block) {
    for (int i = 0; i < number; i++) {
        if (blocks[take(SIZE)].at == block) return;
    }
}
static void after_reuse(void) {
    unsigned char *block = drop(own);
    free(block);
    reuse(block);
    free(hide(block));
}
static void after_waiting(void) {
    unsigned char *block = drop(own);
    free(block);
    wait_for(block);
    free(hide(block));
    take_many();
}
static void *free_it(void *block) {
    free(block);
    return NULL;
}
static void other_thread(void) {
    pthread_t thread;
    unsigned char *block = drop(own);
    CHECK(pthread_create(&thread, NULL, free_it, block) == 0 && pthread_join(thread, NULL) == 0);
    free(hide(block));
    take_many();
}

static void by_realloc(void) {
    unsigned char *block = drop(own);
    void *rest = realloc(block, 0);
    if (rest) enter(rest, 0);
    free(hide(block));
    take_many();
}

/* Pointers near a block that is in use, and stays so. */
static unsigned char *near(ptrdiff_t offset) { return hide(blocks[own].at + offset); }
static unsigned char *middle(void) { return near((ptrdiff_t)(SIZE / 2 + 15) / 16 * 16); }
static void unaligned(void) { free(near(1)); }
static void second_word(void) { free(near(8)); }
static void plus_16(void) { free(near(16)); }
static void in_the_middle(void) { free(middle()); }
static void at_the_end(void) { free(near((ptrdiff_t)SIZE)); }
static void before(void) { free(near(-16)); }
/* Where the next but some blocks would lie if all lay in a row. */
static void never_allocated(void) {
    int last = first + number - 1;
    free(hide(blocks[last].at + 20 * (blocks[last].at - blocks[last - 1].at)));
    take_many();
}

/* Foreign pointers. */
static void on_stack(void) {
    _Alignas(16) char array[256] = {1};
    free(watch(array, sizeof array) + 64);
}
/* Before it stands what a free block of glibc has, and behind it what the next one has. */
static size_t *forge(size_t *words) {
    words[1] = 0x51, words[11] = 0x1001;
    return (size_t *)(void *)watch(words, 64 * 8) + 2;
}
static void on_stack_forged(void) {
    _Alignas(16) size_t words[64] = {0};
    free(forge(words));
    for (int i = 0; i < 20; i++) take(64);
}
static _Alignas(16) size_t global[64];
static void a_global(void) { free(watch(global, sizeof global)); }
static void a_global_forged(void) {
    free(forge(global));
    for (int i = 0; i < 20; i++) take(64);
}
static __thread _Alignas(16) size_t of_thread[64];
static void a_thread_local(void) { free(watch(of_thread, sizeof of_thread)); }
static void a_literal(void) { free(hide("a literal that lies among the constants of the program")); }
static void a_function(void) { free(hide((void *)(uintptr_t)&a_literal)); }
static void an_environment(void) { free(hide(getenv("PATH"))); }
static unsigned char *mapping(void) {
    void *mapped = mmap(NULL, 64 * KIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mapped != MAP_FAILED);
    return watch(mapped, 64 * KIB);
}
static void of_mmap(void) { free(mapping()); }
static void inside_mmap(void) { free(mapping() + 4096 + 16); }
static void of_brk(void) {
    unsigned char *more = (unsigned char *)sbrk(64 * KIB);
    CHECK(more != (void *)-1);
    free(watch(more, 64 * KIB) + 16);
}
static void unmapped(void) {
    unsigned char *mapped = mapping();
    blocks[count - 1].live = 0;
    munmap(mapped, 64 * KIB);
    free(mapped);
}
static void low(void) { free(hide((void *)16)); }
static void no_address(void) { free(hide((void *)(uintptr_t)0xdeadbeefdeadbee0)); }

/* realloc. */
static void again(unsigned char *block, size_t size) {
    void *new = realloc(block, size);
    if (new) enter(new, size);
}
static void realloc_freed(void) {
    unsigned char *block = drop(own);
    free(block);
    again(hide(block), SIZE * 2);
}
static void realloc_freed_same(void) {
    unsigned char *block = drop(own);
    free(block);
    again(hide(block), SIZE);
}
static void realloc_interior(void) { again(near(16), SIZE * 2); }
static void realloc_middle(void) { again(middle(), SIZE * 2); }
static void realloc_stack(void) {
    _Alignas(16) char array[256] = {1};
    again(watch(array, sizeof array) + 64, 128);
}
static void realloc_mmap(void) { again(mapping(), 128 * KIB); }
/* The caller keeps the old address though the block has moved, and frees it. */
static void realloc_old(void) {
    unsigned char *old = drop(own);
    again(old, SIZE * 16);
    if (blocks[count - 1].at == old) drop(count - 1);
    free(hide(old));
}

/* malloc_usable_size: an answer that is not 0 is an effect. */
static void asks(unsigned char *block) {
    if (malloc_usable_size(block)) had("malloc_usable_size has answered");
}
static void usable_freed(void) {
    unsigned char *block = drop(own);
    free(block);
    asks(hide(block));
}
static void usable_interior(void) { asks(near(16)); }
static void usable_stack(void) {
    _Alignas(16) char array[256] = {1};
    asks(watch(array, sizeof array) + 64);
}

#define FREED "double free"
static const struct kind KINDS[] = {
    {FREED, "double-direct", direct, ALL, "twice in a row"},
    {FREED, "double-interleaved", interleaved, ALL, "another block's free between"},
    {FREED, "double-delayed", delayed, ALL, "many frees of the size between"},
    {FREED, "double-traffic", after_traffic, ALL, "much traffic of all sizes between"},
    {FREED, "double-reused", after_reuse, ALL, "the block is somebody else's again, if it can be had"},
    {FREED, "double-waited", after_waiting, ALL, "the same, after waiting long for it to come back"},
    {FREED, "double-thread", other_thread, ALL, "the first one by another thread"},
    {FREED, "double-realloc", by_realloc, ALL, "the first one by realloc to 0"},
    {"invalid free", "free-unaligned", unaligned, ALL, "1 byte behind the begin of a block"},
    {"invalid free", "free-8", second_word, ALL, "8 bytes behind the begin"},
    {"invalid free", "free-16", plus_16, ALL, "16 bytes behind the begin"},
    {"invalid free", "free-middle", in_the_middle, ALL, "the middle of a block"},
    {"invalid free", "free-end", at_the_end, ALL, "the end of a block, where the next one may begin"},
    {"invalid free", "free-before", before, ALL, "16 bytes before a block"},
    {"invalid free", "free-never", never_allocated, ALL, "where a later block might lie"},
    {"foreign free", "free-stack", on_stack, ONE, "the stack"},
    {"foreign free", "free-stack-forged", on_stack_forged, ONE, "the stack, with a forged header of glibc"},
    {"foreign free", "free-global", a_global, ONE, "a global variable"},
    {"foreign free", "free-global-forged", a_global_forged, ONE, "a global variable, with a forged header"},
    {"foreign free", "free-thread-local", a_thread_local, ONE, "a thread-local variable"},
    {"foreign free", "free-literal", a_literal, ONE, "a literal"},
    {"foreign free", "free-function", a_function, ONE, "a function"},
    {"foreign free", "free-environment", an_environment, ONE, "a string of the environment"},
    {"foreign free", "free-mmap", of_mmap, ONE, "a mapping of the program's own"},
    {"foreign free", "free-inside-mmap", inside_mmap, ONE, "inside such a mapping"},
    {"foreign free", "free-brk", of_brk, ONE, "memory of brk"},
    {"foreign free", "free-unmapped", unmapped, ONE, "what is not mapped any more"},
    {"foreign free", "free-low", low, ONE, "the address 16"},
    {"foreign free", "free-no-address", no_address, ONE, "an address that no memory can have"},
    {"realloc", "realloc-freed", realloc_freed, ALL, "of a freed block, to twice its size"},
    {"realloc", "realloc-freed-same", realloc_freed_same, ALL, "of a freed block, to its size"},
    {"realloc", "realloc-interior", realloc_interior, ALL, "16 bytes behind the begin of a block"},
    {"realloc", "realloc-middle", realloc_middle, ALL, "of the middle of a block"},
    {"realloc", "realloc-old", realloc_old, SMALL | MEDIUM | LARGE, "the old address is freed after it"},
    {"realloc", "realloc-stack", realloc_stack, ONE, "of the stack"},
    {"realloc", "realloc-mmap", realloc_mmap, ONE, "of a mapping of the program's own"},
    {"malloc_usable_size", "usable-freed", usable_freed, ALL, "of a freed block"},
    {"malloc_usable_size", "usable-interior", usable_interior, ALL, "16 bytes behind the begin of a block"},
    {"malloc_usable_size", "usable-stack", usable_stack, ONE, "of the stack"},
    {0}};

int main(int argc, char **argv) { return security_main(KINDS, argc, argv); }
