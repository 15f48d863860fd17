/* A plugin: blocks of its own malloc, and frees of what it is given. */
#include <stdlib.h>
#include <string.h>

char *plugin_make(const char *text) {
    char *block = malloc(strlen(text) + 1);
    return block ? strcpy(block, text) : block;
}

void plugin_release(void *block) { free(block); }

void *plugin_malloc(void) { return (void *)malloc; }
