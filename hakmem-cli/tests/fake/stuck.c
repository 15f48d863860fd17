/* rename(2) that never returns, and says by making the file MARKER that it was called. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

int rename(const char *from, const char *to) {
    (void)from;
    (void)to;
    close(open(getenv("MARKER"), O_CREAT | O_WRONLY, 0600));
    for (;;) pause();
}
