/* hak_stats_print in the form that the argument names, and nothing else on stderr. */
#include <hakmem.h>
#include <string.h>

int main(int argc, char **argv) {
    void *p = hak_malloc(3000000);
    hak_stats_print(argc > 1 && strcmp(argv[1], "json") == 0);
    hak_free(p);
    return 0;
}
