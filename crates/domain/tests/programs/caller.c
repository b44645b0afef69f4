// A domain that calls another one, number 7, in the way it is told: prints `ok` and ends with 0.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
#include "partywall_domain.h"

#define CHECK(what) do { if (!(what)) { \
    printf("%s:%d: %s\n", __FILE__, __LINE__, #what); fflush(stdout); _exit(1); } } while (0)

static const struct partywall_domain *domain;
static uint64_t caller, link_;
static const uint64_t LONG = 3000000000ull;

// The gate, entered with whatever the code before has set: statuses and words as they come. r13
// holds the gate's address, r12 one that is nobody's thread-local storage; both are kept.
#define ENTER(before, after, a, b, status, word) do { \
    register uint64_t gate_ __asm__("r13") = (uint64_t)(uintptr_t)domain->call; \
    register uint64_t other_ __asm__("r12") = 0x1000; \
    uint64_t who_ = caller, over_ = link_, a_ = (a), b_ = (b), status_; \
    __asm__ volatile( \
        before "\n call *%%r13\n" after \
        : "=a"(status_), "+d"(a_), "+D"(who_), "+S"(over_), "+c"(b_) \
        : "r"(gate_), "r"(other_) \
        : "rbx", "r8", "r9", "r10", "r11", "memory", "cc"); \
    (status) = status_; (word) = a_; } while (0)

static uint64_t call_for(uint64_t limit, uint64_t a, uint64_t b, uint64_t *word) {
    for (;;) {
        struct partywall_outcome o = domain->call(caller, link_, a, b, 0, limit);
        if (o.status == PARTYWALL_UNBOUND) {
            int64_t bound = domain->bind(caller, link_);
            if (bound == -ENOTCONN) return PARTYWALL_CLOSED;
            if (bound) usleep(1000);
            continue;
        }
        *word = o.word;
        return o.status;
    }
}
static uint64_t call(uint64_t a, uint64_t b, uint64_t *word) { return call_for(LONG, a, b, word); }

static volatile uint64_t traps, traps_inside;
static uint64_t own_low;
static void on_trap(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    uint64_t at = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    int in_a_slot = at >= domain->base && at < domain->base + 64 * domain->slot;
    if (in_a_slot && (at - domain->base) / domain->slot != own_low) traps_inside++;
    traps++;
}

static void flags(void) {
    uint64_t status, word, after;
    ENTER("std\n xor %%r8d, %%r8d\n mov $3000000000, %%r9", "", 0, 40, status, word);
    CHECK(status == PARTYWALL_DONE && word == 40);
    __asm__ volatile("pushfq\n pop %0" : "=r"(after));
    CHECK(!(after & 0x400));
    ENTER("pushfq\n orq $0x40000, (%%rsp)\n popfq\n mov $3000000000, %%r9", "", 23, 0, status, word);
    CHECK(status == PARTYWALL_DONE && word == 1);
    __asm__ volatile("pushfq\n pop %0" : "=r"(after));
    CHECK(!(after & 0x40000));
    struct sigaction action = { .sa_sigaction = on_trap, .sa_flags = SA_SIGINFO };
    CHECK(sigaction(SIGTRAP, &action, NULL) == 0);
    own_low = ((uint64_t)(uintptr_t)&domain - domain->base) / domain->slot;
    ENTER("mov $3000000000, %%r9\n pushfq\n orq $0x100, (%%rsp)\n popfq", "", 24, 1000, status, word);
    CHECK(status == PARTYWALL_DONE && word == 24);
    CHECK(traps > 0 && traps < 50 && traps_inside == 0);
}

static void numbers(void) {
    uint64_t word;
    uint32_t float_before, float_after, odd = 0x9fc0;
    uint16_t control_before, control_after, odd_control = 0x0f7f;
    __asm__ volatile("stmxcsr %0" : "=m"(float_before));
    __asm__ volatile("fnstcw %0" : "=m"(control_before));
    __asm__ volatile("ldmxcsr %0" : : "m"(odd));
    __asm__ volatile("fldcw %0" : : "m"(odd_control));
    uint64_t status = call(21, 0, &word);
    __asm__ volatile("stmxcsr %0" : "=m"(float_after));
    __asm__ volatile("fnstcw %0" : "=m"(control_after));
    __asm__ volatile("ldmxcsr %0" : : "m"(float_before));
    __asm__ volatile("fldcw %0" : : "m"(control_before));
    CHECK(status == PARTYWALL_DONE && word == 1);
    CHECK((float_after & 0xffc0) == (odd & 0xffc0) && control_after == odd_control);
}

