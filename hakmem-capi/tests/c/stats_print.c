/* hak_stats_print in the form that the first argument names, and nothing else on stderr. Second argument:
 * "all" has a block of every class, "limit" too, and no address space left to print it from. */
#include <hakmem.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>

int main(int argc, char **argv) {
    const char *how = argc > 2 ? argv[2] : "";
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
    }
    hak_stats_print(argc > 1 && strcmp(argv[1], "json") == 0);
    hak_free(p);
    return 0;
}
