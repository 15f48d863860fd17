/* A pointer into the program's own mapping, which looks like any other heap. */
#include "../support/misuse.h"
#include <sys/mman.h>

int main(void) {
    char *own = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(own != MAP_FAILED);
    free(announce(own + 64));
    return survived();
}
