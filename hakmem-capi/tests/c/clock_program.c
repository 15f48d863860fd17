/* Sees a clock that another library has put in the place of the C library's, and allocates under it. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

int main(void) {
    for (int i = 0; i < 2000; i++) {
        char *block = malloc((size_t)(i % 97) << 12 | 24);
        if (!block) return 1;
        memset(block, 1, 24);
        free(block);
    }
    struct timespec now;
    return clock_gettime(CLOCK_MONOTONIC, &now) || now.tv_sec != 1577836800;
}
