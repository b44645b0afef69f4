# The page that enters the kernel and crosses between domains. It is the launcher's: every domain
# executes this one copy, none can write it. What it reads and writes are the tables of table.rs,
# found relative to the instruction pointer; no address comes from a register of its caller.
#
# partywall_syscall(number: rdi, arguments: rsi) -> rax
#     The kernel's call convention (syscall(2)): number in rax, arguments in rdi, rsi, rdx, r10,
#     r8, r9; rcx and r11 are lost.
#
# partywall_clone(frame: rdi) -> rax, partywall_fork(frame: rdi) -> rax
#     Makes a task for code that runs in a lent context, in the agent of that context: all registers
#     are those of the frame, and the child goes on where that code does. With a stack of its own
#     (clone) the child finds where below that stack, for the frame may be in use again by then;
#     without one (fork, vfork) it takes the stack of the code, after it has opened those of the signals
#     that the agent has blocked which the code has not. (It blocks none: code that has gone astray
#     comes here too, and must not keep from being ended.)
#
# partywall_enter(entry: rdi, stack: rsi, rights: edx)
#     Begins a program as the kernel does (System V ABI, x86-64 supplement, 3.4.1): rdx is what
#     the program is to register with atexit(3), nothing.
#
# partywall_restorer
#     Where the kernel sends a signal handler's return: rt_sigreturn(2), if what lies below the stack
#     pointer is this address, as below a frame of the kernel's: code that has gone astray is not to
#     have its stack taken for one. Padded, because Syscall User Dispatch compares the address after
#     the instruction, which must lie within the page.
#
# partywall_call(caller: rdi, link: rsi, words: rdx, rcx, r8, limit: r9) -> status: rax, word: rdx
#     The call gate. Both numbers are checked against the tables, and the caller against the thread
#     it says it is. It takes the context of the callee that this thread owns, saves there what the
#     ABI has a function keep, switches thread-local storage and stack, and calls the context's entry with
#     (caller, the link's cookie, words, the link's arena). Way back: the context is the one whose stack top
#     the stack pointer is, whatever the callee has left in other registers.
#
#     entry                                  back
#     1 flags as the ABI has them            1 the context, by the stack pointer
#     2 whom it is about to enter; rights,   2 out of the context: from here on the thread is
#       a context, busy; wake the watchdog     the caller's again
#                                            3 floating-point control, flags
#     3 save; note who is inside, and for    4 time
#       how long it may; time, if it is due  5 the context is free, unless it is poisoned
#     4 inside: system calls are trapped,
#       faults are the callee's
#     5 thread-local storage, stack, entry
#
#     Reading the time stamp counter costs as much as a third of all the rest, so after a short call 15
#     are not timed, and the one after them counts 16 times, unless it takes a millisecond; after a long
#     one the next is timed.
#
#     Rights to protection keys are the caller's up to step 2, all of them from there on, the
#     callee's from step 5 on; and the same on the way back.
#
# partywall_abort(status: rax), partywall_abort_open(status: rax), partywall_abort_first(status: rax)
#     Where a signal handler sends a thread whose callee has failed, with the stack pointer at the
#     top of the innermost context's stack. A callee may have left rights that do not even reach the
#     tables: the second opens everything, where protection keys keep domains apart; the third gives the
#     thread the rights that the kernel gives to a program, where they do not and the processor has them.
#
# partywall_set_rights(rights: edi)
#     Gives the thread the rights of the domain whose thread-local storage it has, or those and some
#     arenas'.
#
# partywall_enter_NAME
#     A function of the launcher's for a domain: called with all rights, left with those before.
#
# partywall_handle_NAME
#     Where the kernel enters a signal handler: with rights that reach key 0 alone, maybe not even the
#     stack. Goes on in Rust with all rights, with the frame as a fourth argument.
#
# partywall_last_handler(signal: rdi, info: rsi, context: rdx, handler: rcx, rights: r8d, frame: r9)
#     Ends one of our handlers by going on in one of the program's, from which the kernel's frame
#     leads back to what was interrupted.
#
# partywall_run_handler(signal: rdi, info: rsi, context: rdx, handler: rcx, rights: r8d, caller: r9)
#     The same in the middle of a call: the thread has gone home for the handler, and goes back into
#     the callee after it. Another signal may come at any instruction of the way back: it finds a
#     thread that is at home, and leaves it so.
#
# Where rights are set, what they have become is checked afterwards against the tables, so that
# code that jumps here with rights of its own choice ends itself.

    .pushsection .text.partywall_gate, "ax", @progbits
    .balign 4096
    .globl partywall_gate_start
    .hidden partywall_gate_start
