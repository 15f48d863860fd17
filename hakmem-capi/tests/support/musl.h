/* What glibc's headers declare and musl's do not, so that programs made for glibc compile: functions that the
 * library has all the same. Weak: a program that is linked without it finds them in what is preloaded. */
#ifndef HAKMEM_MUSL_H
#define HAKMEM_MUSL_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stddef.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif
struct mallinfo2 {
    size_t arena, ordblks, smblks, hblks, hblkhd, usmblks, fsmblks, uordblks, fordblks, keepcost;
};
__attribute__((weak)) struct mallinfo2 mallinfo2(void);
__attribute__((weak)) int malloc_trim(size_t);
__attribute__((weak)) void *pvalloc(size_t);
__attribute__((weak)) void cfree(void *);
#ifdef __cplusplus
}
#endif
#endif
