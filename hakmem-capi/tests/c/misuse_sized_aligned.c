/* free_aligned_sized with a size that the block cannot have. */
#include "../support/misuse.h"

int main(void) {
    FIND(free_aligned_sized, size_t, size_t);
    free_aligned_sized(announce(aligned_alloc(64, 64)), 64, 8192);
    return survived();
}
