// Ends in the way it is told, after it has said that it is ready.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "partywall_domain.h"

static int deep(volatile char *before) {
    volatile char frame[4096];
    frame[0] = before ? before[0] : 1;
    return deep(frame) + frame[0];
}

static void *sleeper(void *unused) { for (;;) pause(); return unused; }

int main(int argc, char **argv) {
    if (argc != 2) return 99;
    pthread_t thread;
    if (pthread_create(&thread, NULL, sleeper, NULL)) return 98;
    puts("ready");
    fflush(stdout);
    if (!strcmp(argv[1], "traced")) {
        // Made in the gate's page, where no filter looks: the launcher traces this, and does not know.
        const struct partywall_domain *domain = partywall_domain();
        int64_t (*call)(int64_t, const uint64_t *) =
            (int64_t (*)(int64_t, const uint64_t *))((uintptr_t)domain->call & ~4095ull);
        uint64_t arguments[6] = { PTRACE_TRACEME };
        if (call(SYS_ptrace, arguments)) return 97;
        raise(SIGUSR1);
    }
    if (!strcmp(argv[1], "segv")) *(volatile int *)8 = 1;
    if (!strcmp(argv[1], "abort")) abort();
    if (!strcmp(argv[1], "exit")) exit(3);
    if (!strcmp(argv[1], "ud2")) __builtin_trap();
    if (!strcmp(argv[1], "overflow")) return deep(NULL);
    if (!strcmp(argv[1], "loop")) for (;;) __asm__ volatile("pause");
    for (;;) pause();
}
