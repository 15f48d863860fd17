/* realloc to the same size and to smaller ones succeeds where no other memory is to be had, and the contents
 * stay: of blocks that were asked for at multiples of more than malloc's. */
#include "../support/test.h"

enum { SIZES = 6, ALIGNS = 11 };

static const size_t sizes[SIZES] = {100, 1000, 5000, 30000, 100000, 3000000};

int main(void) {
    static unsigned char *blocks[SIZES][ALIGNS];
    for (int i = 0; i < SIZES; i++)
        for (int a = 0; a < ALIGNS; a++) {
            void *block;
            CHECK(posix_memalign(&block, (size_t)16 << a, sizes[i]) == 0);
            blocks[i][a] = memset(block, i * ALIGNS + a + 1, sizes[i]);
        }
    for (size_t size = 4 << 20; size >= 16; size -= size / 8 + 1)
        while (malloc(size)) {}
    for (int i = 0; i < SIZES; i++)
        for (int a = 0; a < ALIGNS; a++)
            for (int step = 0; step < 3; step++) {
                size_t size = step == 2 ? sizes[i] - sizes[i] / 5 : sizes[i];
                unsigned char *block = realloc(blocks[i][a], size);
                if (!block) {
                    printf("%zu bytes at a multiple of %d to %zu: refused\n", sizes[i], 16 << a, size);
                    return 1;
                }
                for (size_t at = 0; at < size; at++) CHECK(block[at] == i * ALIGNS + a + 1);
                blocks[i][a] = block;
            }
    return 0;
}
