// Every form of operator new and delete, over-aligned types, and what happens when there is no memory.
#include "api_check.h"
#include <exception>
#include <new>
#include <thread>
#include <vector>

static const std::nothrow_t &quiet = std::nothrow;
static volatile std::size_t impossible = static_cast<std::size_t>(1) << 62;
static volatile std::size_t beyond = SIZE_MAX - 8;

static void used(void *p, std::size_t n, std::size_t alignment) {
    CHECKN(p != nullptr, n);
    CHECKN(reinterpret_cast<std::uintptr_t>(p) % alignment == 0, n);
    CHECKN(malloc_usable_size(p) >= n, n);
    fill(p, n, n);
    CHECKN(same(p, n, n), n);
}

static void plain_forms(std::size_t n) {
    void *p = operator new(n);
    used(p, n, owed(n));
    operator delete(p);
    p = operator new(n);
    used(p, n, owed(n));
    operator delete(p, n);
    p = operator new[](n);
    used(p, n, owed(n));
    operator delete[](p);
    p = operator new[](n);
    used(p, n, owed(n));
    operator delete[](p, n);
    p = operator new(n, quiet);
    used(p, n, owed(n));
    operator delete(p, quiet);
    p = operator new[](n, quiet);
    used(p, n, owed(n));
    operator delete[](p, quiet);
    // On most platforms C++ code may mix these, and much does.
    p = operator new(n);
    free(hide(p));
    p = malloc(n);
    operator delete(hide(p));
}

static void aligned_forms(std::size_t n, std::size_t alignment) {
    const std::align_val_t a{alignment};
    void *p = operator new(n, a);
    used(p, n, alignment);
    operator delete(p, a);
    p = operator new(n, a);
    used(p, n, alignment);
    operator delete(p, n, a);
    p = operator new[](n, a);
    used(p, n, alignment);
    operator delete[](p, a);
    p = operator new[](n, a);
    used(p, n, alignment);
    operator delete[](p, n, a);
    p = operator new(n, a, quiet);
    used(p, n, alignment);
    operator delete(p, a, quiet);
    p = operator new[](n, a, quiet);
    used(p, n, alignment);
    operator delete[](p, a, quiet);
}

struct alignas(128) Wide {
    unsigned char bytes[129];
    Wide() { memset(bytes, 0x5a, sizeof bytes); }
    ~Wide() {
        for (unsigned char byte : bytes) CHECK(byte == 0x5a);
    }
};

template <std::size_t N> struct alignas(N) Lined {
    char byte = 1;
};

template <std::size_t N> static void lined() {
    std::vector<Lined<N> *> all;
    for (int i = 0; i < 20; i++) all.push_back(new Lined<N>);
    for (auto *one : all) {
        CHECKN(reinterpret_cast<std::uintptr_t>(one) % N == 0, N);
        delete one;
    }
    std::vector<Lined<N>> row(33);
    for (auto &one : row) CHECKN(reinterpret_cast<std::uintptr_t>(&one) % N == 0, N);
    auto *many = new Lined<N>[17];
    for (int i = 0; i < 17; i++) CHECKN(reinterpret_cast<std::uintptr_t>(&many[i]) % N == 0, N);
    delete[] many;
}

static void types() {
    std::vector<Wide *> all;
    for (int i = 0; i < 300; i++) {
        all.push_back(new Wide);
        CHECK(reinterpret_cast<std::uintptr_t>(all.back()) % 128 == 0);
    }
    for (auto *one : all) delete one;
    Wide *row = new Wide[100];
    delete[] row;
    Wide *maybe = new (quiet) Wide;
    CHECK(maybe != nullptr);
    delete maybe;
    lined<32>();
    lined<64>();
    lined<256>();
    lined<4096>();
    lined<65536>();
}

// Zero bytes: pointers of their own.
static void nothing() {
    volatile std::size_t zero = 0;
    void *a = operator new(zero), *b = operator new[](zero), *c = operator new(zero, quiet);
    CHECK(a && b && c && a != b && b != c && a != c);
    operator delete(a);
    operator delete[](b);
    operator delete(c);
    operator delete(nullptr);
    operator delete[](nullptr);
    operator delete(nullptr, std::size_t(8));
    operator delete(nullptr, std::align_val_t(64));
}

struct Local {
    int *count;
    explicit Local(int *c) : count(c) {}
    ~Local() { ++*count; }
};

// The exception is a std::bad_alloc, and frames between the throw and the catch are unwound.
template <class Body> static void throws(Body body) {
    int unwound = 0, caught = 0;
    try {
        Local local(&unwound);
        hide(body());
    } catch (std::bad_alloc &error) {
        caught = error.what() != nullptr;
    }
    CHECK(caught == 1 && unwound == 1);
    try {
        Local local(&unwound);
        hide(body());
    } catch (const std::exception &error) {
        caught += dynamic_cast<const std::bad_alloc *>(&error) != nullptr;
    }
    CHECK(caught == 2 && unwound == 2);
}

static void no_memory() {
    const std::align_val_t a{128};
    for (std::size_t n : {std::size_t(impossible), std::size_t(beyond), std::size_t(PTRDIFF_MAX)}) {
        throws([=] { return operator new(n); });
        throws([=] { return operator new[](n); });
        throws([=] { return operator new(n, a); });
        throws([=] { return operator new[](n, a); });
        CHECKN(hide(operator new(n, quiet)) == nullptr, n);
        CHECKN(hide(operator new[](n, quiet)) == nullptr, n);
        CHECKN(hide(operator new(n, a, quiet)) == nullptr, n);
        CHECKN(hide(operator new[](n, a, quiet)) == nullptr, n);
    }
    throws([] { return static_cast<void *>(new std::vector<char>(impossible)); });
    throws([] { return static_cast<void *>(new Wide[impossible / sizeof(Wide)]); });
}

// Alignments that are no power of two.
static void no_alignment() {
    for (std::size_t by : {0u, 3u, 24u, 48u, 4097u}) {
        const std::align_val_t a{by};
        throws([=] { return operator new(100, a); });
        throws([=] { return operator new[](100, a); });
        CHECKN(hide(operator new(100, a, quiet)) == nullptr, by);
        CHECKN(hide(operator new[](100, a, quiet)) == nullptr, by);
    }
}

int main() {
    for (std::size_t n = 1; n < 3 * MIB; n += n / 6 + 1) plain_forms(n);
    for (std::size_t alignment = 1; alignment <= 4 * MIB; alignment *= 2)
        for (std::size_t n = 1; n < MIB; n = n * 3 + 2) aligned_forms(n, alignment);
    types();
    nothing();
    for (int i = 0; i < 100; i++) no_memory();
    std::thread([] { no_memory(); }).join();
    no_alignment();
    malloc_trim(0);
    puts("new ok");
}
