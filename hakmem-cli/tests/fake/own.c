/* A program with an allocator of its own, which comes before any that is preloaded. */
#include <stddef.h>

static char memory[1 << 20];
static size_t used;

void *malloc(size_t size) {
    void *block = memory + used;
    used += (size + 15) / 16 * 16;
    return used <= sizeof memory ? block : NULL;
}

void free(void *block) { (void)block; }

int main(void) { return malloc(10) == NULL; }
