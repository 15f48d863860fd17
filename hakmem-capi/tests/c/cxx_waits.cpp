/* What the loader must not be asked about late, while a plugin's constructor waits for the thread that asks: a
 * program with a realloc and operators of its own is the host, -DPLUGIN the plugin. cxx_waits PLUGIN */
#include <cstddef>
#include <cstdlib>
#include <new>

extern "C" void use_all();

#ifdef PLUGIN
#include <pthread.h>

static void *body(void *arg) {
    use_all();
    return arg;
}

__attribute__((constructor)) static void waits() {
    pthread_t thread;
    if (pthread_create(&thread, nullptr, body, nullptr) != 0 || pthread_join(thread, nullptr) != 0) abort();
}
#else
#include "../support/test.h"

extern "C" void *__libc_realloc(void *, std::size_t);
extern "C" void *__libc_malloc(std::size_t);
extern "C" void __libc_free(void *);

static int resized, made, gone, used;

extern "C" void *malloc(std::size_t size) { return __libc_malloc(size); }
extern "C" void free(void *block) { __libc_free(block); }
extern "C" void *realloc(void *block, std::size_t size) {
    resized++;
    return __libc_realloc(block, size);
}
void *operator new(std::size_t size) {
    made++;
    return __libc_malloc(size);
}
void *operator new(std::size_t size, std::align_val_t) {
    made++;
    return __libc_malloc(size);
}
void operator delete(void *block) noexcept {
    gone++;
    __libc_free(block);
}
void operator delete(void *block, std::align_val_t) noexcept {
    gone++;
    __libc_free(block);
}

extern "C" void use_all() {
    using std::align_val_t;
    using std::nothrow;
    free(reallocarray(nullptr, 10, 10));
    operator delete[](operator new[](10));
    operator delete(operator new(10, nothrow), nothrow);
    operator delete[](operator new[](10, nothrow), nothrow);
    operator delete(operator new(10), std::size_t(10));
    operator delete[](operator new[](10), std::size_t(10));
    const align_val_t align = align_val_t(16);
    operator delete[](operator new[](10, align), align);
    operator delete(operator new(10, align, nothrow), align, nothrow);
    operator delete[](operator new[](10, align, nothrow), align, nothrow);
    operator delete(operator new(10, align), std::size_t(10), align);
    operator delete[](operator new[](10, align), std::size_t(10), align);
    used = 1;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    alarm(60);
    CHECK(dlopen(argv[1], RTLD_NOW) != NULL);
    CHECK(used == 1);
    CHECK(resized == 1);
    CHECK(made == 10);
    CHECK(gone == 10);
    return 0;
}
#endif
