/* Asks itself for statistics, as `hakmem stats --pid` does from outside (src/api/control.rs has the layout),
 * and looks whether the figures hold while the answer is kept, in the child of a fork, and after it. */
#include "api_check.h"
#include <hakmem.h>
#include <sys/wait.h>

struct control {
    char magic[8];
    uint32_t request, state;
    char others[1552];
    char knows[8];
    uint32_t asked, answered;
    uint64_t text, length;
};
extern volatile struct control *const __hak_control;
#define TEXT (64 * KIB)

/* Whether freed blocks, of which hardened mode makes more, come between two looks. */
static int exact = 1;
#define SAME(a, b) CHECKN(!exact || (a) == (b), (a) - (b))

/* Writes the byte that is for statistics, and allocates what no cache has. */
static void ask(unsigned char request) {
    ((volatile unsigned char *)&__hak_control->request)[1] = request;
    errno = 7;
    void *block = hak_malloc(3 * MIB);
    CHECK(errno == 7 && block != NULL);
    hak_free(block);
}

static struct hak_stats_t figures(void) {
    struct hak_stats_t now;
    hak_stats(&now, sizeof now);
    CHECKN(now.bytes_mapped == now.resident_bytes + now.retained_bytes,
           now.bytes_mapped - now.resident_bytes - now.retained_bytes);
    CHECK(now.resident_bytes
          == now.active_bytes - now.untouched_bytes + now.dirty_bytes + now.metadata_bytes);
    return now;
}

static uint64_t member(const char *name) {
    const char *at = strstr((const char *)(uintptr_t)__hak_control->text, name);
    CHECK(at != NULL);
    return strtoull(at + strlen(name), NULL, 10);
}

int main(int argc, char **argv) {
    int confines = argc > 1 && strcmp(argv[1], "confined") == 0;
    exact = getenv("HAKMEM_HARDENED") == NULL;
    CHECK(memcmp((const char *)__hak_control->knows, "HAKSTAT1", 8) == 0);
    hak_free(hak_malloc(100));
    hak_free(hak_malloc(3 * MIB));
    if (confines) {
        hak_few_syscalls();
        __hak_control->asked = 3;
        ask(1);
        CHECK(__hak_control->answered == 3 && __hak_control->text == 0 && __hak_control->length == 0);
        ask(2);
        return 0;
    }
    struct hak_stats_t before = figures();
    for (uint32_t number = 3; number < 9; number += 2) {
        __hak_control->asked = number;
        ask(1);
        CHECKN(__hak_control->answered == number && __hak_control->text != 0, __hak_control->answered);
        const char *text = (const char *)(uintptr_t)__hak_control->text;
        CHECK(text[__hak_control->length - 1] == '\n' && text[__hak_control->length] == 0);
        /* The answer is not in the figures that it gives, nor is an earlier one. */
        SAME(member("\"bytes_mapped\":"), before.bytes_mapped);
        CHECK(member("\"bytes_mapped\":") == member("\"resident_bytes\":") + member("\"retained_bytes\":"));
        struct hak_stats_t now = figures();
        SAME(now.bytes_mapped, before.bytes_mapped + TEXT);
        SAME(now.metadata_bytes, before.metadata_bytes + TEXT);
    }
    /* What is asked while a process forks is asked of the parent, and the answer is the parent's. */
    ((volatile unsigned char *)&__hak_control->request)[1] = 1;
    pid_t child = fork();
    if (child == 0) {
        CHECK(__hak_control->request == 0);
        struct hak_stats_t now = figures();
        CHECKN(!exact || now.bytes_mapped < before.bytes_mapped + TEXT, now.bytes_mapped - before.bytes_mapped);
        __hak_control->asked = 20;
        ask(1);
        CHECK(__hak_control->answered == 20);
        _exit(0);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECKN(status == 0, status);
    CHECK(__hak_control->request == 1 << 8);
    /* That one has been answered, and is being read. */
    uint64_t text = __hak_control->text;
    ask(1);
    CHECK(__hak_control->text == text && member("\"pid\":") == (uint64_t)getpid());
    ask(2);
    struct hak_stats_t after = figures();
    SAME(after.bytes_mapped, before.bytes_mapped);
    SAME(after.metadata_bytes, before.metadata_bytes);
    puts("asked");
    return 0;
}
