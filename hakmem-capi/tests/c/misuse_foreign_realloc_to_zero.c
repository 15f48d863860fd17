/* realloc to nothing, which is a free, of static memory. */
#include "../support/misuse.h"

int main(void) {
    static long array[16];
    CHECK(realloc(announce(&array[2]), 0) == NULL);
    return survived();
}
