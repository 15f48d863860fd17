/* All memory of the process is locked, or shall be, or a control group limits it.
 *
 *   hostile_locked all       mlockall: the kernel takes no page back, and says so
 *   hostile_locked future    and new memory only up to a limit: mmap fails with EAGAIN there
 *   hostile_locked group     far more in all than the group may have (the second argument: it goes there);
 *                            only what is given back in time lets the process live */
#include "../support/test.h"
#include <sys/mman.h>
#include <sys/resource.h>

enum { BLOCKS = 400 };

static struct {
    unsigned char *at;
    size_t size;
} blocks[BLOCKS];
static long refused;

static void round_of(uint64_t *state, int may_be_refused) {
    for (int i = 0; i < BLOCKS; i++) {
        size_t size = i % 40 ? random_size(state, 1) : 70000 + next_random(state) % 1000000;
        errno = 0;
        blocks[i].at = i % 2 ? malloc(size) : calloc(1, size);
        CHECK(blocks[i].at || (may_be_refused && errno == ENOMEM));
        refused += !blocks[i].at;
        if (!blocks[i].at) continue;
        /* What was given back, or could not be: zero all the same. */
        for (size_t at = 0; i % 2 == 0 && at < size; at++) CHECK(blocks[i].at[at] == 0);
        blocks[i].size = size;
        fill(blocks[i].at, size, i);
    }
    for (int i = 0; i < BLOCKS; i += 10) {
        if (!blocks[i].at) continue;
        CHECK(holds(blocks[i].at, blocks[i].size, i));
        errno = 0;
        unsigned char *moved = realloc(blocks[i].at, blocks[i].size * 3);
        CHECK(moved || (may_be_refused && errno == ENOMEM));
        refused += !moved;
        if (moved) blocks[i].at = moved, blocks[i].size *= 3;
        fill(blocks[i].at, blocks[i].size, i);
    }
    for (int half = 0; half < 2; half++) {
        for (int i = half; i < BLOCKS; i += 2) {
            if (blocks[i].at) CHECK(holds(blocks[i].at, blocks[i].size, i));
            free(blocks[i].at);
            blocks[i].at = NULL;
        }
        malloc_trim(0);
        /* What was beside blocks that stay: it could not go as a whole. */
        for (int i = 0; half == 0 && i < BLOCKS; i += 40) {
            blocks[i].size = 100000 + (size_t)i * 1000;
            blocks[i].at = calloc(1, blocks[i].size);
            CHECK(blocks[i].at || may_be_refused);
            for (size_t at = 0; blocks[i].at && at < blocks[i].size; at++) CHECK(blocks[i].at[at] == 0);
        }
        for (int i = 0; half == 0 && i < BLOCKS; i += 40) free(blocks[i].at), blocks[i].at = NULL;
    }
}

int main(int argc, char **argv) {
    uint64_t state = 4711;
    CHECK(argc >= 2);
    if (!strcmp(argv[1], "group")) {
        char path[300], me[20];
        snprintf(path, sizeof path, "%s/cgroup.procs", argv[2]);
        int fd = open(path, O_WRONLY), length = snprintf(me, sizeof me, "%d", (int)getpid());
        CHECK(fd >= 0 && write(fd, me, length) == length);
        close(fd);
        /* 48 MiB of each size at a time, of 64 MiB that there are; other sizes cannot use what is left of
         * them, unless it goes back to the system. */
        for (size_t size = 24; size < 40 << 20; size *= 5) {
            size_t count = ((size_t)48 << 20) / (size + 16);
            unsigned char **all = calloc(count, sizeof *all);
            for (size_t i = 0; i < count; i++) CHECK((all[i] = malloc(size)) && memset(all[i], 1, size));
            for (size_t i = 0; i < count; i++) free(all[i]);
            free(all);
            malloc_trim(0);
        }
        puts("ok");
        return 0;
    }
    round_of(&state, 0);
    if (!strcmp(argv[1], "future")) {
        /* The superuser may lock as much as there is. */
        struct rlimit limit;
        CHECK(getrlimit(RLIMIT_MEMLOCK, &limit) == 0);
        if (limit.rlim_max > 24 << 20) limit.rlim_max = 24 << 20;
        limit.rlim_cur = limit.rlim_max;
        CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
        if (geteuid() == 0) CHECK(setresuid(65534, 65534, 65534) == 0);
    }
    if (mlockall(!strcmp(argv[1], "all") ? MCL_CURRENT | MCL_FUTURE : MCL_FUTURE)) {
        printf("skipped: mlockall, error %d\n", errno);
        return 0;
    }
    int future = !strcmp(argv[1], "future");
    for (int i = 0; i < 10; i++) round_of(&state, future);
    if (future) { /* more than may be locked */
        static unsigned char *more[200];
        for (int i = 0; i < 200; i++) {
            errno = 0;
            more[i] = malloc(500000);
            CHECK(more[i] || errno == ENOMEM);
            refused += !more[i];
        }
        for (int i = 0; i < 200; i++) free(more[i]);
        CHECK(refused > 0);
    }
    CHECK(munlockall() == 0);
    for (int i = 0; i < 3; i++) round_of(&state, future);
    dprintf(1, "%ld refused\n", refused);
    puts("ok");
    return 0;
}
