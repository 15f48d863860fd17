/* Processes that may not have one mapping more: see vm.max_map_count. */
#ifndef MAPS_H
#define MAPS_H
#include "test.h"
#include <sys/mman.h>

/* Mappings that use up what the system allows. */
struct used_up {
    char *area;
    size_t length;
    long made;
};

/* Whether there are too many to use up. */
static inline int too_many_maps(void) { return proc_number("/proc/sys/vm/max_map_count", "") > 300000; }

static inline struct used_up use_up_maps(void) {
    long page = sysconf(_SC_PAGESIZE), most = proc_number("/proc/sys/vm/max_map_count", "");
    struct used_up used = {.length = (size_t)(most * 2 * page)};
    used.area = mmap(NULL, used.length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(used.area != MAP_FAILED);
    /* Every second page gets other rights: a mapping of its own, and one more between. */
    while (used.made < most && mprotect(used.area + 2 * used.made * page, (size_t)page, PROT_READ) == 0) used.made++;
    CHECK(used.made < most);
    /* That needs room for two; shared mappings never join a neighbour and use up the rest. */
    while (mmap(NULL, (size_t)page, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) used.made++;
    return used;
}

#endif