partywall_gate_start:

    .globl partywall_syscall
    .hidden partywall_syscall
    .type partywall_syscall, @function
partywall_syscall:
    mov rax, rdi
    mov r11, rsi
    mov rdi, [r11]
    mov rsi, [r11 + 8]
    mov rdx, [r11 + 16]
    mov r10, [r11 + 24]
    mov r8, [r11 + 32]
    mov r9, [r11 + 40]
    syscall
    ret
    .size partywall_syscall, . - partywall_syscall

    .macro SET_RIGHTS                           # eax; checked by where thread-local storage is
    xor ecx, ecx
    xor edx, edx
    wrpkru
    rdfsbase rdx
    CHECK_RIGHTS
    .endm

    .macro CHECK_RIGHTS                         # eax, for the domain that rdx lies in
    lea r11, [rip + {TABLES}]
    sub rdx, [r11 + {BASE}]
    shr rdx, {SLOT_SHIFT}
    mov ecx, {SLOTS}
    cmp rdx, rcx
    cmova rdx, rcx
    shl rdx, {DOMAIN_SHIFT}
    or eax, [r11 + {ARENAS}]
    cmp eax, [r11 + rdx + {DOMAINS} + {DOMAIN_RIGHTS}]
    jne .Llost
    .endm

    .macro OPEN                                 # changes eax, ecx, edx
    xor ecx, ecx
    xor edx, edx
    xor eax, eax
    wrpkru
    .endm

    .macro FIND_CALLER fail
    cmp edi, {CALLERS_MOST}
    jae \fail
    lea r11, [rip + {TABLES}]
    mov r12d, edi
    shl r12, {CALLER_SHIFT}
    lea r12, [r11 + r12 + {CALLERS}]
    rdfsbase rax
    cmp rax, [r12 + {CALLER_FS}]
    jne \fail
    .endm

    .macro ENTRANCE name, target, sets=1         # 0: the function sets the rights itself
    .globl \name
    .hidden \name
\name:
    cld
    push rbx
    mov r8, rdx
    xor ecx, ecx
    rdpkru
    mov ebx, eax
    OPEN
    mov rdx, r8
    call \target
    .if \sets
    mov r8, rax
    mov eax, ebx
    SET_RIGHTS
    mov rax, r8
    .endif
    pop rbx
    ret
    .endm

    .macro HANDLER name, target
    .globl \name
    .hidden \name
\name:
    mov r8, rdx
    cmp dword ptr [rip + {TABLES} + {KEYS}], 0
    je 1f
    xor ecx, ecx
    rdpkru
    cmp eax, [rip + {TABLES} + {HANDLER_RIGHTS}]
    jne .Llost                                  # called, not entered by the kernel
    OPEN
1:  mov rdx, r8
    mov rcx, rsp
    pushfq                                      # AC is as it was in what was interrupted
    and dword ptr [rsp], ~0x40000
    popfq
    jmp \target
    .endm

    .macro LEAVE_FOR_HANDLER                    # with the rights in r8d; the handler is in r10 then
    mov r9, rdx
    mov r10, rcx
    cmp dword ptr [rip + {TABLES} + {KEYS}], 0
    je 1f
    mov eax, r8d
    SET_RIGHTS
1:  mov rdx, r9
    .endm

    .macro LOAD_FRAME
    mov rdi, [r11 + {FRAME_RDI}]
    mov rsi, [r11 + {FRAME_RSI}]
    mov rdx, [r11 + {FRAME_RDX}]
    mov r10, [r11 + {FRAME_R10}]
    mov r8, [r11 + {FRAME_R8}]
    mov r9, [r11 + {FRAME_R9}]
    mov rbx, [r11 + {FRAME_RBX}]
    mov rbp, [r11 + {FRAME_RBP}]
    mov r12, [r11 + {FRAME_R12}]
    mov r13, [r11 + {FRAME_R13}]
    mov r14, [r11 + {FRAME_R14}]
    mov r15, [r11 + {FRAME_R15}]
    .endm

    .macro KEEP_REGISTERS
    push rbx
    push rbp
    push r12
    push r13
    push r14
    push r15
    .endm

    .macro RESTORE_REGISTERS
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbp
    pop rbx
    .endm

    .globl partywall_clone
    .hidden partywall_clone
    .type partywall_clone, @function
