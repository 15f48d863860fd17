/* A static program that loads a library. */
#include "../support/test.h"
#include <dlfcn.h>

int main(void) {
    void *handle = dlopen("libm.so.6", RTLD_NOW | RTLD_DEEPBIND);
    CHECK(handle);
    double (*root)(double);
    *(void **)&root = dlsym(handle, "sqrt");
    CHECK(root && root(49) == 7);
    return 0;
}
