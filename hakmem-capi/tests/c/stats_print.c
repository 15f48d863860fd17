/* hak_stats_print in the form that the first argument names, and nothing else on stderr. Second argument:
 * "all" has a block of every class, "limit" too, and no address space left to print it from. Third argument:
 * "write" prints what hak_stats_write hands over instead, whose callback does what a program may do. */
#include <hakmem.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

struct text {
    char bytes[1 << 17];
    size_t length, calls;
    int limited;
};

/* It needs memory from the system, looks at all of it, and asks for another report. */
static void allocates(void) {
    enum { MANY = 100, BYTES = 60000 };
    void *blocks[MANY];
    struct hak_stats_t now;
    for (size_t i = 0; i < MANY; i++)
        if ((blocks[i] = hak_malloc(BYTES)) == NULL) exit(4);
    if (hak_stats(&now, sizeof now) != 0 || now.allocated_bytes < (uint64_t)MANY * BYTES) exit(5);
    for (size_t i = 0; i < MANY; i++) hak_free(blocks[i]);
    (void)hak_purge();
}

static void count(void *to, const char *text, size_t length) {
    (void)text;
    *(size_t *)to += length;
}

static void keep(void *to, const char *text, size_t length) {
    struct text *kept = to;
    if (length == 0 || length > sizeof kept->bytes - kept->length) exit(6);
    if (!kept->limited) {
        size_t bytes = 0;
        allocates();
        hak_stats_write(count, &bytes, true);
        if (bytes < 1000) exit(7);
    }
    memcpy(kept->bytes + kept->length, text, length);
    kept->length += length;
    kept->calls++;
}

int main(int argc, char **argv) {
    static struct text kept;
    const char *how = argc > 2 ? argv[2] : "";
    bool json = argc > 1 && strcmp(argv[1], "json") == 0;
    void *p = hak_malloc(3000000);
    if (*how != 0) {
        struct hak_class_stats_t c;
        for (size_t i = 0; hak_class_stats(i, &c, sizeof c) == 0; i++) {
            size_t size = c.block_bytes ? c.block_bytes : 100000;
            for (size_t n = 0; n <= i; n++)
                if (hak_malloc(size) == NULL) return 2;
        }
    }
    if (strcmp(how, "limit") == 0) {
        struct rlimit none = {0, 0};
        if (setrlimit(RLIMIT_AS, &none) != 0) return 3;
        kept.limited = 1;
    }
    if (argc > 3 && strcmp(argv[3], "write") == 0) {
        hak_stats_write(keep, &kept, json);
        /* As a whole, if there is memory for that. */
        if ((kept.calls == 1) == kept.limited) return 8;
        fwrite(kept.bytes, 1, kept.length, stderr);
    } else if (argc > 3) {
        hak_stats_write(NULL, NULL, json);
    } else {
        hak_stats_print(json);
    }
    hak_free(p);
    return 0;
}
