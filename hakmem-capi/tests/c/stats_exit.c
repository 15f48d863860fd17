/* Allocates a little and ends as argv[1] says; its own changes to the environment come too late to matter. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "return";
    for (int i = 0; i < 1000; i++) free(malloc((size_t)i));
    if (strcmp(how, "setenv") == 0) {
        setenv("HAKMEM_STATS", "json", 1);
        setenv("HAKMEM_NONSENSE", "1", 1);
        setenv("HAKMEM_THP", "nonsense", 1);
    }
    if (strcmp(how, "unsetenv") == 0) unsetenv("HAKMEM_STATS");
    if (strcmp(how, "exec") == 0) execl(argv[0], argv[0], "return", (char *)NULL);
    if (strcmp(how, "fork") == 0) {
        pid_t child = fork();
        if (child == 0) {
            free(malloc(100));
            exit(0);
        }
        if (child < 0 || waitpid(child, NULL, 0) != child) return 1;
    }
    if (strcmp(how, "closed") == 0) fclose(stderr);
    if (strcmp(how, "elsewhere") == 0 && chdir("/proc") != 0) return 1;
    void *volatile p = malloc(100000);
    free(p);
    printf("%ld\n", (long)getpid());
    if (strcmp(how, "exit") == 0) exit(3);
    return 0;
}
