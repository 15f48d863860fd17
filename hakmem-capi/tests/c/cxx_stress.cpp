// Containers in many threads, with blocks that die in another thread than the one that made them.
#include "api_check.h"
#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

struct alignas(64) Counter {
    std::atomic<long> live{0};
};
static Counter counter;

struct Shape {
    virtual ~Shape() { counter.live--; }
    virtual std::size_t weight() const = 0;
    Shape() { counter.live++; }
};
// Deleted through the base: the sized delete gets the size of the whole.
template <std::size_t N> struct Body : Shape {
    char bytes[N];
    Body() { memset(bytes, static_cast<int>(N), N); }
    ~Body() override {
        for (char byte : bytes) CHECKN(byte == static_cast<char>(N), N);
    }
    std::size_t weight() const override { return N; }
};

static std::unique_ptr<Shape> make(std::size_t kind) {
    switch (kind % 6) {
    case 0: return std::make_unique<Body<1>>();
    case 1: return std::make_unique<Body<40>>();
    case 2: return std::make_unique<Body<200>>();
    case 3: return std::make_unique<Body<1500>>();
    case 4: return std::make_unique<Body<9000>>();
    default: return std::make_unique<Body<70000>>();
    }
}

struct Parcel {
    std::vector<std::string> lines;
    std::map<int, std::string> index;
    std::vector<std::unique_ptr<Shape>> shapes;
};

static std::mutex gate;
static std::condition_variable more;
static std::deque<std::shared_ptr<Parcel>> belt;

static std::string line(std::size_t i) { return std::string(i % 300 + 1, static_cast<char>('a' + i % 26)); }

static void producer(std::size_t seed, std::size_t rounds) {
    uint64_t random = seed * 77 + 1;
    for (std::size_t round = 0; round < rounds; round++) {
        auto parcel = std::make_shared<Parcel>();
        for (std::size_t i = 0; i < 60; i++) {
            parcel->lines.push_back(line(i));
            parcel->index[static_cast<int>(next_random(&random) % 500)] = line(i * 7);
            if (i % 4 == 0) parcel->shapes.push_back(make(next_random(&random)));
        }
        std::unordered_map<std::string, std::list<int>> words;
        for (int i = 0; i < 80; i++) words[line(next_random(&random) % 40)].push_back(i);
        std::size_t total = 0;
        for (auto &entry : words) total += entry.second.size();
        CHECKN(total == 80, total);
        std::lock_guard<std::mutex> lock(gate);
        belt.push_back(std::move(parcel));
        more.notify_one();
    }
}

static void consumer(std::size_t parcels) {
    for (std::size_t n = 0; n < parcels; n++) {
        std::shared_ptr<Parcel> parcel;
        {
            std::unique_lock<std::mutex> lock(gate);
            more.wait(lock, [] { return !belt.empty(); });
            parcel = std::move(belt.front());
            belt.pop_front();
        }
        for (std::size_t i = 0; i < parcel->lines.size(); i++) CHECKN(parcel->lines[i] == line(i), i);
        for (auto &entry : parcel->index) CHECK(entry.second.find_first_not_of(entry.second[0]) == std::string::npos);
        for (auto &shape : parcel->shapes) CHECK(shape->weight() > 0);
    }
}

int main() {
    for (int wave = 0; wave < 3; wave++) {
        std::vector<std::thread> threads;
        for (std::size_t i = 0; i < 4; i++) threads.emplace_back(producer, i + 1, 500);
        for (std::size_t i = 0; i < 4; i++) threads.emplace_back(consumer, 500);
        for (auto &thread : threads) thread.join();
        CHECK(belt.empty());
        CHECKN(counter.live == 0, counter.live);
    }
    malloc_trim(0);
    puts("stress ok");
}
