/* Children of the process. A child reads the key "k" and writes what it finds to a pipe. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"

static pthread_t home;
static int child = -1, exit_code = -2, exit_signal = -2, ends[2];

static void done(int code, int signal, void *data) {
    if (!pthread_equal(home, pthread_self()) || data != &child) {
        fprintf(stderr, "fork: the handler runs on another thread\n");
        abort();
    }
    child = -1;
    exit_code = code;
    exit_signal = signal;
}

/* fork.start MILLISECONDS CODE [UNHEARD]: forks. The child waits, reads the key, and ends with the code; with the code -1
 * it returns to the server, and with -2 it crashes. With a third argument the module has no function for its end. */
static int start(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    long long ms, code;
    if (argc != 3 && argc != 4) return ValkeyModule_WrongArity(ctx);
    CHECK(ValkeyModule_StringToLongLong(argv[1], &ms) == VALKEYMODULE_OK);
    CHECK(ValkeyModule_StringToLongLong(argv[2], &code) == VALKEYMODULE_OK);
    errno = 0;
    int pid = ValkeyModule_Fork(argc == 3 ? done : NULL, &child);
    if (pid < 0) return ValkeyModule_ReplyWithErrorFormat(ctx, "ERR errno %d", errno);
    if (pid > 0) {
        child = pid;
        return ValkeyModule_ReplyWithLongLong(ctx, pid);
    }
    ValkeyModule_Log(ctx, "notice", "the child begins");
    ValkeyModule_SendChildHeartbeat(0.25);
    usleep(ms * 1000);
    ValkeyModuleString *name = ValkeyModule_CreateString(ctx, "k", 1);
    ValkeyModuleKey *key = ValkeyModule_OpenKey(ctx, name, VALKEYMODULE_READ);
    size_t length = 1;
    const char *value = key ? ValkeyModule_StringDMA(key, &length, VALKEYMODULE_READ) : "-";
    if (write(ends[1], value, length) < 0) ValkeyModule_ExitFromChild(9);
    if (code == -2) abort();
    if (code >= 0) ValkeyModule_ExitFromChild(code);
    return ValkeyModule_ReplyWithSimpleString(ctx, "from the child");
}

/* fork.state: the process id, the exit code, the signal, and what the child has written. */
static int state(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    char text[64];
    ssize_t length = read(ends[0], text, sizeof(text));
    ValkeyModule_ReplyWithArray(ctx, 4);
    ValkeyModule_ReplyWithLongLong(ctx, child);
    ValkeyModule_ReplyWithLongLong(ctx, exit_code);
    ValkeyModule_ReplyWithLongLong(ctx, exit_signal);
    return ValkeyModule_ReplyWithStringBuffer(ctx, text, length > 0 ? length : 0);
}

/* fork.kill: kills the child. */
static int kill_child(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    CHECK(ValkeyModule_KillForkChild(child + 1) == VALKEYMODULE_ERR);
    CHECK(ValkeyModule_KillForkChild(child) == VALKEYMODULE_OK);
    CHECK(ValkeyModule_KillForkChild(child) == VALKEYMODULE_ERR);
    child = -1;
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

/* fork.misuse: functions of the child in the parent. */
static int misuse(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    ValkeyModule_SendChildHeartbeat(0.5);
    CHECK(ValkeyModule_ExitFromChild(1) == VALKEYMODULE_ERR);
    CHECK(ValkeyModule_KillForkChild(1) == VALKEYMODULE_ERR);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    REQUIRE(ValkeyModule_Init(ctx, "fork", 1, VALKEYMODULE_APIVER_1));
    home = pthread_self();
    if (pipe2(ends, O_NONBLOCK) != 0) return VALKEYMODULE_ERR;
    COMMAND("fork.start", start);
    COMMAND("fork.state", state);
    COMMAND("fork.kill", kill_child);
    COMMAND("fork.misuse", misuse);
    return VALKEYMODULE_OK;
}
