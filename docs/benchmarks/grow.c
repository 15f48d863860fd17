// One block that grows by `realloc` from 64 bytes and is then freed, again and again: microseconds from the
// first allocation to the free, the best of five times 2,000. A byte in every 4 KiB is written after each step.
//
//   cc -O2 -o grow docs/benchmarks/grow.c; LD_PRELOAD=target/release/libhakmem.so ./grow FACTOR BYTES
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

int main(int argc, char **argv) {
    double factor = argc == 3 ? atof(argv[1]) : 0;
    size_t end = argc == 3 ? strtoul(argv[2], NULL, 10) : 0;
    if (factor < 1.1 || end < 64) {
        fprintf(stderr, "usage: grow FACTOR BYTES, at least 1.1 and 64\n");
        return 2;
    }
    double best = 1e12;
    for (int i = 0; i < 5; i++) {
        double start = now();
        for (int round = 0; round < 2000; round++) {
            size_t size = 64;
            char *block = malloc(size);
            while (size < end) {
                size = size * factor;
                block = realloc(block, size);
                if (block == NULL)
                    return 1;
                for (size_t at = 0; at < size; at += 4096)
                    block[at] = 1;
            }
            free(block);
        }
        double each = (now() - start) / 2000;
        best = each < best ? each : best;
    }
    printf("%.1f\n", best);
    return 0;
}
