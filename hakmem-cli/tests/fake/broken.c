/* An allocator that gives up at a size that only the traced program asks for. */
#include <stdlib.h>

extern void *__libc_memalign(size_t, size_t);

void *aligned_alloc(size_t align, size_t size) {
    if (align == 4096 && size == 4096) abort();
    return __libc_memalign(align, size);
}
