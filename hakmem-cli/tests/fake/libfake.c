/* Stands in for libhakmem.so where a test is about the command alone: writes the same records with
 * figures that a test can know beforehand. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *hak_version(void) { return "9.8.7"; }

static void record(const char *rest) {
    const char *format = getenv("HAKMEM_STATS"), *path = getenv("HAKMEM_STATS_FILE");
    if (!format || strcmp(format, "json") || !path)
        return;
    FILE *file = fopen(path, "a");
    if (!file)
        return;
    fprintf(file, "{\"hakmem\":\"9.8.7\",%s\n", rest);
    fclose(file);
}

/* "Writes" a profile: a copy of the file that the test has made. */
static void profile(void) {
    const char *prefix = getenv("HAKMEM_PROFILE"), *path = getenv("FAKE_PROFILE");
    if (!prefix || !path)
        return;
    char name[1000];
    snprintf(name, sizeof name, "%s.%d.hakprof", prefix, getpid());
    FILE *from = fopen(path, "r"), *to = fopen(name, "w");
    for (int c; from && to && (c = getc(from)) != EOF;)
        putc(c, to);
    if (from)
        fclose(from);
    if (to)
        fclose(to);
}

__attribute__((constructor)) static void start(void) {
    profile();
    char text[100];
    snprintf(text, sizeof text, "\"event\":\"start\",\"pid\":%d}", getpid());
    record(text);
}

__attribute__((destructor)) static void leave(void) {
    char text[1000];
    const char *magazine = getenv("HAKMEM_MAGAZINE");
    snprintf(text, sizeof text, "\"event\":\"exit\",\"pid\":%d,\"allocations\":%d,\"bytes_mapped\":%d,"
             "\"allocated_bytes\":1048576,\"active_bytes\":2097152,\"cached_bytes\":262144,\"free_bytes\":262144,"
             "\"fresh_bytes\":524288,\"slack_bytes\":0,\"untouched_bytes\":524288,\"dirty_bytes\":458752,"
             "\"metadata_bytes\":65536,\"resident_bytes\":2097152,\"retained_bytes\":2097152,\"classes\":[{"
             "\"class\":\"48\",\"block_bytes\":48,\"blocks\":1234,\"allocated_bytes\":59232,\"cached_blocks\":5,"
             "\"free_blocks\":6,\"fresh_blocks\":7,\"slabs\":1,\"slack_bytes\":16,\"active_bytes\":65536}]}",
             getpid(), magazine && !strcmp(magazine, "off") ? 4242 : 17, 4194304);
    record(text);
}
