// A domain that attacks another one in the way it is told: `attacker WAY ADDRESS PID CODE PAGE THREAD`.
// ADDRESS is that of a secret of the domain PID, CODE that of a function of it which returns 7, PAGE that
// of memory of the launcher, whose thread THREAD calls. Prints `open` and what it got, `stopped` and by
// what, or `untried` and what this machine has not; or dies.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <asm/ldt.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
#include "partywall_domain.h"

#define SECRET 0x5ec4e75ec4e75ec4ull
#define PAGE 4096ull

static const struct partywall_domain *domain;
static volatile uint64_t *secret;
static pid_t victim;
static uint64_t (*code)(void);
static volatile uint64_t *launchers;
static uint64_t thread;

static void open_(const char *how) { printf("open: %s\n", how); fflush(stdout); _exit(0); }
static void stopped(const char *by) { printf("stopped: %s\n", by); fflush(stdout); _exit(0); }
static void failed(void) { stopped(strerrorname_np(errno)); }
static void untried(const char *without) { printf("untried: %s\n", without); fflush(stdout); _exit(0); }
static void read_it(const char *how) { if (*secret == SECRET) open_(how); stopped("another value"); }

static uint32_t rights(void) {
    uint32_t eax, edx;
    __asm__ volatile("rdpkru" : "=a"(eax), "=d"(edx) : "c"(0));
    return eax;
}
static void set_rights(uint32_t to) {
    __asm__ volatile("wrpkru" : : "a"(to), "c"(0), "d"(0) : "memory");
}
static void *page(int protection) {
    void *at = mmap(NULL, PAGE, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) failed();
    return at;
}

static void direct_read(void) { read_it("read"); }
static void direct_write(void) { *secret = 1; open_("written"); }
static void vm_readv(void) {
    uint64_t got = 0;
    struct iovec to = { &got, 8 }, from = { (void *)secret, 8 };
    if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) != 8) failed();
    if (got == SECRET) open_("read");
    stopped("another value");
}
static void vm_writev(void) {
    uint64_t put = 1;
    struct iovec from = { &put, 8 }, to = { (void *)secret, 8 };
    if (process_vm_writev(getpid(), &from, 1, &to, 1, 0) != 8) failed();
    open_("written");
}
static void proc_mem(int writes) {
    int fd = open("/proc/self/mem", O_RDWR);
    uint64_t got = 1;
    if (fd < 0) failed();
    if (writes) {
        if (pwrite(fd, &got, 8, (off_t)(uintptr_t)secret) != 8) failed();
        open_("written");
    }
    if (pread(fd, &got, 8, (off_t)(uintptr_t)secret) != 8) failed();
    if (got == SECRET) open_("read");
    stopped("another value");
}
static void proc_mem_read(void) { proc_mem(0); }
static void proc_mem_write(void) { proc_mem(1); }

