/* Commands that are declared as slot-safe, some of them wrongly. */

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "check.h"

/* CONCURRENCY.OPEN key other: opens a key that the command does not declare. Replies with whether it got the key. */
static int open_other(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 3) return ValkeyModule_WrongArity(ctx);
    ValkeyModule_AutoMemory(ctx);
    ValkeyModuleKey *declared = ValkeyModule_OpenKey(ctx, argv[1], VALKEYMODULE_WRITE);
    CHECK(declared);
    CHECK(ValkeyModule_StringSet(declared, argv[2]) == VALKEYMODULE_OK);
    ValkeyModuleKey *other = ValkeyModule_OpenKey(ctx, argv[2], VALKEYMODULE_WRITE);
    return ValkeyModule_ReplyWithBool(ctx, other != NULL);
}

/* CONCURRENCY.CALL key command argument ...: replies as the command does. */
static int call(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc < 3) return ValkeyModule_WrongArity(ctx);
    const char *name = ValkeyModule_StringPtrLen(argv[2], NULL);
    ValkeyModuleCallReply *reply = ValkeyModule_Call(ctx, name, "!Ev", argv + 3, (size_t)argc - 3);
    CHECK(reply);
    ValkeyModule_ReplyWithCallReply(ctx, reply);
    ValkeyModule_FreeCallReply(reply);
    return VALKEYMODULE_OK;
}

static int running;

/* Replies with how many of these commands run at the same time, at most. */
static int meet(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    VALKEYMODULE_NOT_USED(argv);
    int most = __atomic_add_fetch(&running, 1, __ATOMIC_SEQ_CST);
    uint64_t end = ValkeyModule_MonotonicMicroseconds() + 20000;
    while (ValkeyModule_MonotonicMicroseconds() < end && most < 2) {
        sched_yield();
        int now = __atomic_load_n(&running, __ATOMIC_SEQ_CST);
        if (now > most) most = now;
    }
    __atomic_sub_fetch(&running, 1, __ATOMIC_SEQ_CST);
    return ValkeyModule_ReplyWithLongLong(ctx, most);
}

static pthread_t home;

/* Increments the key "jobs", which no command of this module declares. */
static void on_job(ValkeyModuleCtx *ctx, void *data) {
    VALKEYMODULE_NOT_USED(data);
    if (!pthread_equal(pthread_self(), home)) abort();
    ValkeyModuleCallReply *reply = ValkeyModule_Call(ctx, "INCR", "!c", "jobs");
    if (!reply || ValkeyModule_CallReplyType(reply) != VALKEYMODULE_REPLY_INTEGER) abort();
    ValkeyModule_FreeCallReply(reply);
}

/* CONCURRENCY.JOB key: adds a post-notification job. Replies with whether the server has accepted it. */
static int add_job(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    VALKEYMODULE_NOT_USED(argv);
    int result = ValkeyModule_AddPostNotificationJob(ctx, on_job, NULL, NULL);
    return ValkeyModule_ReplyWithBool(ctx, result == VALKEYMODULE_OK);
}

static int create(ValkeyModuleCtx *ctx, const char *name, ValkeyModuleCmdFunc function, int concurrency) {
    KEY_COMMAND(name, function, "write");
    return WeftModule_SetCommandConcurrency(ValkeyModule_GetCommand(ctx, name), concurrency);
}

int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    REQUIRE(ValkeyModule_Init(ctx, "concurrency", 1, VALKEYMODULE_APIVER_1));
    WeftModule_Init(ctx);
    home = pthread_self();
    REQUIRE(create(ctx, "concurrency.job", add_job, WEFTMODULE_SLOT_SAFE));
    REQUIRE(create(ctx, "concurrency.job-serial", add_job, WEFTMODULE_SERIAL));
    REQUIRE(create(ctx, "concurrency.job-home", add_job, WEFTMODULE_HOME));
    REQUIRE(create(ctx, "concurrency.open", open_other, WEFTMODULE_SLOT_SAFE));
    REQUIRE(create(ctx, "concurrency.call", call, WEFTMODULE_SLOT_SAFE));
    REQUIRE(create(ctx, "concurrency.meet", meet, WEFTMODULE_SLOT_SAFE));
    REQUIRE(create(ctx, "concurrency.meet-home", meet, WEFTMODULE_HOME));
    return create(ctx, "concurrency.nowhere", meet, 99) == VALKEYMODULE_ERR ? VALKEYMODULE_OK : VALKEYMODULE_ERR;
}
