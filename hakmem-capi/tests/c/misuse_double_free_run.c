/* A block of 200 KiB freed twice. */
#include "../support/misuse.h"

int main(void) {
    void *neighbour = malloc(200 * 1024), *block = announce(malloc(200 * 1024));
    free(block);
    free(block);
    free(neighbour);
    return survived();
}
