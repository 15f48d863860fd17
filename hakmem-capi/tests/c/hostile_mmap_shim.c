/* A library to preload before the allocator: makes chosen calls of mmap, mremap, madvise and munmap fail.
 *
 * Only calls through these symbols are seen: the allocator's, not glibc's own nor the loader's. A move to
 * a fixed place that fails has unmapped the place, as in several kernels, and somebody else has a page
 * there then. Control: shim_set() from the program, or SHIM="first last every" in the environment, in
 * numbers of calls. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAP = 1, REMAP = 2, ADVISE = 4, UNMAP = 8 };

/* Call number n fails if first <= n <= last and (n - first) is a multiple of every. Only kinds in the
 * mask count. */
static long first = 0, last = -1, every = 1, mask = MAP | REMAP | ADVISE | UNMAP;
static long calls, failed;
static int started;

static void start(void) {
    const char *text = getenv("SHIM");
    if (!__atomic_exchange_n(&started, 1, __ATOMIC_ACQ_REL) && text) {
        char *end;
        first = strtol(text, &end, 10);
        last = strtol(end, &end, 10);
        every = strtol(end, &end, 10);
    }
}

void shim_set(long new_first, long new_last, long new_every, long new_mask) {
    __atomic_store_n(&started, 1, __ATOMIC_RELEASE);
    first = new_first, last = new_last, every = new_every, mask = new_mask;
    __atomic_store_n(&calls, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&failed, 0, __ATOMIC_RELEASE);
}

long shim_calls(void) { return __atomic_load_n(&calls, __ATOMIC_ACQUIRE); }
long shim_failed(void) { return __atomic_load_n(&failed, __ATOMIC_ACQUIRE); }

static int fails(long kind) {
    start();
    if (!(mask & kind)) return 0;
    long n = __atomic_add_fetch(&calls, 1, __ATOMIC_ACQ_REL);
    if (n < first || n > last || (n - first) % every) return 0;
    __atomic_add_fetch(&failed, 1, __ATOMIC_ACQ_REL);
    return 1;
}

void *mmap(void *at, size_t size, int prot, int flags, int fd, off_t offset) {
    if (fails(MAP)) return errno = ENOMEM, MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, size, prot, flags, fd, offset);
}

void *mmap64(void *at, size_t size, int prot, int flags, int fd, off_t offset) {
    return mmap(at, size, prot, flags, fd, offset);
}

enum { OTHERS = 10000 };
static char *others[OTHERS];
static long moved, other;

/* Moves to a fixed place that were tried. */
long shim_moves(void) { return __atomic_load_n(&moved, __ATOMIC_ACQUIRE); }

/* Another thread's mapping where something was to be moved to. */
static void map_another(char *at, size_t size) {
    syscall(SYS_munmap, at, size);
    char *p = (char *)syscall(SYS_mmap, at, 4096, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    long n = __atomic_fetch_add(&other, 1, __ATOMIC_ACQ_REL);
    if (p != at || n >= OTHERS) abort();
    strcpy(p, "another's");
    others[n] = p;
}

/* Whether all of those are still what they were; they are gone then. */
int shim_intact(void) {
    int intact = 1;
    for (; other > 0; other--) {
        unsigned char there;
        char *p = others[other - 1];
        if (syscall(SYS_mincore, p, 4096, &there) || strcmp(p, "another's")) intact = 0;
        syscall(SYS_munmap, p, 4096);
    }
    return intact;
}

void *mremap(void *at, size_t old_size, size_t new_size, int flags, ...) {
    va_list list;
    va_start(list, flags);
    void *target = va_arg(list, void *);
    va_end(list);
    int fixed = (flags & MREMAP_FIXED) != 0;
    __atomic_add_fetch(&moved, fixed, __ATOMIC_ACQ_REL);
    if (fails(REMAP)) {
        if (fixed) map_another(target, new_size);
        return errno = ENOMEM, MAP_FAILED;
    }
    return (void *)syscall(SYS_mremap, at, old_size, new_size, flags, target);
}

int madvise(void *at, size_t size, int advice) {
    if (fails(ADVISE)) return errno = EINVAL, -1;
    return (int)syscall(SYS_madvise, at, size, advice);
}

int munmap(void *at, size_t size) {
    /* as when cutting a mapping in two would make one too many */
    if (fails(UNMAP)) return errno = ENOMEM, -1;
    return (int)syscall(SYS_munmap, at, size);
}
