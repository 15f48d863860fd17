/* What blocks take of which a program touches the beginning only: partly_filled COUNT SIZE TOUCHED [MIB SIZE]
 *
 * Makes MIB of blocks of the last SIZE first and fills them; then COUNT of SIZE bytes, and touches TOUCHED of each.
 *   cc -O1 -fno-builtin docs/benchmarks/partly_filled.c -o /tmp/partly_filled
 *   LD_PRELOAD=target/release/libhakmem.so /tmp/partly_filled 100000 49152 16 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static struct rusage now(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage;
}

static void make(long count, size_t size, size_t touched) {
    for (long i = 0; i < count; i++) {
        char *block = malloc(size);
        if (!block) exit(1);
        memset(block, 1, touched < size ? touched : size);
    }
}

int main(int argc, char **argv) {
    if (argc != 4 && argc != 6) {
        fprintf(stderr, "usage: partly_filled COUNT SIZE TOUCHED [MIB SIZE]\n");
        return 2;
    }
    if (argc == 6) make((atol(argv[4]) << 20) / atol(argv[5]), atol(argv[5]), atol(argv[5]));
    struct rusage before = now();
    make(atol(argv[1]), atol(argv[2]), atol(argv[3]));
    struct rusage after = now();
    printf("peak resident %ld MiB, %ld of them for these blocks, %ld page faults\n", after.ru_maxrss >> 10,
           (after.ru_maxrss - before.ru_maxrss) >> 10, after.ru_minflt);
    return 0;
}
