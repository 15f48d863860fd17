/* Blocks that travel: from P producers to C consumers, or around a ring of threads. */
#include "../support/test.h"
#include <pthread.h>

enum { MOST = 16 };

/* An unbounded queue of boxes, linked through the boxes themselves. */
struct queue {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    box *head, **tail;
    long length;
};

static struct queue queues[MOST];
static long per_producer = 20000, in_flight, checked;
static int producers, consumers, ring;

static void push(struct queue *q, box *b) {
    b->next = NULL;
    pthread_mutex_lock(&q->lock);
    *q->tail = b;
    q->tail = &b->next;
    q->length++;
    pthread_cond_signal(&q->wake);
    pthread_mutex_unlock(&q->lock);
}

/* The next box, or NULL once nothing is in flight any more. */
static box *pop(struct queue *q) {
    pthread_mutex_lock(&q->lock);
    while (!q->head && __atomic_load_n(&in_flight, __ATOMIC_ACQUIRE) > 0) {
        struct timespec soon;
        clock_gettime(CLOCK_REALTIME, &soon);
        soon.tv_nsec += 5000000;
        if (soon.tv_nsec >= 1000000000) soon.tv_sec++, soon.tv_nsec -= 1000000000;
        pthread_cond_timedwait(&q->wake, &q->lock, &soon);
    }
    box *b = q->head;
    if (b) {
        q->head = b->next;
        if (!q->head) q->tail = &q->head;
        q->length--;
    }
    pthread_mutex_unlock(&q->lock);
    return b;
}

static long length(struct queue *q) {
    pthread_mutex_lock(&q->lock);
    long n = q->length;
    pthread_mutex_unlock(&q->lock);
    return n;
}

static void *produce(void *arg) {
    uint64_t state = 0x9e3779b97f4a7c15ULL * ((uintptr_t)arg + 1);
    for (long i = 0; i < per_producer; i++) {
        struct queue *q = &queues[i % consumers];
        while (length(q) > 4000) usleep(200);
        push(q, box_make(random_size(&state, 0), next_random(&state)));
    }
    return NULL;
}

static void *consume(void *arg) {
    struct queue *q = &queues[(uintptr_t)arg];
    for (box *b; (b = pop(q));) {
        box_free(b);
        __atomic_add_fetch(&checked, 1, __ATOMIC_RELAXED);
        __atomic_sub_fetch(&in_flight, 1, __ATOMIC_ACQ_REL);
    }
    return NULL;
}

/* Each box goes once around; on its way some are reallocated, and each hop allocates and frees a little. */
static void *hand_on(void *arg) {
    uintptr_t me = (uintptr_t)arg;
    uint64_t state = 0x9e3779b97f4a7c15ULL * (me + 1);
    for (long i = 0; i < per_producer; i++) {
        box *b = box_make(random_size(&state, 0), (next_random(&state) & ~0xffULL) | (unsigned)ring);
        push(&queues[(me + 1) % (unsigned)ring], b);
    }
    for (box *b; (b = pop(&queues[me]));) {
        box_check(b);
        uint64_t hops = (b->seed & 0xff) - 1;
        if (hops == 0) {
            box_free(b);
            __atomic_add_fetch(&checked, 1, __ATOMIC_RELAXED);
            __atomic_sub_fetch(&in_flight, 1, __ATOMIC_ACQ_REL);
            continue;
        }
        if (next_random(&state) % 4 == 0) {
            size_t size = random_size(&state, sizeof(box)), kept = size < b->size ? size : b->size;
            uint64_t seed = b->seed;
            b = realloc(b, size);
            CHECK(b != NULL && holds(b->bytes, kept - sizeof(box), seed));
            b->size = size;
        }
        b->seed = (b->seed & ~0xffULL) | hops;
        fill(b->bytes, b->size - sizeof(box), b->seed);
        free(malloc(next_random(&state) % 2000));
        push(&queues[(me + 1) % (unsigned)ring], b);
    }
    return NULL;
}

static void start(pthread_t *threads, int *count, void *(*body)(void *), int number) {
    for (uintptr_t i = 0; i < (unsigned)number; i++)
        CHECK(pthread_create(&threads[(*count)++], NULL, body, (void *)i) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc > 3);
    pthread_t threads[2 * MOST];
    int count = 0;
    if (!strcmp(argv[1], "ring")) ring = atoi(argv[2]);
    else producers = atoi(argv[1]), consumers = atoi(argv[2]);
    per_producer = atol(argv[3]);
    CHECK(producers <= MOST && consumers <= MOST && ring <= MOST);
    for (int i = 0; i < MOST; i++) {
        pthread_mutex_init(&queues[i].lock, NULL);
        pthread_cond_init(&queues[i].wake, NULL);
        queues[i].tail = &queues[i].head;
    }
    long all = in_flight = per_producer * (ring ? ring : producers);
    start(threads, &count, hand_on, ring);
    start(threads, &count, consume, consumers);
    start(threads, &count, produce, producers);
    for (int i = 0; i < count; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(checked == all);
    printf("%ld blocks\n", all);
    return 0;
}
