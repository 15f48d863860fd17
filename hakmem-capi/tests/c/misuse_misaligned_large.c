/* A block of 300 KiB, off by one byte. */
#include "../support/misuse.h"

int main(void) {
    char *block = malloc(300 * 1024);
    CHECK(block != NULL);
    free(announce(block + 1));
    return survived();
}
