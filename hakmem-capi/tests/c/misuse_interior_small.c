/* The middle of a small block. */
#include "../support/misuse.h"

int main(void) {
    char *block = malloc(64);
    CHECK(block != NULL);
    free(announce(block + 16));
    malloc_trim(0);
    return survived();
}
