/* Exits with 3, or after -c runs a shell command; tests link it in several ways. */
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) { return argc > 2 && !strcmp(argv[1], "-c") ? system(argv[2]) : 3; }
