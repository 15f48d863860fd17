/* Holds more and more, until its input ends. For each byte of that it forks a child, which goes on likewise.
 * Maps the file that its argument names before, as who looks for symbols does. */
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <string.h>
#include <unistd.h>

static struct block { struct block *next; char bytes[248]; } *held;

__attribute__((noinline)) static void grow(void) {
    struct block *block = malloc(sizeof *block);
    memset(block->bytes, 1, sizeof block->bytes);
    block->next = held;
    held = block;
}

int main(int argc, char **argv) {
    if (argc > 1) {
        int file = open(argv[1], O_RDONLY);
        if (mmap(NULL, (size_t)lseek(file, 0, SEEK_END), PROT_READ, MAP_PRIVATE, file, 0) == MAP_FAILED) return 1;
    }
    struct pollfd input = {.fd = 0, .events = POLLIN};
    for (;;) {
        char byte;
        if (poll(&input, 1, 1) > 0 && (read(0, &byte, 1) <= 0 || fork() < 0)) return 0;
        for (int i = 0; i < 20; i++)
            grow();
    }
}
