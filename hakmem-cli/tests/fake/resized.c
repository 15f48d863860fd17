/* Blocks that realloc makes longer and shorter, of sizes that nothing else has. They live at the end. */
#include <stdlib.h>
#include <string.h>

static void *to(void *block, size_t size) {
    block = realloc(block, size);
    if (!block) exit(1);
    return memset(block, 1, size);
}

int main(void) {
    static void *kept[30];
    for (int i = 0; i < 10; i++) {
        kept[i] = to(to(NULL, 131072), 50000);                  /* a run that becomes a small block */
        kept[10 + i] = to(to(NULL, 900), 77824);                /* a small block that becomes a run */
        kept[20 + i] = to(to(to(NULL, 30000), 300000), 20000);  /* there and back */
    }
    return kept[7] == NULL;
}
