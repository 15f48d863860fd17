/* Holds more and more, until its input ends. For each byte of that it forks a child, which goes on likewise. */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct block { struct block *next; char bytes[248]; } *held;

__attribute__((noinline)) static void grow(void) {
    struct block *block = malloc(sizeof *block);
    memset(block->bytes, 1, sizeof block->bytes);
    block->next = held;
    held = block;
}

int main(void) {
    struct pollfd input = {.fd = 0, .events = POLLIN};
    for (;;) {
        char byte;
        if (poll(&input, 1, 1) > 0 && (read(0, &byte, 1) <= 0 || fork() < 0)) return 0;
        for (int i = 0; i < 20; i++)
            grow();
    }
}
