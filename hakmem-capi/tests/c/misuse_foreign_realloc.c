/* realloc of a pointer to the stack. */
#include "../support/misuse.h"

int main(void) {
    long array[16] = {0};
    void *moved = realloc(announce(&array[2]), 100);
    CHECK(moved != NULL);
    return survived();
}
