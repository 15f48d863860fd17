/* The middle of a block of 8 KiB. */
#include "../support/misuse.h"

int main(void) {
    char *block = malloc(8192);
    CHECK(block != NULL);
    free(announce(block + 4096));
    malloc_trim(0);
    return survived();
}
