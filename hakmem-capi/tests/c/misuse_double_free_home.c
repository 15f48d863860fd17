/* A small block freed again after it must have gone home to its slab. */
#include "../support/misuse.h"

int main(void) {
    static void *others[5000];
    void *block = announce(malloc(100));
    for (int i = 0; i < 5000; i++) others[i] = malloc(100);
    free(block);
    for (int i = 0; i < 5000; i += 2) free(others[i]);
    malloc_trim(0);
    free(block);
    malloc_trim(0);
    return survived();
}
