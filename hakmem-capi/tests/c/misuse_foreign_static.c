/* A pointer to static memory. */
#include "../support/misuse.h"

int main(void) {
    static long array[16];
    free(announce(&array[2]));
    return survived();
}
