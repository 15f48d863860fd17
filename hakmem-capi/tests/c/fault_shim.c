/* A library to preload before the allocator: fails one call that libhakmem.so makes to the system, or to
 * what the C library makes of it, and no other; calls of the program, of the C library itself and of the
 * loader pass.
 *
 * What the library calls by a name is replaced here. System calls that it makes by the processor's instruction
 * are stopped by a filter (seccomp) that looks where the instruction lies: the kernel sends the thread a SIGSYS
 * in their place, whose handler makes them from here, or fails them.
 *
 *   FAULT="n"      the n-th call of the process fails, with the error that such a call is likeliest to have
 *   FAULT="n 1"    with another error, where there is one
 *   FAULT="0 0 name"   the first call of this name
 *
 * A line on standard error names the call that has failed. What cannot fail is not counted: to wake by a
 * futex, to close, to ask for a number of one's own. A wait ends early, as by a signal. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

extern const char *hak_version(void) __attribute__((weak));

static long chosen = -1, other, calls;
static const char *kind;
static int kind_has_failed;
static uintptr_t from, to;

static long raw(long n, long a, long b, long c, long d, long e, long f) {
    long result;
#if defined(__x86_64__)
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "0"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = n, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c,
                  x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    result = x0;
#endif
    return result;
}

static long answer(long result) {
    if (result < 0 && result > -4096) return errno = (int)-result, -1;
    return result;
}

/* The library's segments. */
static int look(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size, (void)data;
    uintptr_t low = UINTPTR_MAX, high = 0, at = (uintptr_t)&hak_version;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type != PT_LOAD) continue;
        if (info->dlpi_addr + p->p_vaddr < low) low = info->dlpi_addr + p->p_vaddr;
        if (info->dlpi_addr + p->p_vaddr + p->p_memsz > high) high = info->dlpi_addr + p->p_vaddr + p->p_memsz;
    }
    if (low <= at && at < high) from = low, to = high;
    return 0;
}

static void say(const char *text, long number) {
    char line[100];
    int length = snprintf(line, sizeof line, "fault: %s %ld\n", text, number);
    raw(SYS_write, 2, (long)line, length, 0, 0, 0);
}

static void on_call(int signal, siginfo_t *info, void *context);

/* glibc's own name for its sigaction, which is replaced below. */
extern int __sigaction(int signal, const struct sigaction *act, struct sigaction *old);

/* From now on there is a SIGSYS for each system call between `from` and `to`. Without, the test would be of
 * nothing, so then the process ends. */
static void stop_calls(void) {
#if defined(__x86_64__)
    enum { ARCH = AUDIT_ARCH_X86_64 };
#elif defined(__aarch64__)
    enum { ARCH = AUDIT_ARCH_AARCH64 };
#endif
    struct sigaction act = {.sa_sigaction = on_call, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART};
    int error = __sigaction(SIGSYS, &act, NULL);
    /* Words of 32 bits are all that a filter has: the higher half decides first. The address is that of the
     * next instruction. A jump says how many lines it leaves out where the comparison holds, and where not. */
    enum { LOW = offsetof(struct seccomp_data, instruction_pointer), HIGH = LOW + 4 };
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 0, 10),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, HIGH),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, from >> 32, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, from >> 32, 0, 7),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, LOW),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, (uint32_t)from, 0, 5),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, HIGH),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, to >> 32, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, to >> 32, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, LOW),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, (uint32_t)to, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (!error) error = (int)raw(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0);
    if (!error) error = (int)raw(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, (long)&program, 0, 0, 0);
    if (error) {
        say("no filter for system calls (seccomp): the error is", error);
        raw(SYS_exit_group, 99, 0, 0, 0, 0, 0);
    }
}

/* The value of FAULT, also before the C library has set up `environ`. */
static const char *told(void) {
    static char all[1 << 20];
    long fd = raw(SYS_openat, AT_FDCWD, (long)"/proc/self/environ", O_RDONLY, 0, 0, 0);
    for (long n, at = 0; (n = raw(SYS_read, fd, (long)all + at, (long)sizeof all - 1 - at, 0, 0, 0)) > 0;) at += n;
    raw(SYS_close, fd, 0, 0, 0, 0, 0);
    for (const char *at = all; *at; at += strlen(at) + 1)
        if (!strncmp(at, "FAULT=", 6)) return at + 6;
    return NULL;
}

/* Runs before all other constructors (-z initfirst), the allocator's among them. */
__attribute__((constructor)) static void start(void) {
    static int started;
    if (__atomic_exchange_n(&started, 1, __ATOMIC_ACQ_REL)) return;
    const char *text = told();
    dl_iterate_phdr(look, NULL);
    if (!text || !to) {
        say(text ? "no libhakmem.so here:" : "the environment does not say:", (long)to);
        raw(SYS_exit_group, 99, 0, 0, 0, 0, 0);
    }
    char *end;
    long n = strtol(text, &end, 10);
    other = strtol(end, &end, 10);
    if (n == 0) kind = end + (*end == ' ');
    __atomic_store_n(&chosen, n, __ATOMIC_RELEASE);
    stop_calls();
}

