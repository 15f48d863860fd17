/* Makes as many allocations as its argument says. */
#include <stdlib.h>

int main(int argc, char **argv) {
    for (int left = argc > 1 ? atoi(argv[1]) : 0; left > 0; left--) {
        void *volatile block = malloc(40);
        free(block);
    }
    return 0;
}
