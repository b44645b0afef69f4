// Traces every thread of a process, and waits for none, as a debugger at its prompt: `tracer PID`.
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc != 2 || prctl(PR_SET_PDEATHSIG, SIGKILL)) return 99;
    char path[64];
    snprintf(path, sizeof path, "/proc/%s/task", argv[1]);
    DIR *threads = opendir(path);
    if (!threads) return 98;
    for (struct dirent *entry; (entry = readdir(threads));) {
        pid_t thread = (pid_t)atoi(entry->d_name);
        if (thread > 0 && ptrace(PTRACE_SEIZE, thread, NULL, NULL)) return 97;
    }
    puts("traced");
    fflush(stdout);
    for (;;) pause();
}
