/* A program as a Partywall domain, in C: what it finds, and the gate. The layout is that of
 * crates/abi/src/domain.rs, which says what each entry point does.
 *
 * A program that is not started by a launcher finds NULL, and so does one that a domain has started. */
#ifndef PARTYWALL_DOMAIN_H
#define PARTYWALL_DOMAIN_H

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/auxv.h>

#define PARTYWALL_DOMAIN_AUXILIARY 0x6f645750ul /* "PWdo" */
#define PARTYWALL_DOMAIN_MAGIC 0x6e69616d6f645750ull /* "PWdomain" */
#define PARTYWALL_DOMAIN_VERSION 4u

enum partywall_gate_status {
    PARTYWALL_DONE = 0,
    PARTYWALL_BUSY = 1,
    PARTYWALL_CLOSED = 2,
    PARTYWALL_DENIED = 3,
    PARTYWALL_DEPTH_EXCEEDED = 4,
    PARTYWALL_FAULT = 5,
    PARTYWALL_DEADLINE = 6,
    PARTYWALL_DIED = 7,
    PARTYWALL_SYSTEM_CALL = 8,
    PARTYWALL_UNBOUND = 9,
};

struct partywall_outcome {
    uint64_t status;
    uint64_t word;
};

/* What is called: in the caller's thread, with the callee's thread-local storage. `arena` is where
 * the link's arena is, NULL when it has none: PARTYWALL_HALF bytes that the caller has written, and
 * as many for the answer. Pass `caller` on when calling others from here. */
typedef uint64_t partywall_entry(uint64_t caller, uint64_t cookie, uint64_t a, uint64_t b,
                                 uint64_t c, unsigned char *arena);
#define PARTYWALL_HALF (1ull << 30)

/* Declarations of a domain: its functions make no system calls, and one that does is ended. */
#define PARTYWALL_NO_SYSTEM_CALLS 1u

struct partywall_domain {
    uint64_t magic;
    uint32_t version;
    uint32_t bytes;
    uint64_t base;
    uint64_t slot;
    /* A signal that comes meanwhile runs its handler as usual; it is not to leave by siglongjmp. A
     * handler that calls is PARTYWALL_DENIED. */
    struct partywall_outcome (*call)(uint64_t caller, uint64_t link, uint64_t a, uint64_t b,
                                     uint64_t c, uint64_t limit);
    int64_t (*arm)(void);
    void (*disarm)(uint64_t caller);
    /* Lends the calling thread; partywall_lend() does so until the program ends. -EINTR when the C library
     * has sent it a signal of its own, as setuid(2) and pthread_cancel(3) do. */
    int64_t (*park)(partywall_entry *entry);
    int64_t (*offer)(uint64_t pid, uint64_t number, uint64_t cookie);
    int64_t (*take)(uint64_t number);
    void (*release)(uint64_t link);
    int64_t (*bind)(uint64_t caller, uint64_t link);
    int64_t (*declare)(uint64_t declarations);
    int64_t (*arena)(uint64_t link);
    int64_t (*open)(uint64_t link, uint64_t open);
    uint64_t keys;
    uint64_t (*forwards)(uint64_t caller);
    int64_t (*accept)(uint64_t open);
};

static inline const struct partywall_domain *partywall_domain(void) {
    const struct partywall_domain *domain =
        (const struct partywall_domain *)getauxval(PARTYWALL_DOMAIN_AUXILIARY);
    if (!domain || domain->magic != PARTYWALL_DOMAIN_MAGIC ||
        domain->version != PARTYWALL_DOMAIN_VERSION || domain->bytes != sizeof *domain)
        return NULL;
    return domain;
}

/* Lends the calling thread until the program ends, or the thread is cancelled; minus an error number if it
 * cannot be lent. To cancel a thread in which a call is being made ends that call at its limit. */
static inline int64_t partywall_lend(const struct partywall_domain *domain, partywall_entry *entry) {
    int before;
    int64_t lent;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before);
    while ((lent = domain->park(entry)) == -EINTR) {}
    pthread_setcanceltype(before, &before);
    return lent;
}

#endif
