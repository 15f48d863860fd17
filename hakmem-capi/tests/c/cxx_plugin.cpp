/* A plugin in C++, loaded by a C program that has no C++ library: its bad_alloc must still be thrown and
 * caught. */
#include <cstddef>
#include <new>

extern "C" int try_alloc() {
    volatile std::size_t size = std::size_t(1) << 48;
    try {
        char *volatile block = new char[size]; /* volatile: or the compiler leaves it out */
        delete[] block;
        return 1;
    } catch (const std::bad_alloc &) {
        return 0;
    }
}