static void *secret_page(void) { return (void *)((uintptr_t)secret & ~(PAGE - 1)); }
static void retag(void) {
    if (pkey_mprotect(secret_page(), PAGE, PROT_READ | PROT_WRITE, 0)) failed();
    read_it("read");
}
static void reprotect(void) {
    if (mprotect(secret_page(), PAGE, PROT_READ | PROT_WRITE)) failed();
    read_it("read");
}
static void free_and_take(void) {
    for (int key = 1; key < 16; key++) pkey_free(key);
    int key, most = 0;
    while (most++ < 16 && (key = pkey_alloc(0, 0)) > 0) {}
    read_it("read");
}
static void map_over(void) {
    void *at = mmap(secret_page(), PAGE, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (at == MAP_FAILED) failed();
    open_("replaced");
}
static void move_away(void) {
    void *to = page(PROT_READ | PROT_WRITE);
    void *at = mremap(secret_page(), PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to);
    if (at == MAP_FAILED) failed();
    open_("moved");
}
static void move_over(void) {
    void *at = mremap(page(PROT_READ | PROT_WRITE), PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, secret_page());
    if (at == MAP_FAILED) failed();
    open_("replaced");
}
// The same by the system-call instruction of the gate's page, which no filter looks at.
static int64_t by_gate(int64_t number, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f) {
    int64_t (*call)(int64_t, const uint64_t *) =
        (int64_t (*)(int64_t, const uint64_t *))((uintptr_t)domain->call & ~(PAGE - 1));
    uint64_t arguments[6] = { a, b, c, d, e, f };
    int64_t result = call(number, arguments);
    if (result < 0 && result > -4096) { errno = (int)-result; failed(); }
    return result;
}
static void map_by_gate(void) {
    by_gate(SYS_mmap, (uint64_t)(uintptr_t)secret_page(), PAGE, PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, ~0ull, 0);
    open_("replaced");
}
static void move_by_gate(void) {
    void *to = page(PROT_READ | PROT_WRITE);
    by_gate(SYS_mremap, (uint64_t)(uintptr_t)secret_page(), PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED,
            (uint64_t)(uintptr_t)to, 0);
    open_("moved");
}
static void unmap(void) {
    if (munmap(secret_page(), PAGE)) failed();
    open_("gone");
}
static void grow_heap(void) {
    void *before = sbrk(0);
    if (brk((char *)before + (1 << 20))) failed();
    open_("grown");
}
static void forget(void) {
    if (madvise(secret_page(), PAGE, MADV_DONTNEED)) failed();
    open_("thrown away");
}

// mov eax, edi; xor ecx, ecx; xor edx, edx; wrpkru; ret
static const unsigned char CODE[] = { 0x89, 0xf8, 0x31, 0xc9, 0x31, 0xd2, 0x0f, 0x01, 0xef, 0xc3 };
static void run(void *at) {
    ((void (*)(uint32_t))at)(0);
    read_it("own code run");
}
static void write_and_execute(void) {
    void *at = page(PROT_READ | PROT_WRITE | PROT_EXEC);
    memcpy(at, CODE, sizeof CODE);
    run(at);
}
static void twins(void) {
    int fd = memfd_create("twins", 0);
    if (fd < 0 || ftruncate(fd, PAGE)) failed();
    void *in = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    void *out = mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 0);
    if (in == MAP_FAILED || out == MAP_FAILED) failed();
    memcpy(in, CODE, sizeof CODE);
    run(out);
}
static void rewritten_file(void) {
    int fd = memfd_create("file", 0);
    if (fd < 0 || ftruncate(fd, PAGE)) failed();
    void *out = mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
    if (out == MAP_FAILED || pwrite(fd, CODE, sizeof CODE, 0) != sizeof CODE) failed();
    run(out);
}
static void reads_imply(void) {
    if (personality(personality(0xffffffff) | READ_IMPLIES_EXEC) < 0) failed();
    void *at = page(PROT_READ | PROT_WRITE);
    memcpy(at, CODE, sizeof CODE);
    run(at);
}
static void old_calls(void) {
    // getpid of the 32-bit table: what the filter takes for something else.
    int64_t said;
    __asm__ volatile("int $0x80" : "=a"(said) : "a"(20ll) : "r8", "r9", "r10", "r11", "memory");
    if (said != getpid()) stopped("no 32-bit calls");
    open_("a 32-bit call is made");
}
static void x32_calls(void) {
    if (syscall(0x40000000 | SYS_getpid) < 0) failed();
    open_("an x32 call is made");
}
static void own_instruction(void) { set_rights(0); read_it("read"); }

static char state[4096 + 64] __attribute__((aligned(64)));
static void restore_state(void) {
    // Component 9 is PKRU; not in use in the image, it becomes 0 (Intel SDM volume 1, 13.8).
    __asm__ volatile("xrstor (%0)" : : "r"(state), "a"(0x200), "d"(0) : "memory");
    read_it("read");
}

