/* Leaves the process group that it leads, and does not end. */
#include <unistd.h>

int main(void) {
    int child = fork();
    if (child == 0) {
        setpgid(0, 0);
        for (;;)
            pause();
    }
    while (setpgid(0, child) != 0)
        usleep(1000);
    for (;;)
        pause();
}
