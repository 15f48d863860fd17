// operator new at HAKMEM_HARD_LIMIT=64M: bad_alloc, null from the quiet forms, and a new-handler that helps.
#include "api_check.h"
#include <new>
#include <vector>

static std::vector<void *> blocks;
static int calls;

static void freeing() {
    calls++;
    if (blocks.size() < 4) {
        std::set_new_handler(nullptr);
        return;
    }
    for (int i = 0; i < 3; i++) {
        operator delete(blocks.back());
        blocks.pop_back();
    }
}

int main() {
    bool caught = false;
    blocks.reserve(64);
    try {
        for (int i = 0; i < 64; i++) blocks.push_back(operator new(2 * MIB));
    } catch (std::bad_alloc &) {
        caught = true;
    }
    CHECKN(caught && blocks.size() >= 28 && blocks.size() <= 31, blocks.size());
    CHECK(hide(operator new(4 * MIB, std::nothrow)) == nullptr);
    CHECK(hide(operator new[](4 * MIB, std::align_val_t{64}, std::nothrow)) == nullptr);
    caught = false;
    try {
        hide(operator new[](4 * MIB, std::align_val_t{64}));
    } catch (std::bad_alloc &) {
        caught = true;
    }
    CHECK(caught);
    std::set_new_handler(freeing);
    void *p = operator new(9 * MIB);
    CHECKN(p != nullptr && calls == 2, calls);
    fill(p, 4096, 1);
    CHECK(same(p, 4096, 1));
    operator delete(p);
    puts("limits ok");
}
