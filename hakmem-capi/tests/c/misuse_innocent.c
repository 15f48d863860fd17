/* A correct program that looks as guilty as can be: it must never be accused.
 *
 * What a block holds while it is the program's, is the program's business. Here blocks are freed with
 * anything in them: what was in them when they came (also what an earlier tenant of the same address
 * found there), copies of what other blocks came with, addresses of live and of freed blocks, zeros, ones
 * and noise. If a mark left in a free block ever counted as proof, this would find it. Also checks that
 * calloc clears all that. */
#include "../support/test.h"
#include <pthread.h>

enum { THREADS = 3, SLOTS = 300, SHARED = 64, WORDS = 16, REMEMBERED = 1 << 14 };

typedef struct {
    unsigned char *at;
    size_t size;
    uint64_t sum;
} tenant;

/* What a block at this address held when it was handed out, by address. Racy on purpose: any bytes will
 * do. */
static struct {
    void *at;
    uint64_t words[WORDS];
} memory[REMEMBERED];

static tenant *shared[SHARED];
static long rounds = 400000;

static size_t visible(const tenant *t) { return t->size < 8 * WORDS ? t->size : 8 * WORDS; }

static uint64_t sum(const tenant *t) {
    uint64_t s = t->size;
    for (size_t i = 0; i < visible(t); i++) s = s * 31 + t->at[i];
    return s;
}

static void scribble(tenant *t, uint64_t *state) {
    uint64_t words[WORDS], draw = next_random(state);
    unsigned own = ((uintptr_t)t->at / 8) % REMEMBERED, other = (draw >> 20) % REMEMBERED;
    switch (draw % 10) {
    case 0: /* as it came */
    case 1: return;
    case 2: /* as an earlier tenant of this address found it */
    case 3:
        if (memory[own].at != t->at) return;
        memcpy(words, memory[own].words, sizeof words);
        break;
    case 4: /* as another block came */
    case 5: memcpy(words, memory[other].words, sizeof words); break;
    case 6: /* its own address, in every word */
        for (int i = 0; i < WORDS; i++) words[i] = (uintptr_t)t->at + (draw >> 60 & 1) * 8;
        break;
    case 7: /* addresses of others, live or freed */
        for (int i = 0; i < WORDS; i++) words[i] = (uintptr_t)memory[(other + (unsigned)i) % REMEMBERED].at;
        break;
    case 8: memset(words, draw >> 60 & 1 ? 0xff : 0, sizeof words); break;
    default:
        for (int i = 0; i < WORDS; i++) words[i] = next_random(state);
    }
    if (draw >> 59 & 1) { /* one word only, often the second */
        size_t word = draw >> 57 & 1 ? 1 : (draw >> 40) % WORDS;
        if (8 * word + 8 <= t->size) memcpy(t->at + 8 * word, &words[word], 8);
    } else {
        memcpy(t->at, words, visible(t));
    }
}

static void move_in(tenant *t, uint64_t *state) {
    static const size_t sizes[] = {8, 16, 24, 32, 48, 64, 100, 128, 200, 256, 500, 1000, 3000, 9000, 40000};
    uint64_t draw = next_random(state);
    t->size = sizes[draw % 16 % 15];
    if (draw >> 56 == 0) t->size = 70000 + (draw >> 8) % 200000;
    if (draw >> 8 & 3) {
        t->at = malloc(t->size);
    } else {
        t->at = calloc(1, t->size);
        CHECK(t->at != NULL);
        for (size_t i = 0; i < t->size; i++) CHECK(t->at[i] == 0);
    }
    CHECK(t->at != NULL);
    unsigned own = ((uintptr_t)t->at / 8) % REMEMBERED;
    if (draw >> 16 & 1) {
        memory[own].at = t->at;
        memcpy(memory[own].words, t->at, visible(t));
    }
    scribble(t, state);
    t->sum = sum(t);
}

static void move_out(tenant *t, uint64_t *state) {
    CHECK(sum(t) == t->sum);
    uint64_t draw = next_random(state);
    if (draw % 8 == 0) {
        size_t size = 1 + (draw >> 8) % (t->size * 2);
        t->at = realloc(t->at, size);
        CHECK(t->at != NULL);
        t->size = size;
    }
    scribble(t, state);
    free(t->at);
    t->at = NULL;
}

static void *live(void *arg) {
    uint64_t state = 0x9e3779b97f4a7c15ULL * ((uintptr_t)arg + 1);
    static __thread tenant tenants[SLOTS];
    for (long i = 0; i < rounds; i++) {
        tenant *t = &tenants[next_random(&state) % SLOTS];
        if (t->at) move_out(t, &state);
        else move_in(t, &state);
        if (i % 16 == 0) { /* one goes to whoever comes next */
            tenant *parcel = malloc(sizeof *parcel);
            CHECK(parcel != NULL);
            move_in(parcel, &state);
            parcel = __atomic_exchange_n(&shared[next_random(&state) % SHARED], parcel, __ATOMIC_ACQ_REL);
            if (parcel) {
                move_out(parcel, &state);
                free(parcel);
            }
        }
        if (i % 5000 == 0) malloc_trim(0);
    }
    for (int i = 0; i < SLOTS; i++)
        if (tenants[i].at) move_out(&tenants[i], &state);
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[THREADS];
    if (argc > 1) rounds = atol(argv[1]);
    for (uintptr_t generation = 0; generation < 3; generation++) {
        for (uintptr_t i = 0; i < THREADS; i++)
            CHECK(pthread_create(&threads[i], NULL, live, (void *)(generation * 8 + i)) == 0);
        for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    }
    malloc_trim(0);
    puts("ok");
    return 0;
}
