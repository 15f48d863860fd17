/* Prints the return addresses of a call stack that has an inlined function in it, and what is mapped. */
#include <execinfo.h>
#include <stdio.h>
#include <stdlib.h>

static void *frames[64];

static inline __attribute__((always_inline)) int grow(int x)
{
    return backtrace(frames, 64) + x;
}

__attribute__((noinline)) static int read_node(int x)
{
    int n = grow(x);
    return n * 2;
}

__attribute__((noinline)) static int read_tree(int x)
{
    return read_node(x) + 1;
}

int main(int argc, char **argv)
{
    int n = (read_tree(argc - 1) - 1) / 2;
    (void)argv;
    for (int i = 0; i < n; i++)
        printf("%p\n", frames[i]);
    FILE *maps = fopen("/proc/self/maps", "r");
    int c;
    while ((c = getc(maps)) != EOF)
        putchar(c);
    return 0;
}
