/* A string that the kernel put on the stack of the process. */
#include "../support/misuse.h"

int main(int argc, char **argv) {
    CHECK(argc > 0);
    free(announce(argv[0]));
    return survived();
}
