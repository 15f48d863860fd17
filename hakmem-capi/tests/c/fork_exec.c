/* fork and exec, vfork, posix_spawn, system and popen while other threads allocate. */
#include "../support/test.h"
#include <pthread.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;
static volatile int stop;

static void *hammer(void *arg) {
    uint64_t state = (uintptr_t)arg + 1;
    box *kept[64] = {0};
    while (!stop) {
        unsigned at = next_random(&state) % 64;
        if (kept[at]) box_free(kept[at]);
        kept[at] = box_make(random_size(&state, 0), state);
    }
    for (int i = 0; i < 64; i++)
        if (kept[i]) box_free(kept[i]);
    return NULL;
}

static void wait_for(pid_t pid, int code) {
    int status;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == code);
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "child")) { /* what was exec'ed: it is served too */
        free(malloc(100));
        return 42;
    }
    long rounds = argc == 2 ? atol(argv[1]) : 60;
    pthread_t hammers[2];
    char *args[] = {argv[0], "child", NULL}, command[600];
    snprintf(command, sizeof command, "'%s' child", argv[0]);
    for (uintptr_t i = 0; i < 2; i++) CHECK(pthread_create(&hammers[i], NULL, hammer, (void *)i) == 0);
    for (long i = 0; i < rounds; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            char *copy = strdup(argv[0]); /* a child may allocate before it execs */
            execv(copy, args);
            _exit(99);
        }
        wait_for(pid, 42);
        pid = vfork(); /* shares our memory until it execs */
        if (pid == 0) {
            execv(argv[0], args);
            _exit(99);
        }
        wait_for(pid, 42);
        CHECK(posix_spawn(&pid, argv[0], NULL, NULL, args, environ) == 0);
        wait_for(pid, 42);
        int status = system(command);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42);
        FILE *pipe = popen("echo from the child", "r");
        char *line = NULL;
        size_t size = 0;
        CHECK(pipe != NULL && getline(&line, &size, pipe) == 15 && !strcmp(line, "from the child\n"));
        free(line);
        CHECK(pclose(pipe) == 0);
    }
    stop = 1;
    for (int i = 0; i < 2; i++) CHECK(pthread_join(hammers[i], NULL) == 0);
    puts("ok");
    return 0;
}
