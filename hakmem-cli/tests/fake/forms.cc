// A function for each form of allocation: 10 blocks of about 100,000 bytes (large ones) or of 100 bytes, of
// which it frees 4 and keeps 6.
#include <cstdlib>
#include <cstring>
#include <malloc.h>
#include <new>

extern "C" {
void *volatile kept[4096];
static int count;

static void keep_some(void **blocks) {
    for (int i = 4; i < 10; i++) kept[count++] = blocks[i];
}

#define SITE(NAME, ALLOCATE, FREE)                            \
    __attribute__((noinline)) void NAME(size_t size) {        \
        void *blocks[10];                                     \
        for (int i = 0; i < 10; i++) {                        \
            void *block;                                      \
            ALLOCATE;                                         \
            blocks[i] = block;                                \
        }                                                     \
        for (int i = 0; i < 4; i++) {                         \
            void *block = blocks[i];                          \
            FREE;                                             \
        }                                                     \
        keep_some(blocks);                                    \
    }
SITE(by_malloc, block = malloc(size), free(block))
SITE(by_calloc, block = calloc(size / 4, 4), free(block))
SITE(by_aligned_alloc, block = aligned_alloc(64, (size + 63) / 64 * 64), free(block))
SITE(by_posix_memalign, if (posix_memalign(&block, 256, size)) abort(), free(block))
SITE(by_memalign, block = memalign(4096, size), free(block))
SITE(by_reallocarray, block = reallocarray(nullptr, size / 4, 4), free(block))
// The first blocks, of 10 bytes, are gone.
SITE(by_realloc, block = realloc(malloc(10), size), free(block))
// In place, or not.
SITE(by_shrinking, block = realloc(malloc(size * 3), size), free(block))
SITE(by_growing, block = realloc(malloc(size - size / 10), size), free(block))
SITE(by_new, block = operator new(size), operator delete(block))
SITE(by_sized_delete, block = operator new(size), operator delete(block, size))
SITE(by_aligned_new, block = operator new(size, std::align_val_t(128)),
     operator delete(block, size, std::align_val_t(128)))
SITE(by_strdup, static char text[1 << 20]; memset(text, 'x', size - 1); text[size - 1] = 0; block = strdup(text),
     free(block))
}

int main() {
    for (size_t size = 100; size <= 100000; size *= 1000) {
        by_malloc(size), by_calloc(size), by_aligned_alloc(size), by_posix_memalign(size), by_memalign(size);
        by_reallocarray(size), by_realloc(size), by_shrinking(size), by_growing(size), by_new(size);
        by_sized_delete(size), by_aligned_new(size), by_strdup(size);
    }
}
