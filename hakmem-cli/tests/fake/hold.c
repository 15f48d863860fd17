/* Keeps 400 blocks of 100,000 bytes, and frees 20,000 of 5,000 bytes. */
#include <stdlib.h>
#include <string.h>

static void *volatile kept[400];

__attribute__((noinline)) static void hold(int i)
{
    void *block = malloc(100000);
    kept[i] = memset(block, 1, 100000);
}

__attribute__((noinline)) static void pass(void)
{
    void *volatile block = malloc(5000);
    free(block);
}

int main(void)
{
    for (int i = 0; i < 400; i++)
        hold(i);
    for (int i = 0; i < 20000; i++)
        pass();
    return 0;
}
