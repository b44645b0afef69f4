// What a program may do, done as a domain: prints `ok` and ends with 0, or says what went wrong.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "partywall_domain.h"

extern char **environ;
static uintptr_t low, high;
static __thread int mine = 41;
static int initialised = 7, zeroed;

#define CHECK(what) do { if (!(what)) { \
    fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #what, errno); _exit(1); } } while (0)

static int in_slot(const void *p) { return (uintptr_t)p >= low && (uintptr_t)p < high; }

static void hammer(unsigned seed) {
    enum { N = 64 };
    unsigned char *blocks[N] = {0};
    size_t sizes[N] = {0};
    for (int i = 0; i < 20000; i++) {
        seed = seed * 1103515245 + 12345;
        int at = (seed >> 16) % N;
        if (blocks[at]) {
            for (size_t k = 0; k < sizes[at]; k += 97) CHECK(blocks[at][k] == (unsigned char)(at + k));
            free(blocks[at]);
        }
        sizes[at] = (seed >> 8) % (i % 500 == 0 ? 3000000 : 4000) + 1;
        blocks[at] = malloc(sizes[at]);
        CHECK(blocks[at] && in_slot(blocks[at]));
        for (size_t k = 0; k < sizes[at]; k++) blocks[at][k] = (unsigned char)(at + k);
    }
    for (int at = 0; at < N; at++) free(blocks[at]);
}

static void *thread(void *argument) {
    mine += (int)(intptr_t)argument;
    CHECK(in_slot(&mine));
    hammer((unsigned)(intptr_t)argument);
    CHECK(mine == 41 + (int)(intptr_t)argument);
    return argument;
}

static volatile sig_atomic_t caught;
static void on_signal(int signal) { caught = signal; }

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "started by a domain")) return partywall_domain() ? 1 : 7;
    CHECK(argc == 4 && partywall_domain());
    low = strtoull(argv[1], NULL, 16);
    high = strtoull(argv[2], NULL, 16);
    CHECK(getenv("PARTY") && !strcmp(getenv("PARTY"), "wall"));
    CHECK(in_slot(&argc) && in_slot(&initialised) && in_slot(&main) && in_slot(&mine));
    CHECK(initialised == 7 && zeroed == 0 && mine == 41);
    CHECK(in_slot((void *)getauxval(AT_PHDR)) && in_slot((void *)getauxval(AT_ENTRY)));
    CHECK(getauxval(AT_BASE) == 0 && in_slot((void *)getauxval(AT_RANDOM)));
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0 && now.tv_sec > 0);
    CHECK(getpid() != getppid());

    void *before = sbrk(0);
    CHECK(sbrk(4096) == (void *)-1 && sbrk(0) == before);

    hammer(1);
    char *grown = malloc(1 << 20);
    memset(grown, 'x', 1 << 20);
    for (size_t size = 1 << 20; size <= 64u << 20; size *= 2) {
        grown = realloc(grown, size);
        CHECK(grown && in_slot(grown) && grown[0] == 'x' && grown[(1 << 20) - 1] == 'x');
    }
    free(grown);

    char *pages = mmap(NULL, 5 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED && in_slot(pages) && (uintptr_t)pages % (2 << 20) == 0);
    CHECK(mmap(pages, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == pages);
    CHECK(munmap(pages, 5 << 20) == 0);
    char *again = mmap(pages, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(again == pages && munmap(again, 4096) == 0);
    uintptr_t outside = (low - (1 << 30)) & ~4095ul;
    CHECK(mmap((void *)outside, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0)
          == MAP_FAILED && errno == EPERM);
    CHECK(in_slot(mmap((void *)outside, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)));
    CHECK(mmap(NULL, 1ul << 45, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
          == MAP_FAILED && errno == ENOMEM);

    // The address space is everybody's: what is about all of it is refused, a part of its own is not.
    CHECK(mlockall(MCL_CURRENT | MCL_FUTURE) == -1 && errno == EPERM);
    CHECK(munlockall() == -1 && errno == EPERM);
    unsigned long ring = 0;
    CHECK(syscall(SYS_io_setup, 8, &ring) == -1 && errno == ENOSYS);
    CHECK(prctl(PR_SET_DUMPABLE, 0) == -1 && errno == EPERM && prctl(PR_GET_DUMPABLE) >= 0);
    CHECK(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == -1 && errno == EPERM);
    CHECK(prctl(PR_SET_PDEATHSIG, 0) == -1 && errno == EPERM && prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    pid_t own = fork();
    if (own == 0) _exit(prctl(PR_SET_PDEATHSIG, SIGTERM) ? 1 : 5);
    int ended = 0;
    CHECK(own > 0 && waitpid(own, &ended, 0) == own && WIFEXITED(ended) && WEXITSTATUS(ended) == 5);
    CHECK(syscall(462, &mine, sizeof mine, 0) == -1 && errno == ENOSYS); // mseal
    CHECK(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == -1 && errno == EPERM);
    own = fork();
    if (own == 0) _exit(ptrace(PTRACE_TRACEME, 0, NULL, NULL) ? 1 : 5);
    CHECK(own > 0 && waitpid(own, &ended, 0) == own && WIFEXITED(ended) && WEXITSTATUS(ended) == 5);
    char name[16];
    CHECK(prctl(PR_SET_NAME, "everything") == 0 && prctl(PR_GET_NAME, name) == 0);
    CHECK(!strcmp(name, "everything") && mlock(&mine, sizeof mine) == 0);

    pthread_t threads[4];
    for (intptr_t i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, thread, (void *)(i + 1)) == 0);
    for (intptr_t i = 0; i < 4; i++) {
        void *result;
        CHECK(pthread_join(threads[i], &result) == 0 && result == (void *)(i + 1));
    }

    struct sigaction action = { .sa_handler = on_signal };
    sigfillset(&action.sa_mask);
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK(raise(SIGUSR1) == 0 && caught == SIGUSR1);
    CHECK(sigaction(SIGSYS, &action, NULL) == -1 && errno == EINVAL);
    sigset_t all, old, seen;
    sigfillset(&all);
    CHECK(sigprocmask(SIG_SETMASK, &all, &old) == 0);
    CHECK(sigprocmask(SIG_BLOCK, NULL, &seen) == 0);
    CHECK(sigismember(&seen, SIGUSR1) == 1 && sigismember(&seen, SIGSYS) == 0);
    void *masked = malloc(10 << 20);
    CHECK(masked && in_slot(masked));
    free(masked);
    caught = 0;
    CHECK(raise(SIGUSR1) == 0 && caught == 0);
    CHECK(sigprocmask(SIG_SETMASK, &old, NULL) == 0 && caught == SIGUSR1);
    CHECK(sigismember(&old, SIGUSR1) == 0);

    pid_t child;
    char *const args[] = { "sh", "-c", "x=$(printf %s 12345); test $x = 12345 && exit 5", NULL };
    CHECK(posix_spawn(&child, "/bin/sh", NULL, NULL, args, environ) == 0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 5);
    // A program that a domain starts is none, whatever it inherits.
    char *const started[] = { "everything", "started by a domain", NULL };
    CHECK(posix_spawn(&child, argv[3], NULL, NULL, started, environ) == 0);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    child = fork();
    if (child == 0) { hammer(3); _exit(6); }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 6);

    CHECK(fcntl(3, F_GETFD) == -1 && errno == EBADF);
    puts("ok");
    return 0;
}
