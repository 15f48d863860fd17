// Mixtures of new and delete, and sizes and alignments that are given with a free and are not the block's.
#include "../support/security.h"
#include <new>

using align = std::align_val_t;

static void *found(const char *name) {
    void *function = dlsym(RTLD_DEFAULT, name);
    if (!function) exit(ABSENT);
    return function;
}
static void c23_free(unsigned char *block, size_t size) {
    reinterpret_cast<void (*)(void *, size_t)>(found("free_sized"))(block, size);
}
static void c23_free_aligned(unsigned char *block, size_t alignment, size_t size) {
    reinterpret_cast<void (*)(void *, size_t, size_t)>(found("free_aligned_sized"))(block, alignment, size);
}
static unsigned char *made() { return drop(enter(operator new(SIZE), SIZE)); }
static unsigned char *made_aligned(size_t alignment) {
    return drop(enter(operator new(SIZE, align(alignment)), SIZE));
}

// Wrong sizes: the next blocks of either size show what came of it.
static void sized_half() { operator delete(made(), SIZE / 2); }
static void sized_double() { operator delete(made(), SIZE * 2); }
static void sized_less() { operator delete(made(), SIZE - 1); }
static void sized_more() { operator delete(made(), SIZE + 1); }
static void sized_16() { operator delete(made(), 16); }
static void sized_huge() { operator delete(made(), size_t{4} << 20); }
static void sized_array_half() { operator delete[](drop(enter(operator new[](SIZE), SIZE)), SIZE / 2); }
static void c23_half() { c23_free(drop(own), SIZE / 2); }
static void c23_double() { c23_free(drop(own), SIZE * 2); }
static void c23_less() { c23_free(drop(own), SIZE - 1); }
static void c23_zero() { c23_free(drop(own), 0); }
static void c23_aligned_half() {
    unsigned char *block = (unsigned char *)aligned_alloc(128, SIZE * 4);
    c23_free_aligned(block, 128, SIZE * 2);
}
static void c23_aligned_wrong() {
    unsigned char *block = (unsigned char *)aligned_alloc(128, SIZE * 4);
    c23_free_aligned(block, 8192, SIZE * 4);
}

struct Base {
    char few[16];
};
struct Derived : Base {
    char more[400];
};
static void base_of_derived() {
    Base *volatile base = new Derived;
    delete base;
}
struct Second {
    char some[32];
};
struct Both : Derived, Second {};
// The second base lies behind the first: its address is not the block's.
static void second_base() {
    Second *volatile second = new Both;
    delete second;
}

// Wrong forms of delete. With a destructor an array has a word before it that says how many there are.
struct Destroyed {
    char some[24];
    ~Destroyed() {}
};
static void array_by_delete() {
    Destroyed *volatile array = new Destroyed[10];
    delete array;
}
static void one_by_array_delete() {
    Destroyed *volatile before = new Destroyed, *volatile one = new Destroyed, *volatile behind = new Destroyed;
    delete[] one;
    delete behind;
    delete before;
}
static void plain_array_by_delete() { operator delete(drop(enter(operator new[](SIZE), SIZE))); }
static void malloc_by_delete() { operator delete(drop(own)); }
static void new_by_free() { free(made()); }
static void aligned_by_delete() { operator delete(made_aligned(128)); }
static void plain_by_aligned() { operator delete(made(), align(4096)); }
static void aligned_by_other() { operator delete(made_aligned(128), SIZE, align(4096)); }

static void delete_twice() {
    unsigned char *block = made(), *again = hide(block);
    operator delete(block);
    operator delete(again);
    take_many();
}
static void delete_sized_twice() {
    unsigned char *block = made(), *again = hide(block);
    operator delete(block, SIZE);
    operator delete(again, SIZE);
    take_many();
}
static void over_new() {
    int block = enter(operator new(SIZE), SIZE);
    enter(operator new(SIZE), SIZE);
    hide(blocks[block].at)[SIZE] ^= 0x55;
}

#define SIZED "wrong size"
#define MIXED "mixed forms"
static const struct kind KINDS[] = {
    {SIZED, "delete-half", sized_half, ALL, "`delete` with half the size"},
    {SIZED, "delete-double", sized_double, ALL, "`delete` with twice the size"},
    {SIZED, "delete-less", sized_less, ALL, "`delete` with a byte less"},
    {SIZED, "delete-more", sized_more, ALL, "`delete` with a byte more"},
    {SIZED, "delete-16", sized_16, MEDIUM | LARGE | HUGE, "`delete` with 16 bytes"},
    {SIZED, "delete-4m", sized_huge, SMALL | MEDIUM | LARGE, "`delete` with 4 MiB"},
    {SIZED, "delete-array-half", sized_array_half, ALL, "`delete[]` with half the size"},
    {SIZED, "free-sized-half", c23_half, ALL, "`free_sized` with half the size"},
    {SIZED, "free-sized-double", c23_double, ALL, "`free_sized` with twice the size"},
    {SIZED, "free-sized-less", c23_less, ALL, "`free_sized` with a byte less"},
    {SIZED, "free-sized-zero", c23_zero, ALL, "`free_sized` with 0"},
    {SIZED, "free-aligned-half", c23_aligned_half, SMALL | MEDIUM, "`free_aligned_sized` with half the size"},
    {SIZED, "free-aligned-wrong", c23_aligned_wrong, SMALL | MEDIUM, "the same with another alignment"},
    {SIZED, "delete-base", base_of_derived, ONE, "a derived object by its base, without virtual destructor"},
    {MIXED, "delete-second-base", second_base, ONE, "the same by its second base"},
    {MIXED, "array-by-delete", array_by_delete, ONE, "`new[]` of objects with destructor, `delete`"},
    {MIXED, "one-by-array-delete", one_by_array_delete, ONE, "`new` of such an object, `delete[]`"},
    {MIXED, "plain-array-by-delete", plain_array_by_delete, SMALL | LARGE, "`new[]` of bytes, `delete`"},
    {MIXED, "malloc-by-delete", malloc_by_delete, SMALL | LARGE, "`malloc`, `delete`"},
    {MIXED, "new-by-free", new_by_free, SMALL | LARGE, "`new`, `free`"},
    {MIXED, "aligned-by-delete", aligned_by_delete, SMALL | LARGE, "aligned `new`, plain `delete`"},
    {MIXED, "plain-by-aligned", plain_by_aligned, SMALL | LARGE, "plain `new`, aligned `delete`"},
    {MIXED, "aligned-by-other", aligned_by_other, SMALL | LARGE, "aligned `new`, `delete` with another alignment"},
    {"double free", "delete-twice", delete_twice, ALL, "`delete` twice in a row"},
    {"double free", "delete-sized-twice", delete_sized_twice, ALL, "`delete` with the size, twice in a row"},
    {"overflow", "over-1-new", over_new, SMALL | MEDIUM, "1 byte behind a block of `new`"},
    {}};

int main(int argc, char **argv) { return security_main(KINDS, argc, argv); }