partywall_clone:
    KEEP_REGISTERS
    mov r11, rdi
    mov rax, [r11 + {FRAME_NUMBER}]
    LOAD_FRAME
    syscall
    test rax, rax
    jz .Lcloned
    RESTORE_REGISTERS
    ret
.Lcloned:
    mov rcx, [rsp - 8]
    jmp rcx
    .size partywall_clone, . - partywall_clone

    .globl partywall_fork
    .hidden partywall_fork
    .type partywall_fork, @function
partywall_fork:
    KEEP_REGISTERS
    push rdi
    mov r11, rdi
    mov rax, [r11 + {FRAME_NUMBER}]
    LOAD_FRAME
    syscall
    test rax, rax
    jz .Lforked
    add rsp, 8
    RESTORE_REGISTERS
    ret
.Lforked:
    mov r8, [rsp]
    mov edi, {SIG_UNBLOCK}
    lea rsi, [r8 + {FRAME_OPENED}]
    xor edx, edx
    mov r10d, 8
    mov eax, {SYS_SIGPROCMASK}
    syscall
    mov r11, [rsp]
    LOAD_FRAME
    xor eax, eax
    mov rsp, [r11 + {FRAME_RSP}]
    mov rcx, [r11 + {FRAME_RIP}]
    jmp rcx
    .size partywall_fork, . - partywall_fork

    .globl partywall_enter
    .hidden partywall_enter
    .type partywall_enter, @function
partywall_enter:
    mov r8, rdi
    mov rsp, rsi
    cmp dword ptr [rip + {TABLES} + {KEYS}], 0
    je 1f
    mov eax, edx
    xor ecx, ecx
    xor edx, edx
    wrpkru
    mov rdx, rsi
    CHECK_RIGHTS
1:  mov rax, r8
    xor ebx, ebx
    xor ecx, ecx
    xor edx, edx
    xor esi, esi
    xor edi, edi
    xor ebp, ebp
    xor r8d, r8d
    xor r9d, r9d
    xor r10d, r10d
    xor r11d, r11d
    xor r12d, r12d
    xor r13d, r13d
    xor r14d, r14d
    xor r15d, r15d
    cld
    jmp rax
    .size partywall_enter, . - partywall_enter

    .globl partywall_restorer
    .hidden partywall_restorer
    .type partywall_restorer, @function
partywall_restorer:
    mov rax, [rsp - 8]
    lea rcx, [rip + partywall_restorer - {SYS_SIGRETURN}]
    sub rax, rcx
    cmp rax, {SYS_SIGRETURN}
    jne .Llost
    syscall
    ud2
    .size partywall_restorer, . - partywall_restorer

    .globl partywall_set_rights
    .hidden partywall_set_rights
partywall_set_rights:
    mov eax, edi
    SET_RIGHTS
    ret

    HANDLER partywall_handle_sigsys, {ON_SIGSYS}
    HANDLER partywall_handle_fault, {ON_FAULT}
    HANDLER partywall_handle_cancel, {ON_CANCEL}
    HANDLER partywall_handle_signal, {ON_SIGNAL}

    .globl partywall_last_handler
    .hidden partywall_last_handler
partywall_last_handler:
    mov rsp, r9
    LEAVE_FOR_HANDLER
    jmp r10

    .globl partywall_run_handler
    .hidden partywall_run_handler
partywall_run_handler:
    mov rbx, r9
    mov rbp, [rbx + {CALLER_HANDLER_FRAME}]
    lea rsp, [rbp - 8]
    LEAVE_FOR_HANDLER
    call r10
    lea r11, [rip + {TABLES}]
    cmp dword ptr [r11 + {KEYS}], 0
    je 2f
    OPEN
