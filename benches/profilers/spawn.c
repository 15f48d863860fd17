/* Runs a command and writes what it and its children took to a file: spawn FILE COMMAND... A small process does
 * this, because the kernel counts the peak of the process that starts a program as the program's own. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv) {
    struct timespec start, end;
    struct rusage usage;
    int status;
    if (argc < 3) return 2;
    clock_gettime(CLOCK_MONOTONIC, &start);
    pid_t child = fork();
    if (child < 0) return 2;
    if (child == 0) {
        /* What was to be preloaded is so into the command only. */
        if (getenv("PRELOAD")) setenv("LD_PRELOAD", getenv("PRELOAD"), 1);
        execvp(argv[2], argv + 2);
        _exit(127);
    }
    if (wait4(child, &status, 0, &usage) < 0) return 2;
    clock_gettime(CLOCK_MONOTONIC, &end);
    FILE *file = fopen(argv[1], "w");
    if (!file) return 2;
    fprintf(file, "%.6f %.6f %ld\n", (end.tv_sec - start.tv_sec) + (end.tv_nsec - start.tv_nsec) / 1e9,
            usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6,
            usage.ru_maxrss);
    fclose(file);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}
