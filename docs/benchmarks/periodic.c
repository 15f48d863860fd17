/* A program that does something now and then: periodic MILLISECONDS SIZE MIB ROUNDS
 *
 * Each time it makes MIB of blocks of SIZE bytes, fills them, and frees them but for one small one.
 *   cc -O1 -fno-builtin docs/benchmarks/periodic.c -o /tmp/periodic
 *   LD_PRELOAD=target/release/libhakmem.so /tmp/periodic 300 700 14 12 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

int main(int argc, char **argv) {
    long pause, size, mib, rounds;
    if (argc != 5 || (pause = atol(argv[1])) < 0 || (size = atol(argv[2])) < 1 || (mib = atol(argv[3])) < 1 ||
        (rounds = atol(argv[4])) < 1) {
        fprintf(stderr, "usage: periodic MILLISECONDS SIZE MIB ROUNDS\n");
        return 2;
    }
    long blocks = (mib << 20) / size;
    char **block = malloc((blocks + 1) * sizeof *block);
    for (long round = 0; round < rounds; round++) {
        for (long i = 0; i < blocks; i++) {
            if (!(block[i] = malloc(size))) return 1;
            memset(block[i], 1, size);
        }
        /* Stays. */
        char *one = malloc(size / 2 + 100);
        if (!one) return 1;
        *(volatile char *)one = 1;
        for (long i = 0; i < blocks; i++) free(block[i]);
        nanosleep(&(struct timespec){pause / 1000, pause % 1000 * 1000000}, NULL);
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("peak resident %ld MiB, %ld page faults, %.3f s of processor time\n", usage.ru_maxrss >> 10, usage.ru_minflt,
           usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6);
    return 0;
}