2:  lea r11, [rip + {TABLES}]                   # is it a thread that runs a handler?
    lea rax, [r11 + {CALLERS}]
    mov rdx, rbx
    sub rdx, rax
    test edx, (1 << {CALLER_SHIFT}) - 1
    jnz .Llost
    shr rdx, {CALLER_SHIFT}
    cmp rdx, {CALLERS_MOST}
    jae .Llost
    test rbp, rbp
    jz .Llost
    cmp rbp, [rbx + {CALLER_HANDLER_FRAME}]
    jne .Llost
    mov rax, [rbx + {CALLER_HANDLER_FS}]        # read before the next signal's handler may write them
    mov cl, [rbx + {CALLER_HANDLER_SELECTOR}]
    mov qword ptr [rbx + {CALLER_HANDLER_FRAME}], 0
    wrfsbase rax
    mov [rbx + {CALLER_SELECTOR}], cl
    lea rsp, [rbp + 8]
    jmp partywall_restorer

    ENTRANCE partywall_enter_arm, {ARM}, 0
    ENTRANCE partywall_enter_disarm, {DISARM}
    ENTRANCE partywall_enter_park, {PARK}
    ENTRANCE partywall_enter_offer, {OFFER}
    ENTRANCE partywall_enter_take, {TAKE}
    ENTRANCE partywall_enter_release, {RELEASE}
    ENTRANCE partywall_enter_bind, {BIND}
    ENTRANCE partywall_enter_declare, {DECLARE}
    ENTRANCE partywall_enter_arena, {ARENA}
    ENTRANCE partywall_enter_accept, {ACCEPT}
    ENTRANCE partywall_enter_unpark, {UNPARK}

    .balign 64
    .globl partywall_call
    .hidden partywall_call
    .type partywall_call, @function
partywall_call:
    pushfq
    test dword ptr [rsp], 0x40500               # AC, DF, TF
    jnz .Lflags_in
.Lflags_are_right:
    add rsp, 8
    KEEP_REGISTERS
    sub rsp, 24                                 # the caller's rights; the link's, its caller, its arena
    mov rbx, rdx
    FIND_CALLER .Ldenied
    mov rax, rsp                                # a signal stack: what comes inside would begin there anew
    sub rax, [r11 + {BASE}]
    shr rax, {SLOT_SHIFT}
    cmp rax, {SLOTS}
    je .Ldenied
    cmp dword ptr [r11 + {KEYS}], 0
    jne .Lopen_in
.Lopened_in:
    cmp dword ptr [r12 + {CALLER_DEPTH}], {DEPTH}
    jae .Ldepth_exceeded
    cmp dword ptr [r12 + {CALLER_ENTERING}], 0  # a handler has interrupted it on its way in
    jne .Lbusy
    mov r13d, esi
    shr r13, {LINK_PLACE_SHIFT}
    and r13d, {LINKS_MOST} - 1
    shl r13, {LINK_SHIFT}
    lea r13, [r11 + r13 + {LINKS}]
    mov r14d, [r13 + {LINK_CALLEE}]
    lea eax, [r14 + 1]
    # SYNC(gate.enter), SYNC(context.retire): release, as all stores here; whoever looks for this
    # brings the barrier (table.rs)
    mov [r12 + {CALLER_ENTERING}], eax
    mov rbp, [r13 + {LINK_COOKIE}]
    # SYNC(link.arena): acquire, as all loads here
    mov rax, [r13 + {LINK_ARENA}]               # before the rights that go with it
    mov [rsp + 16], rax
    mov eax, [r13 + {LINK_RIGHTS}]
    mov [rsp + 8], eax
    mov eax, [r13 + {LINK_CALLER}]
    mov [rsp + 12], eax
    mov eax, esi
    and eax, (1 << {LINK_PLACE_SHIFT}) - 1
    cmp eax, {LINK_OPEN}
    jne .Lclosed
    # SYNC(link.word), SYNC(gate.enter): acquire
    cmp esi, [r13 + {LINK_WORD}]                # all of it was that link's, and the link is open
    jne .Lclosed
    mov eax, [rsp + 12]
    cmp eax, [r12 + {CALLER_DOMAIN}]
    jne .Ldenied_entering
    mov eax, r14d
    shl rax, {DOMAIN_SHIFT}
    # SYNC(gate.enter): acquire
    cmp byte ptr [r11 + rax + {DOMAINS} + {DOMAIN_OPEN}], 1
    jne .Lclosed
    movzx r15d, byte ptr [r12 + r14 + {CALLER_BOUND}]
    cmp r15d, {CONTEXTS_EACH}
    jae .Lunbound
    shl r15, {CONTEXT_SHIFT}
    mov eax, r14d
    shl rax, {CONTEXTS_SHIFT}
    add r15, rax
    lea r15, [r11 + r15 + {CONTEXTS}]
    cmp r12, [r15 + {CONTEXT_OWNER}]
    jne .Lunbound
    # SYNC(context.park), SYNC(context.retire): acquire
    cmp byte ptr [r15 + {CONTEXT_STATE}], {FREE}
    jne .Lbusy_entering
    # SYNC(gate.enter), SYNC(gate.watchdog), SYNC(context.retire): release
    mov byte ptr [r15 + {CONTEXT_STATE}], {BUSY}
    mov dword ptr [r12 + {CALLER_ENTERING}], 0
    # SYNC(gate.watchdog): acquire, after the barrier of the watchdog
    cmp dword ptr [r11 + {WATCHDOG}], 0
    jne .Lwake_watchdog
