/* malloc_usable_size of the middle of a block of 4 MiB. */
#include "../support/misuse.h"

int main(void) {
    char *block = malloc(4 << 20);
    CHECK(block != NULL);
    CHECK(malloc_usable_size(announce(block + (2 << 20))) < 4 << 20);
    return survived();
}