// Every place of the gate's page where rights are set, entered with all of them.
static void into_the_gate(int which) {
    const unsigned char *gate = (const unsigned char *)((uintptr_t)domain->call & ~(PAGE - 1));
    int found = 0;
    for (uint64_t at = 0; at + 3 <= PAGE; at++) {
        if (memcmp(gate + at, "\x0f\x01\xef", 3) || found++ != which) continue;
        uint64_t go = (uint64_t)(uintptr_t)(gate + at);
        static uint64_t stack[512];
        // Whatever it pops, it comes back here.
        for (int i = 0; i < 512; i++) stack[i] = (uint64_t)(uintptr_t)direct_read;
        __asm__ volatile(
            "mov %1, %%rsp\n xor %%eax, %%eax\n xor %%ecx, %%ecx\n xor %%edx, %%edx\n"
            "xor %%ebx, %%ebx\n xor %%ebp, %%ebp\n xor %%r12d, %%r12d\n xor %%r13d, %%r13d\n"
            "xor %%edi, %%edi\n xor %%esi, %%esi\n xor %%r8d, %%r8d\n xor %%r9d, %%r9d\n"
            "xor %%r10d, %%r10d\n xor %%r14d, %%r14d\n xor %%r15d, %%r15d\n jmp *%0"
            : : "r"(go), "r"(stack + 256) : "memory");
    }
    stopped("there are no more");
}

// Into the entry of a handler at the place where it takes all rights, with a frame as the kernel makes it
// and a signal that means nothing: back from there by that frame.
static void into_a_handler(void) {
    const unsigned char *gate = (const unsigned char *)((uintptr_t)domain->call & ~(PAGE - 1));
    struct { uint64_t handler, flags, restorer, mask; } known;
    by_gate(SYS_rt_sigaction, SIGSYS, 0, (uint64_t)(uintptr_t)&known, 8, 0, 0);
    const unsigned char *at = (const unsigned char *)(uintptr_t)known.handler;
    if (at < gate || at >= gate + PAGE) stopped("unknown handler");
    while (memcmp(at, "\x0f\x01\xef", 3)) at++;
    static char memory[65536] __attribute__((aligned(64)));
    uint64_t *frame = (uint64_t *)(memory + 32768);
    ucontext_t *context = (ucontext_t *)(frame + 1);
    frame[0] = known.restorer;
    uint16_t cs, ss;
    __asm__("mov %%cs, %0" : "=r"(cs));
    __asm__("mov %%ss, %0" : "=r"(ss));
    context->uc_mcontext.gregs[REG_RIP] = (int64_t)(uintptr_t)direct_read;
    context->uc_mcontext.gregs[REG_RSP] = (int64_t)(uintptr_t)(memory + 16384 - 8);
    context->uc_mcontext.gregs[REG_CSGSFS] = cs | (int64_t)ss << 48;
    context->uc_mcontext.gregs[REG_EFL] = 0x202;
    memset(state, 0, 512);
    state[0] = 0x7f, state[1] = 3, *(uint32_t *)(state + 24) = 0x1f80;
    context->uc_mcontext.fpregs = (void *)state;
    // The information that comes after the context says that somebody has sent it.
    memset((char *)frame + 8 + 304, 0, 128);
    __asm__ volatile(
        "mov %0, %%rsp\n mov %1, %%rsi\n mov %2, %%r8\n mov $31, %%edi\n xor %%eax, %%eax\n"
        "xor %%ecx, %%ecx\n xor %%edx, %%edx\n jmp *%3"
        : : "r"(frame), "r"((char *)frame + 8 + 304), "r"(context), "r"(at)
        : "rsi", "r8", "rdi", "rax", "rcx", "rdx", "memory");
}

// Step by step into an entrance until all rights are there, and somewhere else with them.
static void on_step(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *gate = (const unsigned char *)((uintptr_t)domain->call & ~(PAGE - 1));
    const unsigned char *at = (const unsigned char *)(uintptr_t)registers[REG_RIP];
    if (at < gate || at >= gate + PAGE || memcmp(at - 3, "\x0f\x01\xef", 3)) return;
    registers[REG_RIP] = (greg_t)(uintptr_t)direct_read;
    registers[REG_RSP] = (registers[REG_RSP] & ~15ll) - 8 - 4096;
    registers[REG_EFL] &= ~0x100;
}
static void stepped(void) {
    struct sigaction action = { .sa_sigaction = on_step, .sa_flags = SA_SIGINFO };
    if (sigaction(SIGTRAP, &action, NULL)) failed();
    __asm__ volatile("pushfq\n orq $0x100, (%%rsp)\n popfq" ::: "memory", "cc");
    domain->accept(1);
    stopped("the entrance came back");
}

