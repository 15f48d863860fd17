/* The first allocation of all is a short calloc: it has as many bytes as any other, in hardened mode, too. */
#include "../support/misuse.h"

static char *first;

static void allocate(void) { first = calloc(1, 5); }

__attribute__((section(".preinit_array"), used)) static void (*const before_all)(void) = allocate;

int main(void) {
    FIND(free_sized, size_t);
    char *later = calloc(1, 5);
    CHECK(first && later && malloc_usable_size(first) == malloc_usable_size(later));
    for (int i = 0; i < 5; i++) CHECK(first[i] == 0);
    free_sized(later, 5);
    free_sized(first, 5);
    return 0;
}
