/* cxx_plugin_host PLUGIN: see cxx_plugin.cpp. */
#include "../support/test.h"

int main(int argc, char **argv) {
    CHECK(argc == 2);
    void *plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    CHECK(plugin != NULL);
    int (*try_alloc)(void) = (int (*)(void))(uintptr_t)dlsym(plugin, "try_alloc");
    CHECK(try_alloc != NULL);
    CHECK(try_alloc() == 0);
    return 0;
}
