/* Allocates before the C library is initialised, if it is linked with -z initfirst. */
#include <stdlib.h>

__attribute__((constructor)) static void start(void) {
    void *volatile block = malloc(100);
    free(block);
}
