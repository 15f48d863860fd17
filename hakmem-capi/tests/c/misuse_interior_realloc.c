/* realloc of the middle of a block of 200 KiB. */
#include "../support/misuse.h"

int main(void) {
    char *block = malloc(200 * 1024);
    CHECK(block != NULL);
    CHECK(realloc(announce(block + 65536), 300 * 1024) != NULL);
    return survived();
}
