/* A pointer to the stack. */
#include "../support/misuse.h"

int main(void) {
    long array[16] = {0};
    free(announce(&array[2]));
    return survived();
}
