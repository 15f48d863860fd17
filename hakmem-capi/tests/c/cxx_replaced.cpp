// A program with operators of its own, which put a header before each block, and none of the others: those
// call them, as C++ says. Compiled once for each set of operators that is replaced: -DPLAIN, -DARRAYS
// or -DALIGNED. With -DLIBRARY it is a library for the first of them, whose constructor comes before Hakmem's.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <new>

#ifdef LIBRARY
__attribute__((constructor)) static void first() {
    char *volatile block = new char[100];
    delete[] block;
    operator delete(operator new(100, std::nothrow), (size_t)100);
}
#else

#ifdef ARRAY
// As programs for systems without it bring along.
extern "C" void *reallocarray(void *block, size_t count, size_t size) {
    return size && count > SIZE_MAX / size ? nullptr : realloc(block, count * size);
}
#endif

static int made, freed;

__attribute__((noinline)) static void *with_header(size_t size, size_t header) {
    made++;
    char *block = (char *)aligned_alloc(header, size + header);
    if (!block) abort();
    memset(block, 0x5a, header);
    return block + header;
}

__attribute__((noinline)) static void without_header(void *block, size_t header) {
    if (!block) return;
    freed++;
    char *start = (char *)block - header;
    for (size_t i = 0; i < header; i++)
        if (start[i] != 0x5a) abort();
    memset(start, 0, header);
    free(start);
}

#ifdef ARRAYS
void *operator new[](size_t size) { return with_header(size, 16); }
void operator delete[](void *block) noexcept { without_header(block, 16); }
#elif defined(ALIGNED)
void *operator new(size_t size, std::align_val_t align) { return with_header(size, (size_t)align); }
// Nothing says to which alignment: this program uses one.
void operator delete(void *block, std::align_val_t) noexcept { without_header(block, 64); }
#else
void *operator new(size_t size) { return with_header(size, 16); }
void operator delete(void *block) noexcept { without_header(block, 16); }
#endif

// The calls are written out, so that no compiler leaves any out or takes another form.
template <class New, class Delete> static void pair(const char *form, bool own, New make, Delete end) {
    for (size_t size : {1, 24, 100, 5000, 300000}) {
        int before = made, after = freed;
        for (int i = 0; i < 100; i++) {
            void *block = make(size);
            if (!block) abort();
            memset(block, 0xff, size);
            end(block, size);
        }
        if (made - before != 100 * own || freed - after != 100 * own) {
            printf("%s of %zu: %d made, %d freed\n", form, size, made - before, freed - after);
            exit(1);
        }
    }
}

#define PAIR(own, make, end) \
    pair(#make " and " #end, own, [](size_t size) -> void * { (void)size; return make; }, [](void *block, size_t size) { (void)size; end; })

#define ALIGN std::align_val_t{64}

static void all() {
#ifdef ARRAYS
    const bool one = false, array = true, aligned = false;
#elif defined(ALIGNED)
    const bool one = false, array = false, aligned = true;
#else
    const bool one = true, array = true, aligned = false;
#endif
    PAIR(one, operator new(size), operator delete(block));
    PAIR(one, operator new(size), operator delete(block, size));
    PAIR(one, operator new(size), operator delete(block, std::nothrow));
    PAIR(one, operator new(size, std::nothrow), operator delete(block, size));
    PAIR(array, operator new[](size), operator delete[](block));
    PAIR(array, operator new[](size), operator delete[](block, size));
    PAIR(array, operator new[](size), operator delete[](block, std::nothrow));
    PAIR(array, operator new[](size, std::nothrow), operator delete[](block));
    PAIR(aligned, operator new(size, ALIGN), operator delete(block, ALIGN));
    PAIR(aligned, operator new(size, ALIGN), operator delete(block, size, ALIGN));
    PAIR(aligned, operator new(size, ALIGN, std::nothrow), operator delete(block, ALIGN, std::nothrow));
    PAIR(aligned, operator new[](size, ALIGN), operator delete[](block, ALIGN));
    PAIR(aligned, operator new[](size, ALIGN), operator delete[](block, size, ALIGN));
    PAIR(aligned, operator new[](size, ALIGN, std::nothrow), operator delete[](block, ALIGN, std::nothrow));
}

int main() {
    all();
    puts("as C++ says");
}
#endif
