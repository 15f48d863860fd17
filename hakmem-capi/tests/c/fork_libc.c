/* fork() while other threads are inside the C library, holding its locks and allocating under them. An
 * allocator that holds a lock of its own across a fork waits for one of those threads, which waits for
 * the allocator.
 *
 *   fork_libc thread|signal|raw MODE FORKS
 *
 * thread: a thread forks in a loop. signal: a signal handler does, which has interrupted a thread that is
 * inside malloc or free, most of the time. raw: _Fork, of which no handler of ours hears. MODE: what two
 * other threads do: stdio, names, loader, pipes, environment, threads, close, none, or all of these. */
#include "../support/test.h"
#include <link.h>
#include <netdb.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/wait.h>

static volatile int stop;
static long done;
static volatile long forks, wanted;
static FILE *lines;

/* getline allocates with the FILE's lock held; fflush(NULL) waits for that with the list of all FILEs
 * locked, as fork does. */
static void stdio(int first) {
    if (first) {
        char *line = NULL;
        size_t size = 0;
        rewind(lines);
        while (getline(&line, &size, lines) > 0) continue;
        free(line);
    } else {
        fflush(NULL);
    }
}

static void names(int first) {
    struct addrinfo *list = NULL, hints = {.ai_family = AF_INET};
    if (getaddrinfo(first ? "localhost" : "127.0.0.1", "80", &hints, &list) == 0) freeaddrinfo(list);
}

static int each_object(struct dl_phdr_info *info, size_t size, void *arg) {
    (void)info, (void)size, (void)arg;
    free(malloc(next_random(arg) % 200000));
    return 0;
}

static void loader(int first) {
    if (first) {
        void *handle = dlopen("libresolv.so.2", RTLD_NOW);
        CHECK(handle != NULL && dlclose(handle) == 0);
    } else {
        uint64_t state = (uint64_t)done * 2 + 1;
        dl_iterate_phdr(each_object, &state);
    }
}

static void pipes(int first) {
    (void)first;
    FILE *pipe = popen(":", "r");
    CHECK(pipe != NULL);
    pclose(pipe);
}

static void environment(int first) {
    static char text[2][20000];
    memset(text[first], 'x', 1000 + (size_t)done % 18000);
    CHECK(setenv(first ? "FORK_LIBC_A" : "FORK_LIBC_B", text[first], 1) == 0);
}

static void *short_life(void *arg) {
    free(malloc(100));
    return arg;
}

static void threads(int first) {
    pthread_t thread;
    (void)first;
    CHECK(pthread_create(&thread, NULL, short_life, NULL) == 0 && pthread_join(thread, NULL) == 0);
}

static void closing(int first) {
    FILE *file = fopen("/dev/null", first ? "r" : "w");
    CHECK(file != NULL && fclose(file) == 0);
}

static void nothing(int first) {
    uint64_t state = (uint64_t)done * 2 + (unsigned)first + 1;
    free(malloc(next_random(&state) % 300000));
}

static const struct mode {
    const char *name;
    void (*once)(int first);
} modes[] = {{"stdio", stdio},     {"names", names},     {"loader", loader}, {"pipes", pipes}, {"environment", environment},
             {"threads", threads}, {"close", closing}, {"none", nothing}};
enum { MODES = sizeof modes / sizeof *modes };
static const char *mode;

static void *work(void *arg) {
    int first = arg != NULL;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    for (unsigned i = 0; !stop; i++) {
        for (unsigned m = 0; m < MODES; m++)
            if (!strcmp(mode, modes[m].name) || (!strcmp(mode, "all") && i % MODES == m)) modes[m].once(first);
        __atomic_add_fetch(&done, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void fork_once(int raw) {
    int status, before = errno;
    pid_t pid = raw ? _Fork() : fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        end_if_hung(30);
        if (forks % 2) { /* more than what is at hand: it comes from where other threads were at work */
            void *kept[40];
            for (int i = 0; i < 40; i++) CHECK((kept[i] = malloc(1000u << i % 9)) != NULL);
            for (int i = 0; i < 40; i++) free(kept[i]);
        }
        _exit(0);
    }
    while (waitpid(pid, &status, 0) != pid) CHECK(errno == EINTR);
    if (status) dprintf(2, "the child of fork %ld ended with status %#x\n", forks, status);
    CHECK(status == 0);
    errno = before;
}

/* The child of a fork in a handler must not allocate in the handler; it returns into what was
 * interrupted, and then ends. */
static volatile sig_atomic_t in_child;
static sem_t handled;

static void on_signal(int number) {
    int before = errno;
    (void)number;
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        end_if_hung(30);
        in_child = 1;
        return;
    }
    int status;
    while (waitpid(pid, &status, 0) != pid) CHECK(errno == EINTR);
    if (status) dprintf(2, "the child of fork %ld ended with status %#x\n", forks, status);
    CHECK(status == 0);
    forks++;
    sem_post(&handled);
    errno = before;
}

/* Sizes of the pool and the large cache for the most part: there the locks are. */
static void *interrupted(void *arg) {
    uint64_t state = 88172645463325252ULL;
    void *blocks[16] = {0};
    (void)arg;
    while (forks < wanted) {
        unsigned at = next_random(&state) % 16;
        free(blocks[at]);
        size_t size = next_random(&state) % 4 ? 20000 + next_random(&state) % 900000 : next_random(&state) % 3000000;
        CHECK((blocks[at] = malloc(size)) != NULL);
        if (in_child) { /* some more, with the same heap */
            for (int i = 0; i < 200; i++) {
                at = next_random(&state) % 16;
                free(blocks[at]);
                CHECK((blocks[at] = malloc(1 + next_random(&state) % 400000)) != NULL);
                memset(blocks[at], 1, 1);
            }
            _exit(0);
        }
    }
    for (int i = 0; i < 16; i++) free(blocks[i]);
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    pthread_t workers[2], thread;
    mode = argv[2];
    wanted = atol(argv[3]);
    CHECK((lines = tmpfile()) != NULL);
    for (int i = 1; i < 40; i++) /* up to where blocks are mappings */
        for (int j = 0; j < i * 20000; j++) putc(j ? 'x' : '\n', lines);
    fflush(lines);
    /* A new variable moves `environ`, from which popen in another thread is starting a process; glibc's popen
     * says ENOMEM for that, with any malloc. Other values of the same variables move nothing. */
    CHECK(setenv("FORK_LIBC_A", "", 1) == 0 && setenv("FORK_LIBC_B", "", 1) == 0);
    for (uintptr_t i = 0; i < 2; i++) CHECK(pthread_create(&workers[i], NULL, work, (void *)i) == 0);
    if (!strcmp(argv[1], "signal")) {
        CHECK(sem_init(&handled, 0, 0) == 0);
        struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
        CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
        CHECK(pthread_create(&thread, NULL, interrupted, NULL) == 0);
        for (long i = 0; i < wanted; i++) {
            usleep(100);
            CHECK(pthread_kill(thread, SIGUSR1) == 0);
            while (sem_wait(&handled) != 0) CHECK(errno == EINTR);
        }
        CHECK(pthread_join(thread, NULL) == 0);
    } else {
        int raw = !strcmp(argv[1], "raw");
        for (; forks < wanted; forks++) {
            fork_once(raw);
            free(malloc((size_t)forks * 1000 % 300000));
        }
    }
    stop = 1;
    for (int i = 0; i < 2; i++) CHECK(pthread_join(workers[i], NULL) == 0);
    dprintf(1, "%s, %s: %ld forks beside %ld calls\n", argv[1], mode, forks, done);
    return 0;
}
