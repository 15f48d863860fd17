// As little as possible: nothing here but operator new asks for libstdc++'s throwing parts.
#include <cstddef>
#include <cstdio>
#include <new>

static volatile std::size_t impossible = static_cast<std::size_t>(1) << 62;

int main() {
    try {
        void *volatile p = operator new(impossible);
        std::printf("got %p\n", p);
        return 1;
    } catch (std::bad_alloc &) {
        std::puts("caught");
    }
    return 0;
}
