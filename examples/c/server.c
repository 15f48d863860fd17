/* A small server that grows. docs/case-growing-server.md finds out why.
 *
 *   server serve PORT             answers "SESSION PAGE KEEP" lines on 127.0.0.1; port 0: any that is free
 *   server load PORT REQUESTS     visitors: each asks for five pages and never comes back */
#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BUCKETS = 4096, PAGES = 200, PAGE = 20000, WORKERS = 4, VISITS = 5 };
/* How long a session lives after its last request, in milliseconds: with and without "stay logged in". */
enum { SHORT = 300, LONG = 24 * 3600 * 1000 };

static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---- Sessions: found by their names, and in the order in which they were last used. */

struct session {
    struct session *next, *older, *newer;
    long expires;
    int requests, keep;
    char name[32];
    char basket[900];
};

struct queue {
    struct session *oldest, *newest;
};

static struct session *sessions[BUCKETS];
static struct queue queue;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct session **bucket(const char *name) {
    unsigned hash = 5381;
    while (*name) hash = hash * 33 + (unsigned char)*name++;
    return &sessions[hash % BUCKETS];
}

static void leave(struct queue *q, struct session *s) {
    *(s->older ? &s->older->newer : &q->oldest) = s->newer;
    *(s->newer ? &s->newer->older : &q->newest) = s->older;
}

static void enter(struct queue *q, struct session *s) {
    s->older = q->newest, s->newer = NULL;
    *(q->newest ? &q->newest->newer : &q->oldest) = s;
    q->newest = s;
}

static struct session *session_new(const char *name, int keep) {
    struct session *s = calloc(1, sizeof *s), **first = bucket(name);
    if (!s) abort();
    snprintf(s->name, sizeof s->name, "%s", name);
    s->keep = keep;
    s->next = *first;
    return *first = s;
}

/* The sessions that nobody has used for long enough are the oldest ones. */
static void forget_sessions(void) {
    struct session *s;
    while ((s = queue.oldest) && s->expires <= now()) {
        struct session **at = bucket(s->name);
        while (*at != s) at = &(*at)->next;
        *at = s->next;
        leave(&queue, s);
        free(s);
    }
}

static int use_session(const char *name, int keep) {
    pthread_mutex_lock(&lock);
    forget_sessions();
    struct session *s = *bucket(name);
    while (s && strcmp(s->name, name)) s = s->next;
    if (s) leave(&queue, s);
    else s = session_new(name, keep);
    enter(&queue, s);
    s->expires = now() + (s->keep ? LONG : SHORT);
    int requests = ++s->requests;
    pthread_mutex_unlock(&lock);
    return requests;
}

/* ---- Pages: made once, and kept. */

static char *pages[PAGES];

static const char *page(int number) {
    static pthread_mutex_t pages_lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&pages_lock);
    if (!pages[number]) {
        if (!(pages[number] = malloc(PAGE))) abort();
        memset(pages[number], 'a' + number % 26, PAGE - 1);
        pages[number][PAGE - 1] = 0;
    }
    pthread_mutex_unlock(&pages_lock);
    return pages[number];
}

/* ---- The server. */

static void answer(FILE *peer, const char *name, int number, int keep) {
    char *text = malloc(PAGE + 100);
    if (!text) abort();
    int length = snprintf(text, PAGE + 100, "%s, request %d: %s\n", name, use_session(name, keep), page(number));
    fprintf(peer, "%d\n", length);
    fflush(peer);
    free(text);
}

static void *worker(void *listening) {
    for (;;) {
        FILE *peer = fdopen(accept(*(int *)listening, NULL, NULL), "r+");
        char line[100], name[32];
        int number, keep;
        while (peer && fgets(line, sizeof line, peer))
            if (sscanf(line, "%31s %d %d", name, &number, &keep) == 3 && number >= 0 && number < PAGES)
                answer(peer, name, number, keep);
        if (peer) fclose(peer);
    }
    return NULL;
}

static struct sockaddr_in address(int port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return a;
}

static int serve(int port) {
    struct sockaddr_in a = address(port);
    socklen_t size = sizeof a;
    int listening = socket(AF_INET, SOCK_STREAM, 0), signal, yes = 1;
    setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listening, (struct sockaddr *)&a, size) || listen(listening, 100) ||
        getsockname(listening, (struct sockaddr *)&a, &size)) {
        perror("server");
        return 1;
    }
    /* Ctrl-C ends it. */
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);
    printf("process %d, port %d\n", getpid(), ntohs(a.sin_port));
    fflush(stdout);
    for (int i = 0; i < WORKERS; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, worker, &listening)) return 1;
    }
    sigwait(&ends, &signal);
    return 0;
}

/* ---- The visitors. */

static int port, requests;

static void *visitor(void *number) {
    struct sockaddr_in a = address(port);
    int s = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(s, (struct sockaddr *)&a, sizeof a)) {
        perror("load");
        exit(1);
    }
    FILE *server = fdopen(s, "r+");
    char line[100];
    for (int i = 0; i < requests / WORKERS; i++) {
        /* Early on, one of them stays logged in. */
        int visit = i / VISITS, keep = *(int *)number == 0 && visit == 100;
        fprintf(server, "v%d-%d %d %d\n", *(int *)number, visit, i * 7 % PAGES, keep);
        fflush(server);
        if (!fgets(line, sizeof line, server)) break;
        usleep(200);
    }
    fclose(server);
    return NULL;
}

static int load(void) {
    static int numbers[WORKERS];
    pthread_t threads[WORKERS];
    for (int i = 0; i < WORKERS; i++) {
        numbers[i] = i;
        if (pthread_create(&threads[i], NULL, visitor, &numbers[i])) return 1;
    }
    for (int i = 0; i < WORKERS; i++) pthread_join(threads[i], NULL);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "serve")) return serve(atoi(argv[2]));
    if (argc == 4 && !strcmp(argv[1], "load")) {
        port = atoi(argv[2]), requests = atoi(argv[3]);
        return load();
    }
    fprintf(stderr, "usage: server serve PORT | server load PORT REQUESTS\n");
    return 2;
}
