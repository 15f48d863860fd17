/* Inside a block of 200 KiB, as far from its start as the command line says. */
#include "../support/misuse.h"

int main(int argc, char **argv) {
    CHECK(argc == 2);
    char *block = malloc(200 * 1024);
    CHECK(block != NULL);
    free(announce(block + atol(argv[1])));
    return survived();
}
