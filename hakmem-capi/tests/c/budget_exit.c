/* Blocks of a thread's data, which a key's destructor frees: budget_exit nodes|pairs SIZE ROUNDS, 50
 * blocks a round.
 *
 * The key is younger than the allocator's, so this comes after the exit hook. `pairs` allocates in the
 * destructor, too. */
#include "../support/test.h"
#include <pthread.h>

struct node {
    struct node *next;
};

static pthread_key_t key;
static int pairs;
static size_t size;
static long count;

static struct node *make(long n) {
    struct node *list = NULL;
    while (n-- > 0) {
        struct node *node = malloc(size);
        CHECK(node != NULL);
        node->next = list;
        list = node;
    }
    return list;
}

static void destroy(void *arg) {
    struct node *list = arg;
    while (list) {
        struct node *next = list->next;
        free(list);
        list = next;
    }
    for (long i = 0; pairs && i < count; i++) free(make(1));
}

static void *body(void *arg) {
    CHECK(pthread_setspecific(key, make(pairs ? 1 : count)) == 0);
    return arg;
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    pairs = !strcmp(argv[1], "pairs"), size = (size_t)atol(argv[2]), count = 50 * atol(argv[3]);
    free(malloc(1));
    CHECK(pthread_key_create(&key, destroy) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, body, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    return 0;
}
