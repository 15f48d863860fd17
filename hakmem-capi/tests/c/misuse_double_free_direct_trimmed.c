/* A block of 4 MiB freed again after its memory went back to the system. */
#include "../support/misuse.h"

int main(void) {
    void *block = announce(malloc(4 << 20));
    free(block);
    malloc_trim(0);
    free(block);
    return survived();
}
