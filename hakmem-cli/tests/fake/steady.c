/* Keeps a block each millisecond, until it is killed, by one kind of call: steady malloc|calloc|large|same.
 * same: the block is freed again, and is large. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "malloc";
    for (;;) {
        void *block = !strcmp(how, "malloc") ? malloc(64) : !strcmp(how, "calloc") ? calloc(1, 64) : malloc(200000);
        if (!block) return 1;
        if (!strcmp(how, "same")) free(block);
        usleep(1000);
    }
}
