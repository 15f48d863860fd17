/* What is special about musl: C11's threads and their keys, functions of the C library that return blocks,
 * and one that looks whether malloc has been replaced; a plugin; exec. `musl PLUGIN`, without PLUGIN in a
 * static program. */
#include "api_check.h"
#include <pthread.h>
#include <sys/wait.h>
#include <threads.h>

#ifdef PLUGIN
char *made_by_plugin(void) { return strdup("made by a plugin"); }
void freed_by_plugin(void *block) { free(block); }
#else
enum { THREADS = 4, ROUNDS = 300 };
static tss_t key;
static once_flag once = ONCE_FLAG_INIT;
static int destroyed, children;

static void at_the_end(void *block) {
    CHECK(same(block, 5000, 7));
    free(realloc(block, 70000));
    __atomic_add_fetch(&destroyed, 1, __ATOMIC_RELAXED);
}

static void make_key(void) { CHECK(tss_create(&key, at_the_end) == thrd_success); }

static int in_the_child(void *unused) {
    (void)unused;
    free(malloc(100));
    return 0;
}

/* With the stack that musl gives a thread: 128 KiB. */
static int body(void *number) {
    uint64_t state = (uintptr_t)number * 77777 + 1;
    void *kept[16] = {0};
    call_once(&once, make_key);
    void *block = malloc(5000);
    fill(block, 5000, 7);
    CHECK(tss_set(key, block) == thrd_success);
    for (int i = 0; i < ROUNDS; i++) {
        size_t at = next_random(&state) % 16, size = next_random(&state) % 3000;
        free(kept[at]);
        kept[at] = i % 50 == 0 ? calloc(1, 2 * MIB) : malloc(size);
        CHECK(kept[at] != NULL);
        if (i % 100 == 99) {
            pid_t child = fork();
            CHECK(child >= 0);
            if (child == 0) {
                thrd_t thread;
                for (int j = 0; j < 16; j++) free(kept[j]);
                CHECK(thrd_create(&thread, in_the_child, NULL) == thrd_success);
                CHECK(thrd_join(thread, NULL) == thrd_success);
                void *big = aligned_alloc(64, 3 * MIB);
                CHECK(big != NULL);
                _exit(7);
            }
            int status;
            CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
            __atomic_add_fetch(&children, 1, __ATOMIC_RELAXED);
        }
    }
    for (int i = 0; i < 16; i++) free(kept[i]);
    return 5;
}

/* All of these are the library's blocks: it knows how long they are, and takes them back. */
static void of_the_c_library(void) {
    char *line = NULL, *text = NULL;
    size_t room = 0, length = 0;
    FILE *file = fopen("/proc/self/maps", "r");
    CHECK(file != NULL && getline(&line, &room, file) > 0 && malloc_usable_size(line) >= room);
    CHECK(fclose(file) == 0);
    free(line);
    FILE *memory = open_memstream(&text, &length);
    for (int i = 0; i < 5000; i++) CHECK(fprintf(memory, "%d ", i) > 0);
    CHECK(fclose(memory) == 0 && malloc_usable_size(text) > length);
    free(text);
    char *copy = strdup("a copy"), *printed = NULL, *path = realpath("/proc/self", NULL);
    CHECK(copy != NULL && asprintf(&printed, "%d %s", 5, copy) == 8 && path != NULL);
    free(copy), free(printed), free(path);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "exec") == 0) {
        puts("musl ok");
        return 0;
    }
    /* musl's own refuses to work where malloc is another's. */
    void *p = aligned_alloc(256, 1000);
    CHECK(p != NULL && (uintptr_t)p % 256 == 0 && malloc_usable_size(p) >= 1000);
    free(p);
    of_the_c_library();
    thrd_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) CHECK(thrd_create(&threads[i], body, (void *)i) == thrd_success);
    for (int i = 0; i < THREADS; i++) {
        int result;
        CHECK(thrd_join(threads[i], &result) == thrd_success && result == 5);
    }
    CHECKN(destroyed == THREADS && children == THREADS * (ROUNDS / 100), destroyed);
    if (argc > 1) {
        void *plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        CHECK(plugin != NULL);
        char *(*made)(void) = (char *(*)(void))dlsym(plugin, "made_by_plugin");
        void (*freed)(void *) = (void (*)(void *))dlsym(plugin, "freed_by_plugin");
        CHECK(made != NULL && freed != NULL);
        char *text = made();
        CHECK(strcmp(text, "made by a plugin") == 0 && malloc_usable_size(text) >= 17);
        free(text);
        freed(malloc(100000));
        CHECK(dlopen("/no/such/library.so", RTLD_NOW) == NULL && dlerror() != NULL && dlclose(plugin) == 0);
    }
    execl("/proc/self/exe", argv[0], "exec", (char *)NULL);
    return 1;
}
#endif
