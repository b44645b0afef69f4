// A domain whose function does what the first word says. Lends as many threads as it is told and
// offers a link to the launcher and to the processes it is told, number 7, cookie 99.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "partywall_domain.h"

static const struct partywall_domain *domain;
static __thread uint64_t calls;
static volatile int zero;
static uint64_t next;
static int bytes;
static pid_t own;
static volatile uint64_t secret[512] __attribute__((aligned(4096))) = { 0x5ec4e75ec4e75ec4ull };
static uint64_t words[4] = { ~0ull, ~0ull, ~0ull, ~0ull };

static void *worker(void *number) {
    char *memory = malloc(1 << 20);
    memset(memory, 1, 1 << 20);
    free(memory);
    return (char *)number + 1;
}

static int deep(volatile char *before) {
    volatile char frame[512];
    frame[0] = before ? before[0] : 1;
    return deep(frame) + frame[0];
}

static uint64_t seven(void) { return 7; }

// The thread whose storage a call has seen.
static pthread_t entered;

static uint64_t function(uint64_t caller, uint64_t cookie, uint64_t a, uint64_t b, uint64_t c,
                         unsigned char *arena) {
    const uint64_t limit = 3000000000ull;
    if (cookie != 99) return 1;
    calls++;
    if (bytes) { // A bytes in: as many out, each plus 1.
        if (!arena || a > PARTYWALL_HALF) return ~0ull - 1;
        for (uint64_t i = 0; i < a; i++) arena[PARTYWALL_HALF + i] = arena[i] + 1;
        return a;
    }
    switch (a) {
    case 0: return b + c;
    case 1: return calls;
    case 2: return *(volatile uint64_t *)b;
    case 3: __builtin_trap();
    case 4: return deep(NULL);
    case 5: for (;;) __asm__ volatile("pause");
    case 6: abort();
    case 7: return b / (uint64_t)zero;
    case 8: return getpid() == (pid_t)b ? (uint64_t)gettid() : 0;
    case 9: { // A descriptor of this process alone.
        int fd = open("/etc/hostname", O_RDONLY);
        char byte;
        int ok = fd > 2 && read(fd, &byte, 1) == 1 && read(12345, &byte, 1) == -1 && errno == EBADF;
        return ok ? fd : 0;
    }
    case 10: { // Memory, of this domain's own.
        char *memory = malloc(b);
        if (!memory || (uintptr_t)memory < domain->base) return 0;
        memset(memory, 1, b);
        free(memory);
        return 1;
    }
    case 11: __asm__ volatile("std"); return 11;
    case 12: { uint32_t odd = 0x9fc0; __asm__ volatile("ldmxcsr %0" : : "m"(odd)); return 12; }
    case 13: { uint16_t odd = 0x0f7f; __asm__ volatile("fldcw %0" : : "m"(odd)); return 13; }
    case 14: __asm__ volatile("mov %0, %%rsp; ret" : : "r"(b) : "memory"); return 0;
    case 15: _exit(3);
    case 16: kill(getpid(), SIGKILL); return 0;
    case 17: { struct timespec t = { 60, 0 }; nanosleep(&t, NULL); return 0; }
    case 18: return (uint64_t)syscall(SYS_exit, 0);
    case 19: __asm__ volatile("wrfsbase %0" : : "r"(b)); return 19;
    case 20: __asm__ volatile("pushfq; orq $0x40000, (%%rsp); popfq" : : : "memory", "cc"); return 20;
    case 21: { // What a double and an 80-bit number come to, with the usual rounding.
        volatile double third = 1.0 / 3.0;
        volatile long double wide = 1.0L / 3.0L;
        return third == 0x1.5555555555555p-2 && wide == 0xa.aaaaaaaaaaaaaabp-5L;
    }
    case 22: { // A thread, a program, a copy of itself.
        pthread_t thread;
        void *result;
        if (pthread_create(&thread, NULL, worker, (void *)41) || pthread_join(thread, &result)) return 1;
        if (result != (void *)42) return 2;
        pid_t child;
        int status;
        char *const args[] = { "sh", "-c", "exit 5", NULL };
        if (posix_spawn(&child, "/bin/sh", NULL, NULL, args, environ)) return 3;
        if (waitpid(child, &status, 0) != child || status != 5 << 8) return 4;
        child = fork();
        if (child == 0) _exit(getppid() == (pid_t)b ? 6 : 7);
        if (waitpid(child, &status, 0) != child || status != 6 << 8) return 5;
        child = vfork();
        if (child == 0) _exit(8);
        if (waitpid(child, &status, 0) != child || status != 8 << 8) return 6;
        FILE *pipe = popen("echo spoken", "r");
        char line[16] = "";
        if (!pipe || !fgets(line, sizeof line, pipe) || strcmp(line, "spoken\n") || pclose(pipe)) return 7;
        return 22;
    }
    case 23: return *(volatile uint64_t *)((char *)words + 1) != 0;
    case 25: { // The mask of the parked thread, not that of whoever is in here.
        sigset_t set, before;
        sigemptyset(&set);
        sigaddset(&set, SIGWINCH);
        if (pthread_sigmask(SIG_BLOCK, &set, NULL) || pthread_sigmask(SIG_SETMASK, NULL, &before)) return 0;
        if (!sigismember(&before, SIGWINCH)) return 0;
        return pthread_sigmask(SIG_UNBLOCK, &set, NULL) == 0 ? 25 : 0;
    }
    case 26: // Nothing that is being called can be lent, or call as if at home.
        return domain->park(function) == -EBUSY && domain->arm() == -EBUSY ? 26 : 0;
    case 27: { // A full x87 stack, and then the end.
        __asm__ volatile("fld1\n fld1\n fld1\n fld1\n fld1\n fld1\n fld1\n fld1\n ud2");
        return 0;
    }
    case 28: { // Into the next domain, which has the function of this file, and there `c`.
        struct partywall_outcome o;
        do o = domain->call(caller, next, c, 0, 0, limit);
        while (o.status == PARTYWALL_UNBOUND && domain->bind(caller, next) == 0);
        return o.status == PARTYWALL_DONE ? o.word : 1000 + o.status;
    }
    case 29: { // A copy of this process calls nobody.
        int status;
        pid_t child = fork();
        if (child == 0) _exit(domain->call(caller, next, 0, 20, 9, limit).status);
        return waitpid(child, &status, 0) == child ? 1000 + (status >> 8) : 0;
    }
    case 38: { // A copy of this process that goes out of the function as this one does.
        int status;
        pid_t child = fork();
        if (child == 0) return 0;
        return waitpid(child, &status, 0) == child ? (uint64_t)status : 0;
    }
    case 39: { // Astray in the gate's page, with nothing in the registers but where to.
        uint64_t to = ((uint64_t)(uintptr_t)domain->call & ~4095ull) + b;
        __asm__ volatile(
            "xor %%ebx, %%ebx\n xor %%ecx, %%ecx\n xor %%edx, %%edx\n xor %%esi, %%esi\n xor %%edi, %%edi\n"
            "xor %%r8d, %%r8d\n xor %%r9d, %%r9d\n xor %%r10d, %%r10d\n xor %%r11d, %%r11d\n"
            "xor %%r12d, %%r12d\n xor %%r13d, %%r13d\n xor %%r14d, %%r14d\n xor %%r15d, %%r15d\n"
            "push $0\n push $0\n call *%%rax\n add $16, %%rsp"
            : "+a"(to) : : "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
                           "r14", "r15", "memory", "cc");
        return 39;
    }
    case 42: return *(const volatile uint64_t *)(((uint64_t)(uintptr_t)domain->call & ~4095ull) + b);
    case 43: return (uint64_t)(uintptr_t)seven;
    case 40: return setuid(getuid()) == 0 && setgid(getgid()) == 0 ? 40 : 0;
    case 41: // No rights to anything, and then a fault; without keys the instruction is none.
        __asm__ volatile("wrpkru\n movl $1, 8" : : "a"(0x55555555), "c"(0), "d"(0) : "memory");
        return 0;
    case 44: { // The same, and back out into the gate: nothing may be read on the way.
        char *above = (char *)__builtin_frame_address(0) + 16;
        void *to = __builtin_return_address(0);
        __asm__ volatile("mov %3, %%rsp\n wrpkru\n jmp *%4"
                         : : "a"(0x55555555), "c"(0), "d"(0), "S"(above), "D"(to) : "memory");
        return 0;
    }
    case 30: *(volatile uint64_t *)b = c; return 30;
    case 31: return (uint64_t)(uintptr_t)words;
    case 32: return write(1, (const void *)b, 8) == -1 && errno == EFAULT ? 32 : 0;
    case 35: // The kernel is asked to write where this domain may not.
        if (syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, (void *)b, 8) != -1 || errno != EFAULT) return 0;
        return syscall(SYS_rt_sigaction, SIGUSR1, NULL, (void *)b, 8) == -1 && errno == EFAULT ? 35 : 0;
    case 33: return (uint64_t)(uintptr_t)secret;
    case 34: return secret[0] == 0x5ec4e75ec4e75ec4ull;
    case 60: { // How many system calls these are.
        uint64_t before = domain->forwards(caller);
        for (uint64_t n = 0; n < b; n++) getppid();
        return domain->forwards(caller) - before;
    }
    case 61: return (uint64_t)-domain->offer((uint64_t)getppid(), 8, 99);
    case 62: return __builtin_ia32_rdtsc();
    case 36: // What is about all of the address space, from inside a call.
        if (mlockall(MCL_FUTURE) != -1 || errno != EPERM) return 0;
        if (prctl(PR_SET_DUMPABLE, 0) != -1 || errno != EPERM || prctl(PR_GET_DUMPABLE) < 0) return 0;
        return ptrace(PTRACE_TRACEME, 0, NULL, NULL) == -1 && errno == EPERM ? 36 : 0;
    case 37: { // Whether it is itself all the while.
        uint64_t storage, now;
        __asm__ volatile("rdfsbase %0" : "=r"(storage));
        for (uint64_t n = 0; n < b; n++) {
            for (int i = 0; i < 1000; i++) __asm__ volatile("pause");
            __asm__ volatile("rdfsbase %0" : "=r"(now));
            __asm__ volatile("wrfsbase %0" : : "r"(storage));
            if (now != storage || syscall(SYS_getpid) != own) return 0;
        }
        return 37;
    }
    case 70: entered = pthread_self(); return 70;
    case 24: for (uint64_t n = 0; n < b; n++) __asm__ volatile("pause"); return 24;
    default: return 0;
    }
}

