/* A large block freed twice, with others of other sizes freed meanwhile; the size may be given. */
#include "../support/misuse.h"

int main(int argc, char **argv) {
    size_t size = argc > 1 ? (size_t)atol(argv[1]) : 150000;
    void *other = malloc(70000), *block = announce(malloc(size));
    free(block);
    free(other);
    free(block);
    return survived();
}