.Lwatched:
    mov [r15 + {CONTEXT_CALLER_STACK}], rsp
    mov rax, [r12 + {CALLER_FS}]
    mov [r15 + {CONTEXT_CALLER_FS}], rax
    mov eax, [r12 + {CALLER_DOMAIN}]
    mov [r15 + {CONTEXT_CALLER_DOMAIN}], eax
    mov rax, [r12 + {CALLER_INSIDE}]
    mov [r15 + {CONTEXT_BELOW}], rax
    mov eax, [r12 + {CALLER_RIGHTS}]
    mov [r15 + {CONTEXT_CALLER_RIGHTS}], eax
    mov eax, [rsp + 8]
    mov [r15 + {CONTEXT_RIGHTS}], eax
    mov [r12 + {CALLER_RIGHTS}], eax
    stmxcsr [r15 + {CONTEXT_CALLER_FLOAT}]
    fnstcw [r15 + {CONTEXT_CALLER_CONTROL}]
    mov eax, [r15 + {CONTEXT_CALLER_FLOAT}]
    and eax, 0xffc0                             # without the exceptions that were seen
    cmp eax, 0x1f80
    jne .Lfloat_in
    cmp word ptr [r15 + {CONTEXT_CALLER_CONTROL}], 0x37f
    jne .Lfloat_in
.Lfloat_is_right:
    mov [r15 + {CONTEXT_LIMIT}], r9
    mov r9, [rsp + 16]
    xor eax, eax
    dec dword ptr [r15 + {CONTEXT_SKIP}]
    jz .Lstart_clock
.Lclock_started:
    mov [r15 + {CONTEXT_BEGAN}], rax
    mov [r12 + {CALLER_DOMAIN}], r14d
    mov rax, [r15 + {CONTEXT_FS}]
    mov [r12 + {CALLER_FS}], rax
    inc dword ptr [r12 + {CALLER_DEPTH}]
    mov [r12 + {CALLER_INSIDE}], r15
    mov byte ptr [r12 + {CALLER_SELECTOR}], 1
    wrfsbase rax
    cmp dword ptr [r11 + {KEYS}], 0
    jne .Lclose_in
.Lclosed_in:
    mov rsi, rbp
    mov rdx, rbx
    mov r11, [r15 + {CONTEXT_ENTRY}]
    mov rsp, [r15 + {CONTEXT_STACK}]
    xor eax, eax
    xor ebx, ebx
    xor ebp, ebp
    xor r10d, r10d
    xor r12d, r12d
    xor r13d, r13d
    xor r14d, r14d
    xor r15d, r15d
    call r11
    mov rdx, rax
    xor eax, eax
.Lout:
    mov r8, rax
    mov r9, rdx
    cmp dword ptr [rip + {TABLES} + {KEYS}], 0
    jne .Lopen_out
