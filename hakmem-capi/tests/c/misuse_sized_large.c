/* free_sized of a block of 300 KiB as one of 4 MiB. */
#include "../support/misuse.h"

int main(void) {
    FIND(free_sized, size_t);
    free_sized(announce(malloc(300 * 1024)), 4 << 20);
    return survived();
}
