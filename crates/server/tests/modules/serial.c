/* Commands of the serial way. They share data without any protection, and note when two of them run at the same time. */

#include <pthread.h>
#include <sched.h>

#include "check.h"

static int running, most;
/* Changed by each command without an atomic instruction, so that an overlap loses additions. */
static volatile long long total;
static pthread_t threads[64];
static int thread_count;

static void note_thread(void) {
    for (int i = 0; i < thread_count; i++) {
        if (pthread_equal(threads[i], pthread_self())) return;
    }
    if (thread_count < 64) threads[thread_count++] = pthread_self();
}

static void add_to_total(void) {
    int now = __atomic_add_fetch(&running, 1, __ATOMIC_SEQ_CST);
    if (now > most) most = now;
    note_thread();
    long long before = total;
    for (int i = 0; i < 50; i++) __atomic_signal_fence(__ATOMIC_SEQ_CST);
    total = before + 1;
    __atomic_sub_fetch(&running, 1, __ATOMIC_SEQ_CST);
}

/* SERIAL.ADD key: adds one to the total, and to the key. */
static int add(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    add_to_total();
    ValkeyModuleCallReply *reply = ValkeyModule_Call(ctx, "INCR", "!s", argv[1]);
    CHECK(reply);
    ValkeyModule_ReplyWithCallReply(ctx, reply);
    ValkeyModule_FreeCallReply(reply);
    return VALKEYMODULE_OK;
}

/* SERIAL.SLEEP key milliseconds: lasts for this time, in which no other serial command runs. */
static int sleep_for(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    long long milliseconds;
    if (argc != 3) return ValkeyModule_WrongArity(ctx);
    CHECK(ValkeyModule_StringToLongLong(argv[2], &milliseconds) == VALKEYMODULE_OK);
    add_to_total();
    uint64_t end = ValkeyModule_MonotonicMicroseconds() + (uint64_t)milliseconds * 1000;
    long long before = total;
    while (ValkeyModule_MonotonicMicroseconds() < end) sched_yield();
    return ValkeyModule_ReplyWithBool(ctx, total == before);
}

/* SERIAL.OPEN key other: opens a key that the command does not declare. */
static int open_other(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 3) return ValkeyModule_WrongArity(ctx);
    ValkeyModule_AutoMemory(ctx);
    return ValkeyModule_ReplyWithBool(ctx, ValkeyModule_OpenKey(ctx, argv[2], VALKEYMODULE_WRITE) != NULL);
}

/* SERIAL.FIGURES: the total, the most commands at the same time, and the number of threads. Runs at home. */
static int figures(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    add_to_total();
    ValkeyModule_ReplyWithArray(ctx, 3);
    ValkeyModule_ReplyWithLongLong(ctx, total);
    ValkeyModule_ReplyWithLongLong(ctx, most);
    return ValkeyModule_ReplyWithLongLong(ctx, thread_count);
}

static int create(ValkeyModuleCtx *ctx, const char *name, ValkeyModuleCmdFunc function) {
    KEY_COMMAND(name, function, "write");
    return WeftModule_SetCommandConcurrency(ValkeyModule_GetCommand(ctx, name), WEFTMODULE_SERIAL);
}

int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    REQUIRE(ValkeyModule_Init(ctx, "serial", 1, VALKEYMODULE_APIVER_1));
    WeftModule_Init(ctx);
    REQUIRE(create(ctx, "serial.add", add));
    REQUIRE(create(ctx, "serial.sleep", sleep_for));
    REQUIRE(create(ctx, "serial.open", open_other));
    return ValkeyModule_CreateCommand(ctx, "serial.figures", figures, "readonly", 0, 0, 0);
}
