/* Writes and reads beyond a block. */
#include "../support/security.h"

enum { MIB = 1 << 20 };
static unsigned char copied[MIB];

/* Changes `size` bytes from `at` on by stores; `step` is -1 to begin at the end. */
static void store(unsigned char *at, size_t size, int step) {
    volatile unsigned char *byte = step > 0 ? at : at + size - 1;
    for (size_t i = 0; i < size; i++, byte += step) *byte ^= 0x55;
}

static void copy(unsigned char *at, size_t size) {
    /* Bytes that differ from those that are there, but for MiBs of them, which are not to be read before. */
    memset(copied, 'A', sizeof copied);
    for (size_t i = 0; i < size && size < MIB; i++) copied[i] = ((volatile unsigned char *)at)[i] ^ 0x55;
    memcpy(at, hide(copied), size);
}

#define OVER(name, distance, write)                                                                          \
    static void name(void) {                                                                                 \
        unsigned char *end = hide(blocks[own].at) + blocks[own].size;                                        \
        size_t d = distance;                                                                                 \
        write;                                                                                               \
    }
#define UNDER(name, distance, write)                                                                         \
    static void name(void) {                                                                                 \
        unsigned char *begin = hide(blocks[own].at);                                                         \
        size_t d = distance;                                                                                 \
        write;                                                                                               \
    }
OVER(over_1_store, 1, store(end, d, 1))
OVER(over_1_memcpy, 1, copy(end, d))
OVER(over_32_far, 32, store(end + d - 1, 1, 1))
OVER(over_32_store, 32, store(end, d, 1))
OVER(over_32_memcpy, 32, copy(end, d))
OVER(over_1m_far, MIB, store(end + d - 1, 1, 1))
OVER(over_1m_store, MIB, store(end, d, 1))
OVER(over_1m_memcpy, MIB, copy(end, d))
UNDER(under_1_store, 1, store(begin - d, d, -1))
UNDER(under_1_memcpy, 1, copy(begin - d, d))
UNDER(under_32_far, 32, store(begin - d, 1, 1))
UNDER(under_32_store, 32, store(begin - d, d, -1))
UNDER(under_32_memcpy, 32, copy(begin - d, d))
UNDER(under_1m_far, MIB, store(begin - d, 1, 1))
UNDER(under_1m_store, MIB, store(begin - d, d, -1))
UNDER(under_1m_memcpy, MIB, copy(begin - d, d))
/* The block itself is the next one to be freed: it looks at what is before it. */
static void under_1_freed(void) {
    under_1_store();
    give(own);
}
static void under_bit(void) {
    hide(blocks[own].at)[-1] ^= 16;
    give(own);
}
static void under_32_freed(void) {
    under_32_store();
    give(own);
}

/* One byte behind blocks that did not come from malloc. `made` allocates about `size` bytes. */
static void over_one_of(void *(*made)(size_t), size_t size) {
    void *probe = made(size);
    size = malloc_usable_size(probe);
    free(probe);
    int before = enter(made(size), size), block = enter(made(size), size), behind = enter(made(size), size);
    CHECK(before < block && block < behind);
    store(hide(blocks[block].at) + size, 1, 1);
}
static void *aligned(size_t size) {
    void *block = NULL;
    return posix_memalign(&block, 128, size) ? NULL : block;
}
static void *zeroed(size_t size) { return calloc(1, size); }
static void *grown(size_t size) { return realloc(malloc(size / 3), size); }
static void *shrunk(size_t size) { return realloc(malloc(size + size / 4), size); }
static void over_aligned(void) { over_one_of(aligned, SIZE + 128); }
static void over_zeroed(void) { over_one_of(zeroed, SIZE); }
static void over_grown(void) { over_one_of(grown, SIZE); }
static void over_shrunk(void) { over_one_of(shrunk, SIZE); }

/* Sizes that no alignment fits: a few bytes behind them belong to nobody. */
static void over_odd(void) {
    int block = take(SIZE - 5);
    take(SIZE - 5);
    store(hide(blocks[block].at) + SIZE - 5, 1, 1);
}
/* The block is never freed: only others can notice. */
static void over_kept(void) {
    unsigned char *block = drop(own);
    store(block + SIZE, 32, 1);
}

