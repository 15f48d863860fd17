/* A small block freed twice, with a few other frees between. */
#include "../support/misuse.h"

int main(void) {
    void *others[20], *block = announce(malloc(100));
    for (int i = 0; i < 20; i++) others[i] = malloc(100);
    free(block);
    for (int i = 0; i < 20; i++) free(others[i]);
    free(block);
    malloc_trim(0);
    return survived();
}
