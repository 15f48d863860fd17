/* Several foreign pointers: under HAKMEM_FOREIGN=warn each is named, left alone, and the program goes on. */
#include "../support/misuse.h"

int main(void) {
    static char buffer[64] = "untouched";
    free(announce(buffer + 16));
    free(announce((void *)8));
    void *block = malloc(100);
    CHECK(block != NULL && !strcmp(buffer, "untouched"));
    free(block);
    return survived();
}
