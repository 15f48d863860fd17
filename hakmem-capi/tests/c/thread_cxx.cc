// Allocation in destructors of C++ thread_local objects, of __cxa_thread_atexit callbacks, of pthread keys
// that run after both, and of static objects of the process.
#include "../support/test.h"
#include <atomic>
#include <climits>
#include <memory>
#include <pthread.h>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

extern "C" int __cxa_thread_atexit(void (*)(void *), void *, void *) noexcept;
extern "C" void *__dso_handle;

static std::atomic<long> destroyed{0};
static pthread_key_t late;

struct Hoard {
    std::vector<std::string> strings;
    std::unordered_map<int, std::unique_ptr<int[]>> map;
    const char *name;
    explicit Hoard(const char *n) : name(n) {
        for (int i = 0; i < 50; i++) grow(i);
    }
    void grow(int i) {
        strings.push_back(std::string(static_cast<size_t>(i * 37 % 5000), static_cast<char>('a' + i % 26)));
        map[i] = std::make_unique<int[]>(static_cast<size_t>(i % 700 + 1));
        map[i][0] = i;
    }
    ~Hoard() {
        for (int i = 50; i < 80; i++) grow(i); // allocates while the thread is being taken apart
        for (int i = 0; i < 80; i++) {
            CHECK(map[i][0] == i);
            CHECK(strings[static_cast<size_t>(i)] ==
                  std::string(static_cast<size_t>(i * 37 % 5000), static_cast<char>('a' + i % 26)));
        }
        destroyed++;
    }
};

static thread_local Hoard first("first");
static thread_local std::unique_ptr<Hoard> second;
static Hoard of_process("process");

static void at_exit_of_thread(void *arg) {
    box_free(static_cast<box *>(arg));
    for (size_t size = 1; size < 300000; size *= 3) free(malloc(size));
    destroyed++;
}

static void of_key(void *arg) { // runs after the thread_local objects, and again for each round
    std::unique_ptr<Hoard> h(static_cast<Hoard *>(arg));
    static thread_local int round = 0; // trivial, so still there
    if (++round < PTHREAD_DESTRUCTOR_ITERATIONS) pthread_setspecific(late, new Hoard("again"));
}

static void body(int i) {
    first.strings[0].append("");
    second = std::make_unique<Hoard>("second");
    __cxa_thread_atexit(at_exit_of_thread, box_make(static_cast<size_t>(100 + i * 997 % 100000), 7), &__dso_handle);
    pthread_setspecific(late, new Hoard("late"));
    try {
        throw std::runtime_error("thrown " + std::to_string(i));
    } catch (const std::exception &e) {
        CHECK(std::string(e.what()) == "thrown " + std::to_string(i));
    }
}

int main() {
    const int threads = 400;
    pthread_key_create(&late, of_key);
    for (int i = 0; i < threads; i += 4) {
        std::vector<std::thread> four;
        for (int j = 0; j < 4; j++) four.emplace_back(body, i + j);
        for (auto &t : four) t.join();
    }
    CHECK(destroyed == threads * (2 + 1 + PTHREAD_DESTRUCTOR_ITERATIONS));
    body(1); // the main thread's own are destroyed when the process exits
    puts("ok");
    return 0;
}
