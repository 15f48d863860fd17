/* A small block, off by one byte. */
#include "../support/misuse.h"

int main(void) {
    char *block = malloc(48);
    CHECK(block != NULL);
    free(announce(block + 1));
    malloc_trim(0);
    return survived();
}