static void forged_return(void) {
    // A frame of a signal that never came, with rights in it.
    struct { ucontext_t context; siginfo_t info; } frame;
    memset(&frame, 0, sizeof frame);
    uint16_t cs, ss;
    __asm__("mov %%cs, %0" : "=r"(cs));
    __asm__("mov %%ss, %0" : "=r"(ss));
    static char stack[65536] __attribute__((aligned(64)));
    frame.context.uc_mcontext.gregs[REG_RIP] = (int64_t)(uintptr_t)direct_read;
    frame.context.uc_mcontext.gregs[REG_RSP] = (int64_t)(uintptr_t)(stack + 32768 - 8);
    frame.context.uc_mcontext.gregs[REG_CSGSFS] = cs | (int64_t)ss << 48;
    frame.context.uc_mcontext.gregs[REG_EFL] = 0x202;
    // Legacy floating-point state alone: all other components take their first values, PKRU 0.
    memset(state, 0, 512);
    state[0] = 0x7f, state[1] = 3, *(uint32_t *)(state + 24) = 0x1f80;
    frame.context.uc_mcontext.fpregs = (void *)state;
    __asm__ volatile("mov %0, %%rsp\n mov $15, %%eax\n syscall" : : "r"(&frame) : "memory");
}

static void edit(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    ucontext_t *c = context;
    c->uc_mcontext.fpregs = NULL;
    memset(state, 0, 512);
    state[0] = 0x7f, state[1] = 3, *(uint32_t *)(state + 24) = 0x1f80;
    c->uc_mcontext.fpregs = (void *)state;
}
static void edited_frame(void) {
    struct sigaction action = { .sa_sigaction = edit, .sa_flags = SA_SIGINFO };
    if (sigaction(SIGALRM, &action, NULL)) failed();
    raise(SIGALRM);
    read_it("read");
}

static void call_the_handler(void) {
    struct { uint64_t handler, flags, restorer, mask; } known;
    // What the kernel knows, not what our own call is told: asked from the gate's page.
    int64_t (*call)(int64_t, const uint64_t *) =
        (int64_t (*)(int64_t, const uint64_t *))((uintptr_t)domain->call & ~(PAGE - 1));
    uint64_t arguments[6] = { SIGSEGV, 0, (uint64_t)(uintptr_t)&known, 8, 0, 0 };
    if (call(SYS_rt_sigaction, arguments)) stopped("unknown handler");
    static siginfo_t info;
    static ucontext_t context;
    ((void (*)(int, siginfo_t *, void *))(uintptr_t)known.handler)(SIGSEGV, &info, &context);
    read_it("left open");
}

static char area[64] __attribute__((aligned(32)));
static void register_rseq(void) {
    if (syscall(SYS_rseq, area, 32, 0, 0x53053053)) failed();
    open_("registered");
}

