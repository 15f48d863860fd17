/* Inside a block of 4 MiB, as far from its start as the command line says. */
#include "../support/misuse.h"

int main(int argc, char **argv) {
    CHECK(argc == 2);
    char *block = malloc(4 << 20);
    CHECK(block != NULL);
    free(announce(block + atol(argv[1])));
    return survived();
}
