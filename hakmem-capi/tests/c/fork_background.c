/* The child of a process that has a background thread and other threads ends with its last thread, which leaves
 * without `exit`. Without other threads, too: `fork_background alone`. */
#include "../support/test.h"
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCKS = 100, BYTES = 100000 };

static void *sleeper(void *unused) {
    free(malloc(100));
    pause();
    return unused;
}

static int threads(void) {
    int count = -2; /* "." and ".." */
    DIR *folder = opendir("/proc/self/task");
    CHECK(folder != NULL);
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

int main(int argc, char **argv) {
    static char *blocks[BLOCKS];
    pthread_t thread;
    (void)argv;
    if (argc == 1) CHECK(pthread_create(&thread, NULL, sleeper, NULL) == 0);
    /* As much as the background thread has to look after. */
    for (int i = 0; i < BLOCKS; i++) CHECK((blocks[i] = memset(malloc(BYTES), 1, BYTES)));
    for (int i = 0; i < BLOCKS / 2; i++) free(blocks[i]);
    /* Beside the first, the sleeper and the background thread. However long that takes to begin. */
    while (threads() < (argc == 1 ? 3 : 2)) usleep(1000);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        for (int i = 0; i < 20; i++) CHECK(malloc(5000));
        pthread_exit(NULL);
    }
    /* However long it takes: the test has a limit of its own. */
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    return 0;
}