// Rings in memory of one's own (IORING_SETUP_NO_MMAP, from Linux 6.5 on): the kernel places none in a slot.
// The words of the structure for that are called otherwise in older headers.
#define NO_MMAP (1u << 14)
static struct io_uring_params rings = { .flags = NO_MMAP };
static char *queues;
static struct io_uring_sqe *entries;
// The kernel writes what is at `from` into a pipe, as its n-th write by the ring; what it says, or -errno.
static int write_by_ring(int ring, int to, uint32_t n, volatile void *from) {
    entries[n] = (struct io_uring_sqe){ .opcode = IORING_OP_WRITE, .fd = to, .flags = IOSQE_ASYNC,
                                        .addr = (uint64_t)(uintptr_t)from, .len = 8 };
    ((uint32_t *)(queues + rings.sq_off.array))[n] = n;
    __atomic_store_n((uint32_t *)(queues + rings.sq_off.tail), n + 1, __ATOMIC_RELEASE);
    while (__atomic_load_n((uint32_t *)(queues + rings.cq_off.tail), __ATOMIC_ACQUIRE) == n)
        if (syscall(SYS_io_uring_enter, ring, 1, n + 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0) return -errno;
    return ((struct io_uring_cqe *)(queues + rings.cq_off.cqes))[n].res;
}
static void ring(void) {
    int pipes[2];
    char why[64];
    uint64_t got = 0;
    queues = page(PROT_READ | PROT_WRITE);
    entries = page(PROT_READ | PROT_WRITE);
    volatile uint64_t *own = page(PROT_READ | PROT_WRITE);
    memcpy((char *)&rings.sq_off + 32, &entries, 8);
    memcpy((char *)&rings.cq_off + 32, &queues, 8);
    int ring = (int)syscall(SYS_io_uring_setup, 4, &rings);
    if (ring < 0) {
        snprintf(why, sizeof why, "no such rings (%s)", strerrorname_np(errno));
        untried(why);
    }
    if (pipe(pipes)) failed();
    // Only a ring that reads this can be stopped from reading what others have.
    *own = 7;
    int said = write_by_ring(ring, pipes[1], 0, own);
    if (said != 8 || read(pipes[0], &got, 8) != 8 || got != 7) {
        const char *code = said < 0 ? strerrorname_np(-said) : "no error";
        snprintf(why, sizeof why, "a ring that does not read an own page (%s)", code);
        untried(why);
    }
    said = write_by_ring(ring, pipes[1], 1, secret);
    if (said < 0) { errno = -said; failed(); }
    if (read(pipes[0], &got, 8) == 8 && got == SECRET) open_("written to a pipe");
    stopped("another value");
}

static void trace(void) {
    if (ptrace(PTRACE_ATTACH, victim, NULL, NULL)) failed();
    waitpid(victim, NULL, __WALL);
    errno = 0;
    uint64_t got = (uint64_t)ptrace(PTRACE_PEEKDATA, victim, (void *)secret, NULL);
    ptrace(PTRACE_DETACH, victim, NULL, NULL);
    if (got == SECRET) open_("read");
    failed();
}
// A child, which has descriptors and rights of its own, traces its parent.
static void trace_parent(void) {
    pid_t child = fork();
    if (child) { for (;;) pause(); }
    pid_t parent = getppid();
    if (ptrace(PTRACE_ATTACH, parent, NULL, NULL)) failed();
    waitpid(parent, NULL, __WALL);
    errno = 0;
    uint64_t got = (uint64_t)ptrace(PTRACE_PEEKDATA, parent, (void *)secret, NULL);
    int why = errno;
    kill(parent, SIGKILL);
    ptrace(PTRACE_DETACH, parent, NULL, NULL);
    errno = why;
    if (got == SECRET) open_("read");
    failed();
}
static void core(void) { abort(); }
static void raised_core(void) {
    // Enough for a part of it.
    struct rlimit limit = { 1 << 20, 1 << 20 };
    if (setrlimit(RLIMIT_CORE, &limit)) failed();
    abort();
}

static void signal_stack(void) {
    uint64_t first = domain->base + 64 * domain->slot;
    *(volatile uint64_t *)(first + (2 * (thread % 1024) + 2) * 65536 - 8) = 1;
    open_("written");
}
static void read_launcher(void) {
    if (*launchers == SECRET) open_("read");
    stopped("another value");
}
static void write_launcher(void) { *launchers = 1; open_("written"); }
static void write_tables(void) { *(volatile uint64_t *)&((struct partywall_domain *)domain)->base = 1; open_("written"); }
static void write_gate(void) { *(volatile uint64_t *)(uintptr_t)domain->call = 1; open_("written"); }
static void close_launcher(void) {
    if (mprotect((void *)launchers, PAGE, PROT_NONE)) failed();
    open_("closed to all");
}
static void fetch(void) {
    if (code() == 7) open_("the other's code run");
    stopped("another value");
}
static void fault_in(void) {
    if (madvise(secret_page(), PAGE, MADV_DONTNEED)) failed();
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = { .api = UFFD_API };
    uint64_t start = (uint64_t)(uintptr_t)secret_page();
    struct uffdio_register range = { .range = { start, PAGE }, .mode = UFFDIO_REGISTER_MODE_MISSING };
    struct uffdio_copy copy = { .dst = start, .src = (uint64_t)(uintptr_t)page(PROT_READ | PROT_WRITE), .len = PAGE };
    if (fd < 0 || ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &range)) failed();
    if (ioctl(fd, UFFDIO_COPY, &copy)) failed();
    open_("written");
}
static void descriptor(void) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/1", (int)victim);
    if (open(path, O_WRONLY) < 0) failed();
    open_("opened");
}
static void segment(void) {
    struct user_desc entry = { .base_addr = 0, .limit = 0xfffff, .seg_32bit = 1, .limit_in_pages = 1, .useable = 1 };
    if (syscall(SYS_modify_ldt, 1, &entry, sizeof entry)) failed();
    open_("made");
}
static void no_dispatch(void) {
    if (domain->arm() < 0 || prctl(59, 0, 0, 0, 0)) failed();
    open_("turned off");
}
static void kill_it(void) {
    if (kill(victim, SIGKILL)) failed();
    open_("killed");
}

