/* With -DNAME=.. and -DPAD=..: a library that allocates in a function of that name, so many bytes further on.
 *
 * Else: plugins [write FILE] LIBRARY...: loads each, has it allocate 50 blocks that stay, and unloads it. With
 * `write` a profile is written to FILE after each. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#ifdef NAME
#define TEXT(number) #number
#define SKIP(number) __asm__(".text\n.skip " TEXT(number))
SKIP(PAD);

void *volatile block;
__attribute__((noinline)) void NAME(void) { block = malloc(40960); }
void entry(void) { NAME(), block = NULL; }
#else
extern int hak_profile_write(const char *) __attribute__((weak));

int main(int count, char **words) {
    int first = 1;
    const char *file = NULL;
    if (count > 2 && !strcmp(words[1], "write")) file = words[2], first = 3;
    for (int i = first; i < count; i++) {
        void *library = dlopen(words[i], RTLD_NOW);
        if (!library) return 2;
        void (*entry)(void) = (void (*)(void))dlsym(library, "entry");
        for (int n = 0; n < 50; n++) entry();
        if (dlclose(library)) return 3;
        if (file && hak_profile_write(file)) return 4;
    }
    return 0;
}
#endif
