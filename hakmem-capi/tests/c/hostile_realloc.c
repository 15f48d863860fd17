/* What realloc does where there is little memory, or no mapping more is allowed: a block can always be made
 * smaller, and one that grows does not need room for both its lengths. */
#include "../support/test.h"
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { MIB = 1 << 20, LARGE = 6, SMALL = 100 };

/* Mappings side by side are one to the kernel: to cut off the end of one of them makes one more. */
static int no_mapping_more(void) {
    static unsigned char *block[LARGE];
    long page = sysconf(_SC_PAGESIZE), most = proc_number("/proc/sys/vm/max_map_count", ""), made = 0;
    size_t length = (size_t)(most * 2 * page);
    if (most > 300000) return puts("skipped: vm.max_map_count is too high to reach"), 0;
    char *area = mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(area != MAP_FAILED);
    for (int i = 0; i < LARGE; i++) {
        CHECK((block[i] = malloc(64 * MIB)) != NULL);
        fill(block[i], 2 * MIB, (uint64_t)i);
    }
    while (made < most && mprotect(area + 2 * made * page, (size_t)page, PROT_READ) == 0) made++;
    void *last = NULL, *next;
    while ((next = mmap(NULL, (size_t)page, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) != MAP_FAILED) last = next;
    CHECK(last != NULL && munmap(last, (size_t)page) == 0); /* room for a mapping, but not to cut one */
    long before = mapped_kib();
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < LARGE; i++) {
            unsigned char *p = realloc(block[i], (size_t)(50 - 5 * round) * MIB);
            CHECK(p == block[i] && holds(p, 2 * MIB, (uint64_t)i)); /* to copy it would take more memory */
        }
    CHECK(mapped_kib() <= before); /* no addresses were lost */
    /* One that grows may be refused, each time in the same way. */
    for (int round = 0; round < 200; round++) {
        unsigned char *p = realloc(block[round % LARGE], 100 * MIB);
        if (p != NULL) block[round % LARGE] = p;
        CHECK(holds(block[round % LARGE], 2 * MIB, (uint64_t)(round % LARGE)));
    }
    CHECK(munmap(area, length) == 0);
    for (int i = 0; i < LARGE; i++) {
        CHECK((block[i] = realloc(block[i], 3 * MIB)) != NULL && holds(block[i], 2 * MIB, (uint64_t)i));
        free(block[i]);
    }
    return puts("ok"), 0;
}

struct node { struct node *next; };

static void exhaust(struct node **list, size_t size) {
    struct node *n;
    while ((n = malloc(size)) != NULL) n->next = *list, *list = n;
    CHECK(errno == ENOMEM);
}

static int no_memory(void) {
    static unsigned char *block[SMALL];
    static const size_t to[] = {2, 90, 900};
    struct node *list = NULL;
    struct rlimit before;
    for (int i = 0; i < SMALL; i++) {
        CHECK((block[i] = malloc(4000)) != NULL);
        fill(block[i], 4000, (uint64_t)i);
    }
    CHECK(getrlimit(RLIMIT_AS, &before) == 0);
    struct rlimit now = {(rlim_t)(mapped_kib() + (32 << 10)) * 1024, before.rlim_max};
    CHECK(setrlimit(RLIMIT_AS, &now) == 0);
    for (int i = 0; i < 3; i++) exhaust(&list, to[i]);
    exhaust(&list, 8);
    for (int i = 0; i < SMALL; i++) {
        errno = 77;
        unsigned char *p = realloc(block[i], to[i % 3]);
        CHECK(p != NULL && errno == 77 && holds(p, to[i % 3], (uint64_t)i));
        block[i] = p;
        CHECK(realloc(p, 100000000) == NULL && errno == ENOMEM); /* what grows is refused */
    }
    CHECK(setrlimit(RLIMIT_AS, &before) == 0);
    void (*free_sized)(void *, size_t);
    *(void **)&free_sized = dlsym(RTLD_DEFAULT, "free_sized");
    for (int i = 0; i < SMALL; i++) {
        if (free_sized && i % 2) free_sized(block[i], to[i % 3]);
        else free(block[i]);
    }
    while (list) {
        struct node *next = list->next;
        free(list);
        list = next;
    }
    return puts("ok"), 0;
}

/* Nothing is free behind the second block: it has to move. */
static int little_addresses(void) {
    size_t size = 200 * MIB, held = size;
    unsigned char *first = malloc(64 * MIB), *p = malloc(size);
    CHECK(first != NULL && p != NULL);
    fill(p, size, 7);
    for (size_t at = 0; at < 64 * MIB; at += 4096) first[at] = 1;
    struct rlimit before;
    CHECK(getrlimit(RLIMIT_AS, &before) == 0);
    struct rlimit now = {(rlim_t)(mapped_kib() + (101 << 10)) * 1024, before.rlim_max};
    CHECK(setrlimit(RLIMIT_AS, &now) == 0);
    for (int grown = 0;; grown++) {
        unsigned char *q = realloc(p, size + 4 * MIB);
        if (q == NULL) {
            CHECK(errno == ENOMEM && grown >= 20); /* of 25 */
            break;
        }
        p = q, size += 4 * MIB;
        if (grown % 8 == 0) CHECK(holds(p, held, 7));
        memset(p + size - 4 * MIB, 1, 4 * MIB);
    }
    CHECK(holds(p, held, 7) && p[size - 1] == 1 && p[held] == 1);
    free(p);
    /* All that was taken is there again. */
    CHECK((p = malloc(size)) != NULL);
    free(p);
    free(first);
    return puts("ok"), 0;
}

int main(int argc, char **argv) {
    if (argc < 2) return no_memory();
    return strcmp(argv[1], "maps") == 0 ? no_mapping_more() : little_addresses();
}
