/* The second names that glibc has for the malloc family: each block is as good as one by the first name. */
#include "api_check.h"
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void *__libc_valloc(size_t);
void *__libc_pvalloc(size_t);
void __libc_free(void *);
int __libc_mallopt(int, int);

int main(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t n = 0; n < 3000000; n = n * 5 / 4 + 1) {
        unsigned char *p = __libc_malloc(n), *q = __libc_calloc(n, 1), *a = __libc_memalign(256, n);
        unsigned char *v = __libc_valloc(n), *w = __libc_pvalloc(n);
        CHECKN(p && q && a && v && w, n);
        CHECKN(malloc_usable_size(p) >= n && malloc_usable_size(w) >= (n + page - 1) / page * page, n);
        CHECKN((uintptr_t)a % 256 == 0 && (uintptr_t)v % page == 0 && (uintptr_t)w % page == 0, n);
        for (size_t i = 0; i < n; i++) CHECKN(q[i] == 0, n);
        p = realloc(p, n + 100);
        q = __libc_realloc(q, n + 100);
        CHECKN(p && q, n);
        __libc_free(p);
        free(q);
        free(a);
        __libc_free(v);
        __libc_free(w);
        __libc_free(malloc(n));
    }
    __libc_free(NULL);
    CHECK(__libc_mallopt(1, 1) == 1);
    puts("second names ok");
    return 0;
}
