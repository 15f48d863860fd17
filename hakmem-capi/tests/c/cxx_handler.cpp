// The new-handler: called again and again until it helps, throws, or takes itself away.
#include "api_check.h"
#include <new>
#include <sys/resource.h>

static volatile std::size_t impossible = static_cast<std::size_t>(1) << 62;
static int calls;
static void *reserve;

struct Stop : std::bad_alloc {};

static void counting() {
    if (++calls == 5) std::set_new_handler(nullptr);
}

static void throwing() {
    calls++;
    throw Stop();
}

static void throwing_number() {
    calls++;
    throw 42;
}

// Gives its reserve back; a second call means that this did not help.
static void freeing() {
    calls++;
    free(reserve);
    if (reserve == nullptr) std::set_new_handler(nullptr);
    reserve = nullptr;
}

// Called until it resets itself, then bad_alloc.
static void reset() {
    for (int form = 0; form < 4; form++) {
        bool caught = false;
        calls = 0;
        std::set_new_handler(counting);
        try {
            const std::align_val_t a{256};
            if (form == 0) hide(operator new(impossible));
            if (form == 1) hide(operator new[](impossible));
            if (form == 2) hide(operator new(impossible, a));
            if (form == 3) hide(operator new[](impossible, a));
        } catch (std::bad_alloc &) {
            caught = true;
        }
        CHECKN(caught && calls == 5, calls);
        CHECK(std::get_new_handler() == nullptr);
    }
    // The forms that do not throw call it too, and then return null.
    calls = 0;
    std::set_new_handler(counting);
    CHECK(hide(operator new(impossible, std::nothrow)) == nullptr);
    CHECKN(calls == 5, calls);
    calls = 0;
    std::set_new_handler(counting);
    CHECK(hide(operator new[](impossible, std::align_val_t{64}, std::nothrow)) == nullptr);
    CHECKN(calls == 5, calls);
}

// What the handler throws reaches the caller of new.
static void thrown() {
    bool caught = false;
    calls = 0;
    std::set_new_handler(throwing);
    try {
        hide(operator new(impossible));
    } catch (Stop &) {
        caught = true;
    }
    CHECKN(caught && calls == 1, calls);
    std::set_new_handler(throwing_number);
    int number = 0;
    try {
        hide(operator new[](impossible));
    } catch (int n) {
        number = n;
    }
    CHECKN(number == 42 && calls == 2, calls);
    std::set_new_handler(nullptr);
}

// The same under a form that may not throw: null, as libstdc++ does it.
static void thrown_quietly() {
    calls = 0;
    std::set_new_handler(throwing);
    CHECK(hide(operator new(impossible, std::nothrow)) == nullptr);
    CHECKN(calls == 1, calls);
    CHECK(hide(operator new[](impossible, std::nothrow)) == nullptr);
    CHECKN(calls == 2, calls);
    std::set_new_handler(nullptr);
}

static std::size_t address_space() {
    std::size_t pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != nullptr && fscanf(file, "%zu", &pages) == 1);
    fclose(file);
    return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// A program that keeps a reserve for hard times: its handler frees it, and new succeeds.
static void helped() {
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_AS, &limit) == 0);
    reserve = malloc(400 * MIB);
    CHECK(reserve != nullptr);
    struct rlimit tight = limit;
    tight.rlim_cur = address_space() + 200 * MIB;
    CHECK(setrlimit(RLIMIT_AS, &tight) == 0);
    calls = 0;
    std::set_new_handler(freeing);
    void *p = operator new(500 * MIB);
    CHECKN(p != nullptr && calls == 1, calls);
    fill(p, MIB, 1);
    CHECK(same(p, MIB, 1));
    operator delete(p);
    reserve = malloc(400 * MIB);
    CHECK(reserve != nullptr);
    p = operator new[](500 * MIB, std::nothrow);
    CHECKN(p != nullptr && calls == 2, calls);
    operator delete[](p);
    std::set_new_handler(nullptr);
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "quiet") == 0) {
        thrown_quietly();
    } else {
        reset();
        thrown();
        helped();
    }
    puts("handler ok");
}