/* 0, or the error that this call from the library is to have. */
static int fails(const char *name, void *caller, int error, int another) {
    start();
    if ((uintptr_t)caller < from || (uintptr_t)caller >= to) return 0;
    int is_chosen = __atomic_add_fetch(&calls, 1, __ATOMIC_ACQ_REL) == __atomic_load_n(&chosen, __ATOMIC_ACQUIRE);
    if (kind) is_chosen = !strcmp(name, kind) && !__atomic_exchange_n(&kind_has_failed, 1, __ATOMIC_ACQ_REL);
    if (!is_chosen) return 0;
    error = other ? another : error;
    char line[100];
    int length = snprintf(line, sizeof line, "fault: %s fails with %d\n", name, error);
    raw(SYS_write, 2, (long)line, length, 0, 0, 0);
    return error;
}

#define FAILS(name, error, another) fails(name, __builtin_return_address(0), error, another)
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

void *mmap(void *at, size_t size, int prot, int flags, int fd, off_t offset) {
    int error = FAILS("mmap", ENOMEM, EAGAIN);
    if (error) return errno = error, MAP_FAILED;
    return (void *)answer(raw(SYS_mmap, (long)at, (long)size, prot, flags, fd, offset));
}

int munmap(void *at, size_t size) {
    int error = FAILS("munmap", ENOMEM, EINVAL);
    if (error) return errno = error, -1;
    return (int)answer(raw(SYS_munmap, (long)at, (long)size, 0, 0, 0, 0));
}

void *mremap(void *at, size_t old_size, size_t new_size, int flags, ...) {
    va_list list;
    va_start(list, flags);
    void *target = va_arg(list, void *);
    va_end(list);
    int error = FAILS("mremap", ENOMEM, EFAULT);
    if (error) {
        /* Several kernels have unmapped the target by then. */
        if (flags & MREMAP_FIXED) raw(SYS_munmap, (long)target, (long)new_size, 0, 0, 0, 0);
        return errno = error, MAP_FAILED;
    }
    return (void *)answer(raw(SYS_mremap, (long)at, (long)old_size, (long)new_size, flags, (long)target, 0));
}

int madvise(void *at, size_t size, int advice) {
    int error = FAILS("madvise", EINVAL, ENOMEM);
    if (error) return errno = error, -1;
    return (int)answer(raw(SYS_madvise, (long)at, (long)size, advice, 0, 0, 0));
}

int mincore(void *at, size_t size, unsigned char *vec) {
    int error = FAILS("mincore", EAGAIN, ENOMEM);
    if (error) return errno = error, -1;
    return (int)answer(raw(SYS_mincore, (long)at, (long)size, (long)vec, 0, 0, 0));
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*body)(void *), void *arg) {
    int error = FAILS("pthread_create", EAGAIN, EINVAL);
    return error ? error : NEXT(pthread_create)(thread, attr, body, arg);
}

int pthread_setspecific(pthread_key_t key, const void *value) {
    int error = FAILS("pthread_setspecific", ENOMEM, EINVAL);
    return error ? error : NEXT(pthread_setspecific)(key, value);
}

int __pthread_key_create(pthread_key_t *key, void (*destructor)(void *)) {
    int error = FAILS("pthread_key_create", EAGAIN, ENOMEM);
    return error ? error : ((int (*)(pthread_key_t *, void (*)(void *)))dlsym(RTLD_NEXT, "__pthread_key_create"))(key, destructor);
}

int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *dso) {
    int error = FAILS("pthread_atfork", ENOMEM, EAGAIN);
    if (error) return error;
    return ((int (*)(void (*)(void), void (*)(void), void (*)(void), void *))dlsym(RTLD_NEXT, "__register_atfork"))(
        prepare, parent, child, dso);
}

int getrlimit(__rlimit_resource_t what, struct rlimit *out) {
    int error = FAILS("getrlimit", EPERM, EFAULT);
    if (error) return errno = error, -1;
    return NEXT(getrlimit)(what, out);
}

int getrusage(__rusage_who_t who, struct rusage *out) {
    int error = FAILS("getrusage", EINVAL, EFAULT);
    if (error) return errno = error, -1;
    return NEXT(getrusage)(who, out);
}

int fstat(int fd, struct stat *out) {
    int error = FAILS("fstat", EIO, ENOMEM);
    if (error) return errno = error, -1;
    return NEXT(fstat)(fd, out);
}