.Lopened_out:
    lea r11, [rip + {TABLES}]
    lea rcx, [rsp - 1]
    sub rcx, [r11 + {BASE}]
    mov rax, rcx
    shr rax, {SLOT_SHIFT}
    cmp rax, {SLOTS}
    jae .Llost
    mov rdx, rax
    shl rdx, {SLOT_SHIFT}
    sub rcx, rdx
    mov rdx, {STACKS}
    sub rcx, rdx
    shr rcx, {STACK_SHIFT}
    cmp rcx, {CONTEXTS_EACH}
    jae .Llost
    shl rax, {CONTEXTS_SHIFT}
    shl rcx, {CONTEXT_SHIFT}
    add rax, rcx
    lea r15, [r11 + rax + {CONTEXTS}]
    cmp rsp, [r15 + {CONTEXT_STACK}]
    jne .Llost
    mov r12, [r15 + {CONTEXT_OWNER}]
    test r12, r12
    jz .Llost
    cmp r15, [r12 + {CALLER_INSIDE}]
    jne .Llost
    mov rax, [r15 + {CONTEXT_CALLER_FS}]
    mov rcx, [r15 + {CONTEXT_BELOW}]
    mov edx, [r15 + {CONTEXT_CALLER_DOMAIN}]
    mov [r12 + {CALLER_INSIDE}], rcx
    mov [r12 + {CALLER_FS}], rax
    mov [r12 + {CALLER_DOMAIN}], edx
    mov edx, [r15 + {CONTEXT_CALLER_RIGHTS}]
    mov [r12 + {CALLER_RIGHTS}], edx
    dec dword ptr [r12 + {CALLER_DEPTH}]
    test rcx, rcx                               # trapped, as long as it is inside another
    setne byte ptr [r12 + {CALLER_SELECTOR}]
    wrfsbase rax
    mov rsp, [r15 + {CONTEXT_CALLER_STACK}]
    stmxcsr [r15 + {CONTEXT_FLOAT}]
    fnstcw [r15 + {CONTEXT_CONTROL}]
    mov eax, [r15 + {CONTEXT_FLOAT}]
    xor eax, [r15 + {CONTEXT_CALLER_FLOAT}]
    test eax, 0xffc0
    jne .Lfloat_out
    mov ax, [r15 + {CONTEXT_CONTROL}]
    cmp ax, [r15 + {CONTEXT_CALLER_CONTROL}]
    jne .Lfloat_out
.Lfloat_is_the_callers:
    pushfq
    test dword ptr [rsp], 0x40500
    jnz .Lflags_out
.Lflags_are_the_callers:
    add rsp, 8
    cmp qword ptr [r15 + {CONTEXT_BEGAN}], 0
    jne .Lstop_clock
.Lclock_stopped:
    # SYNC(context.calls): release
    inc qword ptr [r15 + {CONTEXT_CALLS}]
    # SYNC(context.end): acquire
    cmp byte ptr [r15 + {CONTEXT_STATE}], {BUSY}
    jne .Lpoisoned
    # SYNC(gate.enter): release
    mov byte ptr [r15 + {CONTEXT_STATE}], {FREE}
.Lleft:                                         # its memory may be gone from here on
    mov rax, r8
    mov rdx, r9
.Lleave:
    cmp dword ptr [rip + {TABLES} + {KEYS}], 0
    jne .Lclose_out
.Lback:
    add rsp, 24
    RESTORE_REGISTERS
    xor ecx, ecx
    xor esi, esi
    xor edi, edi
    xor r8d, r8d
    xor r9d, r9d
    xor r10d, r10d
    xor r11d, r11d
    ret

.Lpoisoned:
    # SYNC(context.end): release
    mov byte ptr [r15 + {CONTEXT_STATE}], {POISONED}
    jmp .Lleft

.Ldenied_entering:
    mov dword ptr [r12 + {CALLER_ENTERING}], 0
    mov eax, {STATUS_DENIED}
    jmp .Lrefused
.Ldenied:                                       # before any right was taken
    mov eax, {STATUS_DENIED}
    xor edx, edx
    jmp .Lback
.Lclosed:
    mov eax, {STATUS_CLOSED}
    jmp .Lrefused_entering
.Lunbound:
    mov eax, {STATUS_UNBOUND}
    jmp .Lrefused_entering
.Lbusy_entering:
    mov eax, {STATUS_BUSY}
.Lrefused_entering:
    mov dword ptr [r12 + {CALLER_ENTERING}], 0
    jmp .Lrefused
.Lbusy:
    mov eax, {STATUS_BUSY}
    jmp .Lrefused
.Ldepth_exceeded:
    mov eax, {STATUS_DEPTH_EXCEEDED}
.Lrefused:
    xor edx, edx
    jmp .Lleave

