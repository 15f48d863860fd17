// Loops whose instructions are counted, as budget_loop.c: budget_cxx KIND SIZE ROUNDS. The compiler may not
// leave out what comes to nothing.
#include <cstdlib>
#include <cstring>
#include <new>

enum { BATCH = 50 };

static void *blocks[BATCH];

// What containers and `delete` of objects do: they say the size.
__attribute__((noinline)) static void sized(size_t size, long rounds) {
    for (long r = 0; r < rounds; r++) {
        for (int i = 0; i < BATCH; i++) blocks[i] = ::operator new(size);
        for (int i = BATCH - 1; i >= 0; i--) ::operator delete(blocks[i], size);
    }
}

// Objects of whole lines.
__attribute__((noinline)) static void aligned(size_t size, long rounds) {
    for (long r = 0; r < rounds; r++) {
        for (int i = 0; i < BATCH; i++) blocks[i] = ::operator new(size, std::align_val_t(64));
        for (int i = BATCH - 1; i >= 0; i--) ::operator delete(blocks[i], size, std::align_val_t(64));
    }
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    size_t size = std::strtoul(argv[2], nullptr, 0);
    long rounds = std::atol(argv[3]);
    if (!std::strcmp(argv[1], "cxx_sized")) sized(size, rounds);
    else if (!std::strcmp(argv[1], "cxx_aligned")) aligned(size, rounds);
    else return 2;
    return 0;
}
