/* free_sized of a pointer to the stack. */
#include "../support/misuse.h"

int main(void) {
    long array[16] = {0};
    FIND(free_sized, size_t);
    free_sized(announce(array), sizeof array);
    return survived();
}
