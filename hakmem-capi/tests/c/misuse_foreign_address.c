/* An address, given on the command line, at which there is no block and often no memory. */
#include "../support/misuse.h"

int main(int argc, char **argv) {
    CHECK(argc == 2);
    free(announce((void *)(uintptr_t)strtoull(argv[1], NULL, 16)));
    return survived();
}
