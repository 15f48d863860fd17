/* A small block freed twice, one right after the other. */
#include "../support/misuse.h"

int main(void) {
    void *block = announce(malloc(100));
    free(block);
    free(block);
    malloc_trim(0);
    return survived();
}
