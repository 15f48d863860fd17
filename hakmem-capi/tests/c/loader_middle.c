/* A library with a search path of its own that loads a plugin by name. */
#define _GNU_SOURCE
#include <dlfcn.h>

/* Kept in a variable: else the compiler jumps to the function, and the caller's caller is who the loader
 * sees. */
void *middle_open(const char *name, int flags) {
    void *volatile handle = dlopen(name, flags);
    return handle;
}

void *middle_open_in(Lmid_t namespace, const char *name, int flags) {
    void *volatile handle = dlmopen(namespace, name, flags);
    return handle;
}
