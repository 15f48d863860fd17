/* A plugin in a namespace of its own has the keys for thread-local data that the main program has, and the same
 * places behind them: loader_keys PLUGIN; -DPLUGIN is the plugin. */
#ifdef PLUGIN
#include <pthread.h>

static pthread_key_t keys[32];
static char data[64] = "the plugin's own";

void make_keys(void) {
    for (int i = 0; i < 32; i++) pthread_key_create(&keys[i], 0);
}

/* No more: the values of others lie in memory that the C library of the plugin allocates, and that of the
 * program frees. Whether the first keys have nobody else's data; sets all of them. */
int use_keys(void) {
    int mine = 1;
    for (int i = 0; i < 16; i++) mine &= !pthread_getspecific(keys[i]);
    for (int i = 0; i < 32; i++) pthread_setspecific(keys[i], data);
    return mine;
}
#else
#include "../support/test.h"
#include <pthread.h>

static int (*use_keys)(void);

static void *body(void *arg) {
    void *block = malloc(100);
    CHECK(block && use_keys());
    free(block);
    CHECK((block = malloc(5000)));
    free(block);
    return arg;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    void *plugin = dlmopen(LM_ID_NEWLM, argv[1], RTLD_NOW);
    CHECK(plugin);
    void (*make_keys)(void);
    *(void **)&make_keys = dlsym(plugin, "make_keys");
    *(void **)&use_keys = dlsym(plugin, "use_keys");
    CHECK(make_keys && use_keys);
    make_keys();
    for (int i = 0; i < 100; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, body, NULL) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
    }
    return 0;
}
#endif
