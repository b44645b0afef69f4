// A domain that adds three words: the callee of `gate/none`.
#include <stdio.h>
#include <unistd.h>
#include "partywall_domain.h"

static uint64_t add(uint64_t caller, uint64_t cookie, uint64_t a, uint64_t b, uint64_t c,
                    unsigned char *arena) {
    (void)caller, (void)cookie, (void)arena;
    return a + b + c;
}

static void *lender(void *domain) {
    partywall_lend(domain, add);
    return NULL;
}

int main(void) {
    const struct partywall_domain *domain = partywall_domain();
    pthread_t thread;
    if (!domain || pthread_create(&thread, NULL, lender, (void *)domain)) return 99;
    if (domain->offer((uint64_t)getppid(), 7, 0) < 0) return 98;
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