static void storage(void) {
    uint64_t status, word;
    ENTER("rdfsbase %%rbx\n wrfsbase %%r12\n mov $3000000000, %%r9", "wrfsbase %%rbx\n", 0, 1,
          status, word);
    CHECK(status == PARTYWALL_DENIED && word == 0);
}

static __thread volatile uint64_t signals;
static volatile int go_on = 1;
static void on_usr1(int signal) { (void)signal; signals++; }
static void *sender(void *thread) {
    uint64_t sent = 0;
    for (; go_on; sent++) {
        pthread_kill(*(pthread_t *)thread, SIGUSR1);
        usleep(200);
    }
    return (void *)sent;
}

static void interrupted(void) {
    pthread_t self = pthread_self(), thread;
    uint64_t before, after, word;
    CHECK(signal(SIGUSR1, on_usr1) != SIG_ERR);
    CHECK(call(1, 0, &before) == PARTYWALL_DONE);
    CHECK(pthread_create(&thread, NULL, sender, &self) == 0);
    for (int i = 0; i < 100; i++) CHECK(call(24, 20000, &word) == PARTYWALL_DONE && word == 24);
    go_on = 0;
    void *sent;
    CHECK(pthread_join(thread, &sent) == 0);
    CHECK(signals > 10 && signals <= (uint64_t)sent);
    // The callee's own count, in its thread-local storage, is whole.
    CHECK(call(1, 0, &after) == PARTYWALL_DONE && after == before + 101);
}

static void on_segv(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info, (void)context;
    traps++;
}

// Signals of a fault's number that somebody has sent are not the callee's, and not the end.
static void sent(void) {
    pthread_t self = pthread_self();
    CHECK(signal(SIGFPE, SIG_IGN) != SIG_ERR);
    CHECK(raise(SIGFPE) == 0);
    CHECK(pthread_kill(self, SIGFPE) == 0);
    struct sigaction action = { .sa_sigaction = on_segv, .sa_flags = SA_SIGINFO }, seen;
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
    traps = 0;
    CHECK(raise(SIGSEGV) == 0 && traps == 1);
    CHECK(sigaction(SIGSEGV, NULL, &seen) == 0 && seen.sa_sigaction == on_segv);
    CHECK(signal(SIGSEGV, SIG_DFL) != SIG_ERR);
}

// One trap after the other at each instruction after a handler, up to one more each time: the way back
// into the callee, and the next handler on it.
static volatile uint64_t steps = 1, stepped;
static volatile int steps_now;
static void on_step(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    if (++stepped >= steps) ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~0x100;
}
static void on_alarm(int signal) {
    (void)signal;
    if (!steps_now) return;
    steps_now = 0;
    __asm__ volatile("pushfq\n orq $0x100, (%%rsp)\n popfq" ::: "memory", "cc");
}
static void *one_alarm(void *thread) {
    usleep(1000);
    pthread_kill(*(pthread_t *)thread, SIGALRM);
    return NULL;
}
static void stepped_back(void) {
    pthread_t self = pthread_self(), thread;
    struct sigaction action = { .sa_sigaction = on_step, .sa_flags = SA_SIGINFO };
    CHECK(sigaction(SIGTRAP, &action, NULL) == 0 && signal(SIGALRM, on_alarm) != SIG_ERR);
    uint64_t word;
    for (int tries = 0; tries < 1000; tries++) {
        stepped = 0;
        steps_now = 1;
        CHECK(pthread_create(&thread, NULL, one_alarm, &self) == 0);
        CHECK(call(37, 60, &word) == PARTYWALL_DONE && word == 37);
        CHECK(pthread_join(thread, NULL) == 0 && !steps_now);
        if (stepped == steps) steps++;
        else if (stepped > 20) break;
        // Else the alarm came before the call, or after it.
    }
    // All of them, until the kernel has left the handler.
    CHECK(steps > 20 && stepped == steps - 1);
}