/* Reading is an effect if what was read belongs to another block. */
static void read_at(unsigned char *at, size_t size) {
    volatile unsigned char *bytes = at;
    unsigned sum = 0;
    for (size_t i = 0; i < size; i++) sum += bytes[i];
    for (int i = 0; i < count; i++) {
        if (overlaps(at, size, &blocks[i]) && sum) had("the data of another block was read");
    }
}
OVER(read_over_32, 32, read_at(end, d))
OVER(read_over_1m, MIB, read_at(end, d))
UNDER(read_under_32, 32, read_at(begin - d, d))

static const struct kind KINDS[] = {
    {"overflow", "over-1-store", over_1_store, ALL, "1 byte behind the end, by a store"},
    {"overflow", "over-1-memcpy", over_1_memcpy, ALL, "1 byte behind the end, by memcpy"},
    {"overflow", "over-32-store", over_32_store, ALL, "32 bytes behind the end, by stores"},
    {"overflow", "over-32-memcpy", over_32_memcpy, ALL, "32 bytes behind the end, by memcpy"},
    {"overflow", "over-32-far", over_32_far, ALL, "only the 32nd byte behind the end"},
    {"overflow", "over-1m-store", over_1m_store, ALL, "1 MiB behind the end, by stores"},
    {"overflow", "over-1m-memcpy", over_1m_memcpy, ALL, "1 MiB behind the end, by memcpy"},
    {"overflow", "over-1m-far", over_1m_far, ALL, "only the last byte of 1 MiB behind the end"},
    {"overflow", "over-1-aligned", over_aligned, SMALL | MEDIUM, "1 byte behind a block of posix_memalign"},
    {"overflow", "over-1-calloc", over_zeroed, SMALL | MEDIUM, "1 byte behind a block of calloc"},
    {"overflow", "over-1-grown", over_grown, SMALL | MEDIUM, "1 byte behind a block that realloc grew"},
    {"overflow", "over-1-shrunk", over_shrunk, SMALL | MEDIUM, "1 byte behind a block that realloc shrank"},
    {"overflow", "over-1-odd", over_odd, ALL, "1 byte behind a block of 5 bytes less"},
    {"overflow", "over-32-kept", over_kept, ALL, "32 bytes behind a block that is never freed"},
    {"underflow", "under-1-store", under_1_store, ALL, "1 byte before the block, by a store"},
    {"underflow", "under-1-memcpy", under_1_memcpy, ALL, "1 byte before the block, by memcpy"},
    {"underflow", "under-1-freed", under_1_freed, SMALL | MEDIUM, "1 byte before the block, which is freed then"},
    {"underflow", "under-bit", under_bit, SMALL | MEDIUM, "one bit of the byte before the block, which is freed then"},
    {"underflow", "under-32-freed", under_32_freed, SMALL | MEDIUM, "32 bytes before the block, which is freed then"},
    {"underflow", "under-32-store", under_32_store, ALL, "32 bytes before the block, by stores"},
    {"underflow", "under-32-memcpy", under_32_memcpy, ALL, "32 bytes before the block, by memcpy"},
    {"underflow", "under-32-far", under_32_far, ALL, "only the 32nd byte before the block"},
    {"underflow", "under-1m-store", under_1m_store, ALL, "1 MiB before the block, by stores"},
    {"underflow", "under-1m-memcpy", under_1m_memcpy, ALL, "1 MiB before the block, by memcpy"},
    {"underflow", "under-1m-far", under_1m_far, ALL, "only the first byte of 1 MiB before the block"},
    {"read beyond", "read-over-32", read_over_32, ALL, "32 bytes behind the end are read"},
    {"read beyond", "read-over-1m", read_over_1m, ALL, "1 MiB behind the end is read"},
    {"read beyond", "read-under-32", read_under_32, ALL, "32 bytes before the block are read"},
    {0}};

int main(int argc, char **argv) { return security_main(KINDS, argc, argv); }
