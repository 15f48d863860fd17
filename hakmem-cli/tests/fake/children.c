/* A server that forks a child for each request: children SIZE. Each of 60 children allocates 200 blocks of so
 * many bytes. */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void *volatile kept[200];

int main(int argc, char **argv) {
    size_t size = argc == 2 ? (size_t)atol(argv[1]) : 0;
    free(malloc(size));
    for (int i = 0; i < 60; i++) {
        pid_t child = fork();
        if (child < 0) return 1;
        if (child == 0) {
            for (int j = 0; j < 200; j++)
                if (!(kept[j] = malloc(size))) _exit(1);
            exit(0);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status != 0) return 1;
    }
    return 0;
}
