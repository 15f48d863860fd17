/* A library whose constructor holds blocks, as many do, and a program that links it and holds others. */
#include <stdlib.h>

#define HELD 40960
#define OWN 49152

#ifdef LIBRARY
void *held[200];

__attribute__((constructor)) static void hold(void) {
    for (int i = 0; i < 200; i++) held[i] = malloc(HELD);
}
#else
extern void *held[200];
void *own[150];

int main(void) {
    for (int i = 0; i < 150; i++) own[i] = malloc(OWN);
    return held[199] == NULL || own[149] == NULL;
}
#endif