// Takes no calls, and does again.
static void flip(int signal) {
    static uint64_t open = 1;
    (void)signal;
    domain->accept(open = !open);
}

// Does what is done to all threads of a process, or to one, by the C library's own signals.
static void drop_privileges(pthread_t lent) {
    void *result;
    if (setgid(getgid()) || setuid(getuid())) _exit(94);
    if (pthread_cancel(lent) || pthread_join(lent, &result) || result != PTHREAD_CANCELED) _exit(93);
    puts("dropped");
    fflush(stdout);
}

static volatile sig_atomic_t asked;
static void ask(int signal) { asked = signal; }

static void *lender(void *unused) {
    (void)unused;
    partywall_lend(domain, function);
    _exit(97);
}

// Lends another thread for the one in which a call has said so.
static void exchange(void) {
    void *result;
    pthread_t thread;
    if (pthread_cancel(entered) || pthread_join(entered, &result) || result != PTHREAD_CANCELED) _exit(92);
    if (pthread_create(&thread, NULL, lender, NULL)) _exit(91);
    puts("exchanged");
    fflush(stdout);
}

int main(int argc, char **argv) {
    domain = partywall_domain();
    if (!domain || argc < 2) return 99;
    own = getpid();
    pthread_t thread;
    signal(SIGUSR1, ask);
    signal(SIGUSR2, ask);
    // Open only while main waits for them: in a thread between two loans they would not wake it.
    sigset_t both, none;
    sigemptyset(&both);
    sigaddset(&both, SIGUSR1);
    sigaddset(&both, SIGUSR2);
    sigemptyset(&none);
    pthread_sigmask(SIG_BLOCK, &both, NULL);
    for (int i = 0; i < atoi(argv[1]); i++) {
        if (pthread_create(&thread, NULL, lender, NULL)) return 98;
    }
    if (argc > 2 && !strcmp(argv[2], "next")) {
        int64_t taken;
        while ((taken = domain->take(7)) < 0) usleep(1000);
        next = (uint64_t)taken;
        argc = 2;
    }
    if (argc > 2 && !strcmp(argv[2], "bytes")) {
        bytes = 1;
        argc = 2;
    }
    const char *other = NULL;
    if (argc > 3 && !strcmp(argv[2], "other")) { // Becomes that program when it is told to.
        other = argv[3];
        argc = 2;
    }
    if (argc > 2 && !strcmp(argv[2], "silent")) {
        domain->declare(PARTYWALL_NO_SYSTEM_CALLS);
        argc = 2;
    }
    if (domain->offer((uint64_t)getppid(), 7, 99) < 0) return 96;
    for (int i = 2; i < argc; i++)
        if (domain->offer(strtoull(argv[i], NULL, 10), 7, 99) < 0) return 95;
    signal(SIGHUP, flip);
    puts("ready");
    fflush(stdout);
    for (;;) {
        while (!asked) sigsuspend(&none);
        if (asked == SIGUSR1 && entered) exchange();
        if (asked == SIGUSR1 && !entered) drop_privileges(thread);
        if (asked == SIGUSR2) {
            execl("/no/such/program", "none", NULL);
            execl(other, "other", "stay", NULL);
            puts("still here");
            fflush(stdout);
        }
        asked = 0;
    }
}
