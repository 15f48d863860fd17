/* A block of 4 MiB freed twice. */
#include "../support/misuse.h"

int main(void) {
    void *block = announce(malloc(4 << 20));
    free(block);
    free(block);
    return survived();
}
