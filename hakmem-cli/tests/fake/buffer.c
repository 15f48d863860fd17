// A buffer that grows by realloc in place, which is all that the program asks for, until somebody ends it.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(void) {
    size_t size = 2 << 20;
    char *buffer = malloc(size);
    while (buffer) {
        memset(buffer + size - 4096, 1, 4096);
        usleep(10000);
        size = size < 512 << 20 ? size + (1 << 20) : 2 << 20;
        buffer = realloc(buffer, size);
    }
    return 1;
}
