/* Preloaded into Debian's emulator (7.2): places of mappings on whole pages of the program's, of PAGE bytes.
 *
 * The emulator asks the system for a place by such a mapping of its own. The system's pages are smaller, and
 * where the place that it gives is not on a page of the program's, the emulator gives up after three tries,
 * and refuses the program all memory from then on. */
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static char *map(void *at, size_t size, int access, int flags, int file, off64_t offset) {
    return (char *)syscall(SYS_mmap, at, size, access, flags, file, offset);
}

void *mmap64(void *at, size_t size, int access, int flags, int file, off64_t offset) {
    char *found = map(at, size, access, flags, file, offset);
    int is_search = access == PROT_NONE && flags == (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
    if (!is_search || found == MAP_FAILED || (uintptr_t)found % PAGE == 0) return found;
    munmap(found, size);
    found = map(NULL, size + PAGE, access, flags, file, offset);
    if (found == MAP_FAILED) return found;
    size_t before = -(uintptr_t)found % PAGE;
    if (before) munmap(found, before);
    munmap(found + before + size, PAGE - before);
    return found + before;
}
