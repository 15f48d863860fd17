/* malloc_usable_size of static memory. */
#include "../support/misuse.h"

int main(void) {
    static long array[16];
    CHECK(malloc_usable_size(announce(array)) < 1 << 20);
    return survived();
}
