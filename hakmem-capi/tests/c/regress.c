/* Faults that reviews found, one mode each: regress publish|grow|adjacent|sparse|claimed. */
#include "../support/test.h"
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

static pthread_barrier_t meet;

/* A thread ends while all its slabs wait, empty, on its ready list: letting go of one unmapped the next. */
enum { BLOCKS = 8 * 400 };
static void *blocks[BLOCKS];
static void *owns(void *arg) {
    for (int i = 0; i < BLOCKS; i++) CHECK((blocks[i] = malloc(60000)) != NULL);
    pthread_barrier_wait(&meet);
    pthread_barrier_wait(&meet);
    return arg;
}
static void publish(void) {
    pthread_barrier_init(&meet, NULL, 2);
    for (int round = 0; round < 10; round++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, owns, NULL) == 0);
        pthread_barrier_wait(&meet);
        for (int i = 0; i < BLOCKS - 8; i++) free(blocks[i]);
        pthread_barrier_wait(&meet);
        CHECK(pthread_join(thread, NULL) == 0);
        for (int i = BLOCKS - 8; i < BLOCKS; i++) free(blocks[i]);
    }
}

/* Threads that need the pool's last descriptor at once: one of them was told that there was no memory. */
enum { GROWERS = 4, RUNS = 320 };
static void *grows(void *arg) {
    static __thread void *mine[RUNS];
    pthread_barrier_wait(&meet);
    for (int i = 0; i < RUNS; i++) CHECK((mine[i] = malloc(1000000)) != NULL);
    pthread_barrier_wait(&meet);
    for (int i = 0; i < RUNS; i++) free(mine[i]);
    return arg;
}
static void grow(void) {
    pthread_t threads[GROWERS];
    pthread_barrier_init(&meet, NULL, GROWERS);
    for (int i = 0; i < GROWERS; i++) CHECK(pthread_create(&threads[i], NULL, grows, NULL) == 0);
    for (int i = 0; i < GROWERS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

/* At the limit of the address space, six adjacent free pages in one SuperSlab, and many others with
 * scattered ones. */
static void adjacent(void) {
    static char *runs[20000];
    const uintptr_t superslab = (2 << 20) - 1;
    struct rlimit limit = {256 << 20, 256 << 20};
    int count = 0, found = 0;
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    while (count < 20000 && (runs[count] = malloc(130000)) != NULL) count++;
    for (int i = 30; i < count - 3 && !found; i++)
        if (runs[i + 1] == runs[i] + 131072 && runs[i + 2] == runs[i] + 2 * 131072) found = i;
    CHECK(found > 0);
    for (int i = found; i < found + 3; i++) free(runs[i]);
    for (int i = found + 30; i < count; i++) {
        int page = ((uintptr_t)runs[i] & superslab) >> 16;
        if (page == 3 || page == 9 || page == 15) free(runs[i]);
    }
    CHECK(malloc(6 * 65536 - 100) != NULL);
}

/* Large blocks that are hardly touched must not become resident by huge pages. */
static void sparse(void) {
    long before = resident_kib();
    for (int i = 0; i < 1000; i++) {
        char *block = malloc(1000000);
        CHECK(block != NULL);
        *block = 1;
    }
    long grown = resident_kib() - before;
    dprintf(1, "1,000 blocks of 1 MB, a byte touched in each: %ld KiB\n", grown);
    CHECK(grown < 32 * 1024);
}

/* A fork while another thread has emptied an orphan and is taking it off its list. */
enum { ORPHANS = 8, FREERS = 2 };
/* Whole blocks around half a huge page leave next to nothing of it resident besides. */
static void halves(void) {
    for (size_t size = 900 << 10; size <= 1100 << 10; size += 10 << 10) {
        long before = resident_kib();
        for (int i = 0; i < 64; i++) {
            CHECK((blocks[i] = malloc(size)) != NULL);
            memset(blocks[i], 1, size);
        }
        long grown = resident_kib() - before, asked = 64 * (size >> 10);
        printf("64 blocks of %zu KiB: %ld of %ld KiB\n", size >> 10, grown, asked);
        CHECK(grown <= asked + asked / 6);
        for (int i = 0; i < 64; i++) free(blocks[i]);
        malloc_trim(0);
    }
}

/* Zeroed blocks that are hardly touched stay so when their memory is used again. */
static void zeroed(void) {
    for (size_t mib = 2; mib <= 160; mib += mib / 2) {
        long before = resident_kib(), most = 0;
        for (int round = 0; round < 40; round++) {
            char *p = calloc(mib, 1 << 20);
            CHECK(p != NULL);
            for (size_t at = 0; at < mib << 20; at += mib << 17) {
                CHECK(p[at] == 0 && p[at + 5000] == 0);
                p[at] = 1;
            }
            long grown = resident_kib() - before;
            if (grown > most) most = grown;
            free(p);
        }
        printf("calloc of %zu MiB: %ld KiB\n", mib, most);
        CHECK(most < 1024);
    }
}

/* Nor once they have been filled, before: what was cleared once is not cleared each time. */
static void refilled(void) {
    enum { SIZE = 20 << 20 };
    long before = resident_kib(), now = 0;
    for (int round = 0; round < 30; round++) {
        char *volatile p = malloc(SIZE); /* volatile: or the compiler leaves it out */
        CHECK(p != NULL);
        memset(p, 1, SIZE);
        free(p);
    }
    for (int round = 0; round < 40; round++) {
        char *p = calloc(1, SIZE);
        CHECK(p != NULL && p[SIZE / 2] == 0);
        p[SIZE / 2] = 1;
        now = resident_kib() - before;
        free(p);
    }
    printf("a page touched of 20 MiB: %ld KiB\n", now);
    CHECK(now < 4096);
}

static long faults(void) {
    struct rusage usage;
    CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
    return usage.ru_minflt;
}

/* What realloc cuts off a block that was filled is used again. */
static void cut(void) {
    char *p = malloc(8 << 20);
    CHECK(p != NULL);
    memset(p, 1, 8 << 20);
    long before = faults();
    for (int round = 0; round < 40; round++) {
        CHECK((p = realloc(p, 5 << 20)) != NULL);
        CHECK(malloc_usable_size(p) < 6 << 20);
        CHECK((p = realloc(p, 8 << 20)) != NULL);
        for (size_t at = 0; at < 5 << 20; at += 4096) CHECK(p[at] == 1);
        memset(p, 1, 8 << 20);
    }
    free(p);
    for (int round = 0; round < 40; round++) {
        CHECK((p = malloc(8 << 20)) != NULL);
        memset(p, 1, 8 << 20);
        CHECK((p = realloc(p, 5 << 20)) != NULL);
        free(p);
    }
    long more = faults() - before;
    printf("filled and cut 80 times: %ld page faults\n", more);
    CHECK(more < 4 * 768);
}

/* A buffer that grows and shrinks at the border between size classes and runs is not copied each time. */
static void border(void) {
    char *p = malloc(65537), *was = p;
    CHECK(p != NULL && malloc_usable_size(p) >= 65537);
    memset(p, 1, 65537);
    for (int round = 0; round < 100; round++) {
        CHECK((p = realloc(p, 65536 - 100 * round)) == was);
        CHECK((p = realloc(p, 65537)) == was);
    }
    /* What is left of it is worth a copy. */
    CHECK((p = realloc(p, 49152)) != NULL && malloc_usable_size(p) < 65536);
    for (int at = 0; at < 49152; at++) CHECK(p[at] == 1);
    free(p);
}

static pthread_barrier_t idle;

static void *idles(void *arg) {
    char *block[4];
    for (int i = 0; i < 4; i++) {
        CHECK((block[i] = malloc(200000)) != NULL);
        memset(block[i], 1, 200000);
    }
    for (int i = 0; i < 4; i++) free(block[i]);
    pthread_barrier_wait(&idle);
    pthread_barrier_wait(&idle);
    return arg;
}

/* Hundreds of threads that have freed all and sleep do not keep a shelf each. */
static void idlers(void) {
    enum { MANY = 400 };
    pthread_t thread[MANY];
    CHECK(pthread_barrier_init(&idle, NULL, MANY + 1) == 0);
    long before = resident_kib();
    for (int i = 0; i < MANY; i++) CHECK(pthread_create(&thread[i], NULL, idles, NULL) == 0);
    pthread_barrier_wait(&idle);
    long grown = resident_kib() - before;
    printf("%ld KiB for each\n", grown / MANY);
    pthread_barrier_wait(&idle);
    for (int i = 0; i < MANY; i++) CHECK(pthread_join(thread[i], NULL) == 0);
    CHECK(grown / MANY < 400);
}

static void *orphans[ORPHANS];
static atomic_int go, ready;
static void *leaves_one(void *arg) {
    CHECK((orphans[(long)arg] = malloc(4096)) != NULL);
    pthread_barrier_wait(&meet);
    return NULL;
}
static void *empties(void *arg) {
    free(malloc(64));
    free(orphans[(long)arg + ORPHANS / 2]);
    atomic_fetch_add(&ready, 1);
    while (!atomic_load(&go)) sched_yield();
    usleep(2000);
    free(orphans[(long)arg]);
    pause();
    return NULL;
}
static void *adopts(void *arg) {
    static __thread void *mine[1000];
    for (int i = 0; i < 1000; i++) CHECK((mine[i] = malloc(4096)) != NULL);
    for (int i = 0; i < 1000; i++) free(mine[i]);
    return arg;
}
static void claimed(void) {
    size_t ballast = 512u << 20; /* makes the fork slow */
    char *memory = mmap(NULL, ballast, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_t thread, owners[ORPHANS];
    /* EINVAL: a kernel without huge pages. */
    CHECK(memory != MAP_FAILED && (madvise(memory, ballast, MADV_NOHUGEPAGE) == 0 || errno == EINVAL));
    for (size_t i = 0; i < ballast; i += 4096) memory[i] = 1;
    pthread_barrier_init(&meet, NULL, ORPHANS);
    free(malloc(64));
    for (long i = 0; i < ORPHANS; i++) CHECK(pthread_create(&owners[i], NULL, leaves_one, (void *)i) == 0);
    for (int i = 0; i < ORPHANS; i++) CHECK(pthread_join(owners[i], NULL) == 0);
    for (long i = 0; i < FREERS; i++) CHECK(pthread_create(&thread, NULL, empties, (void *)i) == 0);
    while (atomic_load(&ready) < FREERS) sched_yield();
    atomic_store(&go, 1);
    pid_t child = fork();
    if (child == 0) {
        end_if_hung(20);
        for (int i = 0; i < 4; i++) {
            CHECK(pthread_create(&thread, NULL, adopts, NULL) == 0);
            CHECK(pthread_join(thread, NULL) == 0);
        }
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    if (!strcmp(argv[1], "publish")) publish();
    else if (!strcmp(argv[1], "grow")) grow();
    else if (!strcmp(argv[1], "adjacent")) adjacent();
    else if (!strcmp(argv[1], "sparse")) sparse();
    else if (!strcmp(argv[1], "halves")) halves();
    else if (!strcmp(argv[1], "zeroed")) zeroed();
    else if (!strcmp(argv[1], "refilled")) refilled();
    else if (!strcmp(argv[1], "border")) border();
    else if (!strcmp(argv[1], "cut")) cut();
    else if (!strcmp(argv[1], "idlers")) idlers();
    else if (!strcmp(argv[1], "claimed")) claimed();
    else return 2;
    return 0;
}
