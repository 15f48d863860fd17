// A C++ program: operator new and delete are Hakmem's. Threads free what others have allocated.
#include <hakmem.h>
#include <cstdio>
#include <map>
#include <new>
#include <string>
#include <thread>
#include <vector>

int main() {
    std::map<int, std::string> words;
    std::thread filler([&words] {
        for (int i = 0; i < 100000; ++i)
            words[i] = "a string that is too long to be stored in place, number " + std::to_string(i);
    });
    filler.join();

    hak_stats_t stats;
    hak_stats(&stats, sizeof stats);
    std::printf("more than 10 MB in use: %s\n", stats.allocated_bytes > 10000000 ? "yes" : "no");
    words.clear();

    hak_set_limits(0, 64 << 20);
    try {
        std::vector<char> large(std::size_t{1} << 30);
        std::puts("1 GiB allocated");
    } catch (const std::bad_alloc &) {
        std::puts("1 GiB refused: std::bad_alloc");
    }
    return 0;
}
