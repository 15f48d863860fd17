/* A block of 8 KiB freed twice. */
#include "../support/misuse.h"

int main(void) {
    void *neighbour = malloc(8192), *block = announce(malloc(8192));
    free(block);
    free(block);
    malloc_trim(0);
    free(neighbour);
    return survived();
}
