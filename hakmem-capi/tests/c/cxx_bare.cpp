// C++ without a C++ library: every form of operator new and delete is ours, and nothing can throw.
#include "api_check.h"

namespace std {
enum class align_val_t : size_t {};
struct nothrow_t {};
} // namespace std
void *operator new(size_t, const std::nothrow_t &) noexcept;
void *operator new[](size_t, const std::nothrow_t &) noexcept;
void *operator new(size_t, std::align_val_t, const std::nothrow_t &) noexcept;
void *operator new[](size_t, std::align_val_t, const std::nothrow_t &) noexcept;
void operator delete(void *, const std::nothrow_t &) noexcept;
void operator delete[](void *, const std::nothrow_t &) noexcept;
void operator delete(void *, std::align_val_t, const std::nothrow_t &) noexcept;
void operator delete[](void *, std::align_val_t, const std::nothrow_t &) noexcept;

static const std::nothrow_t quiet{};
static volatile size_t impossible = static_cast<size_t>(1) << 62;

static void *used(void *block, size_t n, size_t alignment) {
    CHECKN(block != nullptr, n);
    CHECKN(reinterpret_cast<uintptr_t>(block) % alignment == 0, n);
    CHECKN(malloc_usable_size(block) >= n, n);
    fill(block, n, n);
    CHECKN(same(block, n, n), n);
    return block;
}

static void forms(size_t n) {
    operator delete(used(operator new(n), n, owed(n)));
    operator delete(used(operator new(n), n, owed(n)), n);
    operator delete[](used(operator new[](n), n, owed(n)));
    operator delete[](used(operator new[](n), n, owed(n)), n);
    operator delete(used(operator new(n, quiet), n, owed(n)), quiet);
    operator delete[](used(operator new[](n, quiet), n, owed(n)), quiet);
}

static void aligned_forms(size_t n, size_t alignment) {
    const auto a = static_cast<std::align_val_t>(alignment);
    operator delete(used(operator new(n, a), n, alignment), a);
    operator delete(used(operator new(n, a), n, alignment), n, a);
    operator delete[](used(operator new[](n, a), n, alignment), a);
    operator delete[](used(operator new[](n, a), n, alignment), n, a);
    operator delete(used(operator new(n, a, quiet), n, alignment), a, quiet);
    operator delete[](used(operator new[](n, a, quiet), n, alignment), a, quiet);
}

// What the compiler makes of new and delete themselves.
static int destroyed;
template <size_t N> struct alignas(N) Object {
    unsigned char bytes[N + 1] = {1};
    virtual ~Object() { destroyed += bytes[0]; }
};

template <size_t N> static void objects(size_t count) {
    Object<N> *one = new Object<N>, *several = new Object<N>[3];
    CHECKN(reinterpret_cast<uintptr_t>(one) % N == 0 && reinterpret_cast<uintptr_t>(several) % N == 0, N);
    destroyed = 0;
    delete one;
    delete[] several;
    CHECKN(destroyed == 4, destroyed);
    unsigned char *bytes = new (quiet) unsigned char[count]();
    CHECK(bytes != nullptr && bytes[count - 1] == 0);
    delete[] bytes;
}

int main(int argc, char **argv) {
    (void)argv;
    if (argc > 1) {
        void *volatile block = operator new(impossible);
        return block != nullptr;
    }
    for (size_t n = 1; n < 2 * MIB; n += n / 2 + 1) {
        forms(n);
        for (size_t alignment = 1; alignment <= MIB; alignment *= 8) aligned_forms(n, alignment);
    }
    objects<8>(10);
    objects<64>(10000);
    objects<4096>(1000000);
    const auto wide = static_cast<std::align_val_t>(4096), none = static_cast<std::align_val_t>(24);
    CHECK(operator new(impossible, quiet) == nullptr && operator new[](impossible, quiet) == nullptr);
    CHECK(operator new(impossible, wide, quiet) == nullptr && operator new[](impossible, wide, quiet) == nullptr);
    CHECK(operator new(100, none, quiet) == nullptr);
    operator delete(nullptr);
    operator delete[](nullptr, wide);
    puts("bare ok");
    return 0;
}
