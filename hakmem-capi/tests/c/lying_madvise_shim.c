/* A library to preload before the allocator: madvise as under qemu-user before 7.1, which takes all
 * advice for a hint, says yes, and does nothing. */
#include <stddef.h>

int madvise(void *at, size_t size, int advice) {
    (void)at, (void)size, (void)advice;
    return 0;
}
