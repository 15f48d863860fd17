/* Plugins, loaded in the ways that give them an allocator of their own, or could: loader_host MODE MIDDLE
 * PLUGIN.
 *
 * one: with RTLD_DEEPBIND there is one allocator, by dlopen and by dlmopen; kept: with
 * HAKMEM_DEEPBIND=keep there are two; search: a library's own search path is used for what it loads, as
 * the loader knows who calls; namespace: a namespace of its own has an allocator of its own, which works;
 * errors: what cannot be loaded. */
#include "../support/test.h"

typedef struct {
    char *(*make)(const char *);
    void (*release)(void *);
    void *(*malloc)(void);
} plugin;

static plugin get(void *handle) {
    if (!handle) {
        dprintf(2, "%s\n", dlerror());
        _exit(1);
    }
    plugin p;
    *(void **)&p.make = dlsym(handle, "plugin_make");
    *(void **)&p.release = dlsym(handle, "plugin_release");
    *(void **)&p.malloc = dlsym(handle, "plugin_malloc");
    CHECK(p.make && p.release && p.malloc);
    return p;
}

/* Blocks go both ways. */
static void cross(plugin p) {
    CHECK(p.malloc() == (void *)malloc);
    for (int i = 0; i < 1000; i++) {
        char *block = p.make("made by the plugin");
        CHECK(block && !strcmp(block, "made by the plugin"));
        free(block);
        p.release(malloc((size_t)i * 7));
    }
}

static void own(plugin p) {
    CHECK(p.malloc() != (void *)malloc);
    for (int i = 0; i < 1000; i++) p.release(p.make("made by the plugin"));
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    const char *mode = argv[1], *path = argv[3], *name = strrchr(path, '/') + 1;
    int deep = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
    void *(*middle_open)(const char *, int), *(*middle_open_in)(Lmid_t, const char *, int);
    void *middle = dlopen(argv[2], RTLD_NOW);
    CHECK(middle);
    *(void **)&middle_open = dlsym(middle, "middle_open");
    *(void **)&middle_open_in = dlsym(middle, "middle_open_in");
    CHECK(middle_open && middle_open_in);
    if (!strcmp(mode, "one")) {
        cross(get(dlopen(path, deep)));
        cross(get(dlmopen(LM_ID_BASE, path, deep)));
    } else if (!strcmp(mode, "kept")) {
        own(get(dlopen(path, deep)));
    } else if (!strcmp(mode, "search")) {
        CHECK(dlopen(name, deep) == NULL && strstr(dlerror(), name));
        cross(get(middle_open(name, deep)));
        cross(get(middle_open(name, RTLD_NOW)));
        cross(get(middle_open_in(LM_ID_BASE, name, deep)));
    } else if (!strcmp(mode, "namespace")) {
        own(get(dlmopen(LM_ID_NEWLM, path, RTLD_NOW)));
        own(get(middle_open_in(LM_ID_NEWLM, name, deep)));
    } else if (!strcmp(mode, "errors")) {
        for (int i = 0; i < 2; i++) {
            CHECK(dlopen("/nowhere/at/all.so", deep) == NULL && strstr(dlerror(), "/nowhere/at/all.so"));
            CHECK(dlmopen(LM_ID_BASE, "/nowhere/at/all.so", deep) == NULL && strstr(dlerror(), "/nowhere"));
            CHECK(dlopen(NULL, RTLD_NOW) != NULL && dlerror() == NULL);
            CHECK(dlopen(path, 0) == NULL && dlerror() != NULL);
        }
    } else return 2;
    return 0;
}
