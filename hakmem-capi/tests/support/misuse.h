/* What the misuse programs share. Each makes one mistake; a program that lives on prints "survived". */
#ifndef HAKMEM_MISUSE_H
#define HAKMEM_MISUSE_H

#include "test.h"

/* Prints the pointer that the complaint must name, and hides from the compiler where it comes from. */
static inline void *announce(void *pointer) {
    void *volatile hidden = pointer;
    dprintf(1, "%p\n", hidden);
    return hidden;
}

static inline int survived(void) {
    dprintf(1, "survived\n");
    return 0;
}

/* The functions of C23 that glibc 2.36 does not declare. */
#define FIND(name, ...)                                                                                      \
    void (*name)(void *, __VA_ARGS__) = (void (*)(void *, __VA_ARGS__))dlsym(RTLD_DEFAULT, #name);           \
    CHECK(name != NULL)

#endif