int fcntl(int fd, int command, ...) {
    va_list list;
    va_start(list, command);
    long value = va_arg(list, long);
    va_end(list);
    int error = FAILS("fcntl", EMFILE, EINVAL);
    if (error) return errno = error, -1;
    return (int)answer(raw(SYS_fcntl, fd, command, value, 0, 0, 0));
}

int sigaction(int signal, const struct sigaction *act, struct sigaction *old) {
    int error = FAILS("sigaction", EINVAL, EINVAL);
    if (error) return errno = error, -1;
    return NEXT(sigaction)(signal, act, old);
}

/* The kernel ends a process that has blocked the signal by which calls are stopped. */
int pthread_sigmask(int how, const sigset_t *set, sigset_t *old) {
    int error = FAILS("pthread_sigmask", EINVAL, EINVAL);
    if (error) return error;
    sigset_t rest;
    if (set) rest = *set, sigdelset(&rest, SIGSYS);
    return NEXT(pthread_sigmask)(how, set ? &rest : NULL, old);
}

/* The numbers, what they are called, and the errors. Those that cannot fail are not here. */
static const struct {
    long number;
    const char *name;
    int error, another;
} by_number[] = {
    {SYS_futex, "futex wait", EINTR, EAGAIN},
    {SYS_membarrier, "membarrier", ENOMEM, ENOSYS},
    {SYS_openat, "openat", EMFILE, EACCES},
    {SYS_read, "read", EIO, EINTR},
    {SYS_write, "write", EIO, EINTR},
    {SYS_getrandom, "getrandom", EAGAIN, ENOSYS},
    {SYS_prctl, "prctl", EINVAL, EPERM},
    {SYS_sched_getaffinity, "sched_getaffinity", EINVAL, ENOSYS},
    {SYS_sched_setaffinity, "sched_setaffinity", EPERM, ENOSYS},
    {SYS_sched_getscheduler, "sched_getscheduler", EPERM, ENOSYS},
    {SYS_sched_setscheduler, "sched_setscheduler", EPERM, ENOSYS},
    {SYS_process_vm_readv, "process_vm_readv", EPERM, ENOSYS},
    {SYS_rt_sigprocmask, "rt_sigprocmask", EFAULT, ENOSYS},
    {SYS_rt_sigpending, "rt_sigpending", EFAULT, ENOSYS},
    {SYS_rt_sigtimedwait, "rt_sigtimedwait", EAGAIN, ENOSYS},
    {SYS_renameat2, "renameat2", EINVAL, EACCES},
    {SYS_ftruncate, "ftruncate", EINVAL, EPERM},
    {SYS_unlinkat, "unlinkat", EACCES, ENOENT},
    {SYS_getcwd, "getcwd", ERANGE, ENOENT},
    {SYS_tgkill, "tgkill", EPERM, EAGAIN},
};

/* The result of a system call from `at`, or the error that it is to have, below 0. */
static long call(void *at, long number, const long *arg) {
    for (size_t i = 0; i < sizeof by_number / sizeof *by_number; i++) {
        if (by_number[i].number != number) continue;
        if (number == SYS_futex && (arg[1] & FUTEX_CMD_MASK) == FUTEX_WAKE) continue;
        int error = fails(by_number[i].name, at, by_number[i].error, by_number[i].another);
        if (error) return -error;
    }
    return raw(number, arg[0], arg[1], arg[2], arg[3], arg[4], arg[5]);
}

/* In place of a system call that the filter has stopped: what is in its registers' places when the handler
 * returns is its result. Not one of those that change the registers or the stack: the library makes none. */
static void on_call(int signal, siginfo_t *info, void *context) {
    (void)signal;
    int before = errno;
    ucontext_t *c = context;
#if defined(__x86_64__)
    greg_t *r = c->uc_mcontext.gregs;
    long arg[] = {r[REG_RDI], r[REG_RSI], r[REG_RDX], r[REG_R10], r[REG_R8], r[REG_R9]};
#elif defined(__aarch64__)
    long arg[6];
    for (int i = 0; i < 6; i++) arg[i] = (long)c->uc_mcontext.regs[i];
#endif
    enum { FILTERED = 1 }; /* the kernel's SYS_SECCOMP */
    if (info->si_code != FILTERED) {
        say("a SIGSYS of somebody else's", info->si_code);
        raw(SYS_exit_group, 99, 0, 0, 0, 0, 0);
    }
    long result = call(info->si_call_addr, info->si_syscall, arg);
    /* The handler has the thread's own mask (SA_NODEFER). The thread goes on with what is in its place. */
    if (info->si_syscall == SYS_rt_sigprocmask) raw(SYS_rt_sigprocmask, SIG_BLOCK, 0, (long)&c->uc_sigmask, 8, 0, 0);
#if defined(__x86_64__)
    r[REG_RAX] = result;
#elif defined(__aarch64__)
    c->uc_mcontext.regs[0] = (unsigned long)result;
#endif
    errno = before;
}