static const struct { const char *name; void (*way)(void); } WAYS[] = {
    { "direct_read", direct_read }, { "direct_write", direct_write },
    { "vm_readv", vm_readv }, { "vm_writev", vm_writev },
    { "proc_mem_read", proc_mem_read }, { "proc_mem_write", proc_mem_write },
    { "retag", retag }, { "reprotect", reprotect }, { "free_and_take", free_and_take },
    { "map_over", map_over }, { "move_away", move_away }, { "move_over", move_over },
    { "unmap", unmap }, { "grow_heap", grow_heap }, { "forget", forget },
    { "write_and_execute", write_and_execute }, { "twins", twins }, { "rewritten_file", rewritten_file },
    { "reads_imply", reads_imply }, { "old_calls", old_calls }, { "x32_calls", x32_calls },
    { "own_instruction", own_instruction }, { "restore_state", restore_state },
    { "forged_return", forged_return }, { "edited_frame", edited_frame },
    { "call_the_handler", call_the_handler }, { "register_rseq", register_rseq }, { "ring", ring },
    { "trace", trace }, { "trace_parent", trace_parent }, { "core", core }, { "raised_core", raised_core },
    { "map_by_gate", map_by_gate }, { "move_by_gate", move_by_gate }, { "into_a_handler", into_a_handler },
    { "stepped", stepped }, { "signal_stack", signal_stack }, { "read_launcher", read_launcher },
    { "write_launcher", write_launcher }, { "write_tables", write_tables }, { "write_gate", write_gate },
    { "close_launcher", close_launcher }, { "fetch", fetch }, { "fault_in", fault_in },
    { "descriptor", descriptor }, { "segment", segment }, { "no_dispatch", no_dispatch }, { "kill_it", kill_it },
};

int main(int argc, char **argv) {
    domain = partywall_domain();
    if (!domain || argc != 7) return 99;
    secret = (volatile uint64_t *)(uintptr_t)strtoull(argv[2], NULL, 16);
    victim = (pid_t)strtol(argv[3], NULL, 10);
    code = (uint64_t (*)(void))(uintptr_t)strtoull(argv[4], NULL, 16);
    launchers = (volatile uint64_t *)(uintptr_t)strtoull(argv[5], NULL, 16);
    thread = strtoull(argv[6], NULL, 10);
    puts("ready");
    fflush(stdout);
    (void)rights;
    if (!strncmp(argv[1], "gate", 4)) into_the_gate((int)strtol(argv[1] + 4, NULL, 10));
    for (size_t i = 0; i < sizeof WAYS / sizeof *WAYS; i++)
        if (!strcmp(argv[1], WAYS[i].name)) WAYS[i].way();
    return 98;
}