// Numbers of nobody, and of others, are refused.
static void not_ones_own(void) {
    // In another state, of another place, of another use of its place; and what was never one.
    uint64_t links[] = { link_ + 1, link_ + 8, link_ ^ 1 << 15, 4095, 4096, UINT32_MAX, UINT64_MAX };
    for (unsigned i = 0; i < sizeof links / sizeof *links; i++) {
        struct partywall_outcome o = domain->call(caller, links[i], 0, 0, 0, LONG);
        CHECK(o.status == PARTYWALL_CLOSED || o.status == PARTYWALL_DENIED);
    }
    uint64_t callers[] = { caller + 1, 4096, UINT64_MAX };
    for (unsigned i = 0; i < sizeof callers / sizeof *callers; i++)
        CHECK(domain->call(callers[i], link_, 0, 0, 0, LONG).status == PARTYWALL_DENIED);
}

// A handler of this program that takes longer than the callee it has interrupted may.
static volatile int handled;
static void on_usr2(int signal) {
    (void)signal;
    struct timespec t = { 0, 400000000 };
    while (nanosleep(&t, &t)) {}
    handled = 1;
}
static void *one_signal(void *thread) {
    usleep(5000);
    pthread_kill(*(pthread_t *)thread, SIGUSR2);
    return NULL;
}
static void long_handler(void) {
    pthread_t self = pthread_self(), thread;
    CHECK(signal(SIGUSR2, on_usr2) != SIG_ERR);
    CHECK(pthread_create(&thread, NULL, one_signal, &self) == 0);
    struct partywall_outcome o = domain->call(caller, link_, 5, 0, 0, 200000000);
    CHECK(o.status == PARTYWALL_DEADLINE && handled == 1);
    CHECK(pthread_join(thread, NULL) == 0);
}

// A handler has the signal stack, on which what comes inside a callee would begin anew.
static volatile uint64_t from_handler;
static void on_usr1_call(int signal) {
    (void)signal;
    from_handler = domain->call(caller, link_, 0, 40, 0, LONG).status;
}
static void calls_in_a_handler(void) {
    uint64_t word;
    from_handler = PARTYWALL_DONE;
    CHECK(signal(SIGUSR1, on_usr1_call) != SIG_ERR && raise(SIGUSR1) == 0);
    CHECK(from_handler == PARTYWALL_DENIED);
    CHECK(call(0, 40, &word) == PARTYWALL_DONE && word == 40);
}

// The entrances, with the thread-local storage of another domain.
#define AS(victim, expression) ({ \
    uint64_t own_, result_; \
    __asm__ volatile("rdfsbase %0" : "=r"(own_)); \
    __asm__ volatile("wrfsbase %0" : : "r"(victim) : "memory"); \
    result_ = (uint64_t)(expression); \
    __asm__ volatile("wrfsbase %0" : : "r"(own_) : "memory"); \
    (int64_t)result_; })
static void entrances(int which) {
    uint64_t victim, word;
    pid_t own = getpid();
    CHECK(call(33, 0, &victim) == PARTYWALL_DONE && victim >= domain->base);
    switch (which) {
    case 0: CHECK(AS(victim, domain->accept(0)) == -EPERM); break;
    case 1: CHECK(AS(victim, domain->declare(PARTYWALL_NO_SYSTEM_CALLS)) == -EPERM); break;
    case 2: CHECK(AS(victim, domain->offer((uint64_t)own, 70, 1)) == -EPERM); break;
    case 3: CHECK(AS(victim, domain->take(7)) == -EPERM); break;
    case 4: CHECK(AS(victim, domain->arena(link_)) == -EPERM); break;
    case 5: CHECK(AS(victim, domain->arm()) == -EPERM); break;
    case 6: CHECK(AS(victim, domain->park((partywall_entry *)victim)) == -EPERM); break;
    case 7: CHECK(AS(victim, (domain->release(link_), 0)) == 0); break;
    case 8: CHECK(AS(victim, domain->forwards(caller)) == 0); break;
    default: _exit(1);
    }
    // The victim takes calls, which may make system calls, over the same link.
    CHECK(call(60, 3, &word) == PARTYWALL_DONE && word == 3);
}

