/* free_sized with a size that the block cannot have. */
#include "../support/misuse.h"

int main(void) {
    FIND(free_sized, size_t);
    free_sized(announce(malloc(16)), 4096);
    return survived();
}
