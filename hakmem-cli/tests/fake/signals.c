/* Prints "ready", then the name of each signal that arrives, one a line; leaves with 7 after SIGTERM.
 * SIGTSTP keeps its default action. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(void) {
    int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT};
    sigset_t set;
    sigemptyset(&set);
    for (unsigned i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaddset(&set, signals[i]);
    sigprocmask(SIG_BLOCK, &set, NULL);
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("ready %d\n", getpid());
    for (;;) {
        int got = sigwaitinfo(&set, NULL);
        if (got < 0)
            continue;
        printf("%s\n", sigabbrev_np(got));
        if (got == SIGTERM)
            return 7;
    }
}