// Threads that end without disarming, one after the other, many more than there are contexts.
static void *once(void *unused) {
    (void)unused;
    uint64_t word, who = (uint64_t)domain->arm();
    struct partywall_outcome o;
    for (int tries = 0;; tries++) {
        o = domain->call(who, link_, 0, 40, 2, LONG);
        if (o.status != PARTYWALL_UNBOUND) break;
        // Who was joined may not be gone for the kernel yet.
        if (domain->bind(who, link_) == -EAGAIN) usleep(1000);
        if (tries > 1000) return (void *)(uintptr_t)PARTYWALL_BUSY;
    }
    word = o.word;
    return (void *)(uintptr_t)(o.status == PARTYWALL_DONE && word == 42 ? 0 : 100 + o.status);
}
static void threads(int count) {
    for (int i = 0; i < count; i++) {
        pthread_t thread;
        void *status;
        CHECK(pthread_create(&thread, NULL, once, NULL) == 0 && pthread_join(thread, &status) == 0);
        if (status) {
            printf("thread %d: %ld\n", i, (long)(uintptr_t)status);
            fflush(stdout);
            _exit(1);
        }
    }
}

// One call to each callee that comes, astray at the next of these places; says how it has ended.
static void astray(int places, char **place) {
    for (int i = 0; i < places; i++) {
        uint64_t word, status = call_for(20000000, 39, strtoull(place[i], NULL, 10), &word);
        printf("%s %lu\n", place[i], (unsigned long)status);
        fflush(stdout);
        if (i + 1 == places) break;
        domain->release(link_);
        int64_t taken;
        while ((taken = domain->take(7)) < 0) usleep(200);
        link_ = (uint64_t)taken;
    }
}

// A copy of the callee, made in the middle of a call, must not come back here.
static void copied(void) {
    pid_t own = getpid();
    uint64_t status;
    uint64_t ended = call(38, 0, &status);
    if (getpid() != own) _exit(55);
    CHECK(ended == PARTYWALL_DONE);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGILL) {
        printf("the copy ended with %#lx\n", (unsigned long)status);
        fflush(stdout);
        _exit(1);
    }
}

// Calls and calls, whoever is there to be called.
static void load(void) {
    uint64_t word, calls = 0;
    for (;;) {
        uint64_t status = call(0, ++calls, &word);
        if (status == PARTYWALL_DONE) {
            CHECK(word == calls);
            continue;
        }
        if (status != PARTYWALL_CLOSED) continue;
        int64_t taken;
        domain->release(link_);
        while ((taken = domain->take(7)) < 0) usleep(200);
        link_ = (uint64_t)taken;
    }
}

int main(int argc, char **argv) {
    domain = partywall_domain();
    if (!domain || argc < 2) return 99;
    caller = (uint64_t)domain->arm();
    puts("ready");
    fflush(stdout);
    int64_t taken;
    while ((taken = domain->take(7)) < 0) usleep(1000);
    link_ = (uint64_t)taken;
    if (!strcmp(argv[1], "load")) load();
    uint64_t word;
    CHECK(call(0, 40, &word) == PARTYWALL_DONE && word == 40);
    if (!strcmp(argv[1], "all")) {
        flags();
        numbers();
        storage();
        interrupted();
        stepped_back();
        calls_in_a_handler();
        not_ones_own();
        sent();
    } else if (!strcmp(argv[1], "handler")) {
        long_handler();
        puts("ok");
        return 0;
    } else if (!strcmp(argv[1], "entrances")) {
        entrances(atoi(argv[2]));
    } else if (!strcmp(argv[1], "threads")) {
        threads(atoi(argv[2]));
    } else if (!strcmp(argv[1], "astray")) {
        astray(argc - 2, argv + 2);
        puts("ok");
        return 0;
    } else if (!strcmp(argv[1], "rights")) {
        CHECK(call(strtoull(argv[2], NULL, 10), 0, &word) == PARTYWALL_FAULT);
        puts("ok");
        return 0;
    } else if (!strcmp(argv[1], "copied")) {
        copied();
    } else if (!strcmp(argv[1], "stack")) {
        uint64_t status;
        ENTER("mov $64, %%rsp\n mov $3000000000, %%r9", "", 0, 1, status, word);
        CHECK(status == PARTYWALL_DENIED);
    } else if (!strcmp(argv[1], "stay")) {
        puts("inside");
        fflush(stdout);
        call(5, 0, &word);
    }
    CHECK(call(0, 41, &word) == PARTYWALL_DONE && word == 41);
    puts("ok");
    return 0;
}