.Lopen_in:
    mov r14, rcx
    xor ecx, ecx
    rdpkru
    mov r13d, eax
    or eax, [r11 + {ARENAS}]                    # it may have some open
    mov r10d, [r12 + {CALLER_RIGHTS}]
    or r10d, [r11 + {ARENAS}]
    cmp eax, r10d
    jne .Ldenied
    OPEN
    FIND_CALLER .Llost
    mov [rsp], r13d
    mov rcx, r14
    jmp .Lopened_in
.Lclose_in:
    mov r10, rcx
    mov eax, [r12 + {CALLER_RIGHTS}]
    SET_RIGHTS
    mov rcx, r10
    jmp .Lclosed_in
.Lopen_out:
    OPEN
    jmp .Lopened_out
.Lclose_out:
    mov r8, rax
    mov r9, rdx
    mov eax, [rsp]
    SET_RIGHTS
    mov rax, r8
    mov rdx, r9
    jmp .Lback

    .globl partywall_abort_open
    .hidden partywall_abort_open
partywall_abort_open:
    mov r8, rax
    OPEN
    mov rax, r8
    jmp partywall_abort
    .globl partywall_abort_first
    .hidden partywall_abort_first
partywall_abort_first:
    mov r8, rax
    xor ecx, ecx
    xor edx, edx
    mov eax, {FIRST_RIGHTS}
    wrpkru
    mov rax, r8
    .globl partywall_abort
    .hidden partywall_abort
partywall_abort:
    xor edx, edx                                # there is no answer
    fninit                                      # what the callee has left on that stack
    jmp .Lout

.Lflags_in:
    and dword ptr [rsp], ~0x40500
    popfq
    sub rsp, 8
    jmp .Lflags_are_right
.Lflags_out:
    and dword ptr [rsp], ~0x40500
    popfq
    sub rsp, 8
    jmp .Lflags_are_the_callers
.Lstart_clock:
    mov rsi, rdx
    rdtsc
    shl rdx, 32
    or rax, rdx
    mov rdx, rsi
    jmp .Lclock_started
.Lstop_clock:
    rdtsc
    shl rdx, 32
    or rax, rdx
    sub rax, [r15 + {CONTEXT_BEGAN}]
    mov edx, [r15 + {CONTEXT_WEIGHT}]           # it stands for as many
    mov ecx, 1
    cmp rax, {ODD_TICKS}                        # but for one that has lost the processor
    cmova edx, ecx
    cmp rax, {SHORT_TICKS}
    ja .Llong
    mov ecx, {SAMPLED}
.Llong:
    mov [r15 + {CONTEXT_SKIP}], ecx
    mov [r15 + {CONTEXT_WEIGHT}], ecx
    imul rax, rdx
    add [r15 + {CONTEXT_TICKS}], rax
    cmp qword ptr [r12 + {CALLER_INSIDE}], 0    # that of a call from within a call is in that one's
    jne .Lclock_stopped
    add [r12 + {CALLER_TICKS}], rax
    jmp .Lclock_stopped
.Lwake_watchdog:                                   # it slept because nobody was inside
    mov dword ptr [r11 + {WATCHDOG}], 2            # it does not sleep on that; it says 0 itself
    mov r10, rcx                                # FUTEX_WAKE looks at no fourth argument
    lea rdi, [r11 + {WATCHDOG}]
    mov esi, {FUTEX_WAKE}
    mov edx, 1
    mov eax, {SYS_FUTEX}
    syscall
    mov rcx, r10
    lea r11, [rip + {TABLES}]
    lea rax, [r11 + {CALLERS}]
    mov rdi, r12
    sub rdi, rax
    shr rdi, {CALLER_SHIFT}
    jmp .Lwatched
.Lfloat_in:
    fninit
    mov dword ptr [r15 + {CONTEXT_FLOAT}], 0x1f80
    ldmxcsr [r15 + {CONTEXT_FLOAT}]
    jmp .Lfloat_is_right
.Lfloat_out:
    fninit
    fldcw [r15 + {CONTEXT_CALLER_CONTROL}]
    ldmxcsr [r15 + {CONTEXT_CALLER_FLOAT}]
    jmp .Lfloat_is_the_callers
.Llost:
    ud2                                         # nothing here can be believed
    .size partywall_call, . - partywall_call

    .balign 4096
    .globl partywall_gate_end
    .hidden partywall_gate_end
partywall_gate_end:
    .popsection
