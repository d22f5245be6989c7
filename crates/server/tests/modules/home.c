/* Commands that tell where they run, that write, and that use threads. */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"

static pid_t home_thread;
static int stays;

/* Ends the process unless the calling thread is the one that has loaded the module. */
static void require_home(void) {
    if (gettid() != home_thread) abort();
}

static int check_thread(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    require_home();
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

/* home.add KEY: increments a key by a call, which is propagated. */
static int add(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    require_home();
    ValkeyModuleCallReply *reply = ValkeyModule_Call(ctx, "INCR", "!s", argv[1]);
    CHECK(ValkeyModule_CallReplyType(reply) == VALKEYMODULE_REPLY_INTEGER);
    ValkeyModule_ReplyWithCallReply(ctx, reply);
    ValkeyModule_FreeCallReply(reply);
    return VALKEYMODULE_OK;
}

/* home.addtwice KEY: a unit of two commands. */
static int add_twice(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    require_home();
    for (int i = 0; i < 2; i++) ValkeyModule_FreeCallReply(ValkeyModule_Call(ctx, "INCR", "!s", argv[1]));
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

/* home.verbatim KEY: increments a key by a call; the command itself is propagated. */
static int verbatim(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    require_home();
    ValkeyModule_FreeCallReply(ValkeyModule_Call(ctx, "INCR", "s", argv[1]));
    ValkeyModule_ReplicateVerbatim(ctx);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

/* home.select DB: selects a database. */
static int select_database(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    long long db;
    CHECK(ValkeyModule_StringToLongLong(argv[1], &db) == VALKEYMODULE_OK);
    if (ValkeyModule_SelectDb(ctx, (int)db) != VALKEYMODULE_OK) return ValkeyModule_ReplyWithError(ctx, "ERR no such db");
    return ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_GetSelectedDb(ctx));
}

static int context_flags(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    return ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_GetContextFlags(ctx));
}

struct work {
    ValkeyModuleCtx *ctx;
    char key[64];
    long times;
};

/* Locks, increments the key twice and unlocks, many times. */
static void *add_under_lock(void *argument) {
    struct work *work = argument;
    for (long i = 0; i < work->times; i++) {
        ValkeyModule_ThreadSafeContextLock(work->ctx);
        ValkeyModule_FreeCallReply(ValkeyModule_Call(work->ctx, "INCR", "!c", work->key));
        ValkeyModule_FreeCallReply(ValkeyModule_Call(work->ctx, "INCR", "!c", work->key));
        ValkeyModule_ThreadSafeContextUnlock(work->ctx);
    }
    ValkeyModule_FreeThreadSafeContext(work->ctx);
    free(work);
    return NULL;
}

/* home.threads KEY TIMES: starts a thread that increments the key. */
static int start_thread(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 3) return ValkeyModule_WrongArity(ctx);
    long long times;
    CHECK(ValkeyModule_StringToLongLong(argv[2], &times) == VALKEYMODULE_OK);
    struct work *work = calloc(1, sizeof(*work));
    work->ctx = ValkeyModule_GetDetachedThreadSafeContext(ctx);
    work->times = (long)times;
    strncpy(work->key, ValkeyModule_StringPtrLen(argv[1], NULL), sizeof(work->key) - 1);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, add_under_lock, work) == 0);
    pthread_detach(thread);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

static void *try_to_lock(void *argument) {
    ValkeyModuleCtx *ctx = argument;
    return (void *)(long)ValkeyModule_ThreadSafeContextTryLock(ctx);
}

/* home.trylock: the result of another thread that tries to lock meanwhile. */
static int try_lock(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    ValkeyModuleCtx *detached = ValkeyModule_GetDetachedThreadSafeContext(ctx);
    pthread_t thread;
    void *result;
    CHECK(pthread_create(&thread, NULL, try_to_lock, detached) == 0);
    pthread_join(thread, &result);
    ValkeyModule_FreeThreadSafeContext(detached);
    return ValkeyModule_ReplyWithLongLong(ctx, (long)result);
}

/* home.slotsafe KEY OTHER: increments the key; the other one is not declared. Replies with 1 if it can be opened. */
static int slot_safe(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 3) return ValkeyModule_WrongArity(ctx);
    ValkeyModuleKey *key = ValkeyModule_OpenKey(ctx, argv[1], VALKEYMODULE_READ | VALKEYMODULE_WRITE);
    CHECK(key != NULL);
    size_t length = 0;
    char text[32] = {0};
    if (ValkeyModule_KeyType(key) == VALKEYMODULE_KEYTYPE_STRING) {
        const char *bytes = ValkeyModule_StringDMA(key, &length, VALKEYMODULE_READ);
        memcpy(text, bytes, length < sizeof(text) ? length : sizeof(text) - 1);
    }
    ValkeyModuleString *next = ValkeyModule_CreateStringFromLongLong(ctx, atoll(text) + 1);
    ValkeyModule_StringSet(key, next);
    ValkeyModule_FreeString(ctx, next);
    ValkeyModule_CloseKey(key);
    ValkeyModuleKey *other = ValkeyModule_OpenKey(ctx, argv[2], VALKEYMODULE_READ | VALKEYMODULE_WRITE);
    int is_open = other != NULL;
    if (is_open) ValkeyModule_CloseKey(other);
    return ValkeyModule_ReplyWithLongLong(ctx, is_open);
}

int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (ValkeyModule_Init(ctx, "home", 7, VALKEYMODULE_APIVER_1) != VALKEYMODULE_OK) return VALKEYMODULE_ERR;
    WeftModule_Init(ctx);
    home_thread = gettid();
    COMMAND("home.check", check_thread);
    KEY_COMMAND("home.add", add, "write deny-oom");
    KEY_COMMAND("home.addtwice", add_twice, "write");
    KEY_COMMAND("home.verbatim", verbatim, "write");
    COMMAND("home.select", select_database);
    COMMAND("home.flags", context_flags);
    COMMAND("home.threads", start_thread);
    COMMAND("home.trylock", try_lock);
    KEY_COMMAND("home.slotsafe", slot_safe, "write");
    if (WeftModule_SetCommandConcurrency) {
        ValkeyModuleCommand *command = ValkeyModule_GetCommand(ctx, "home.slotsafe");
        REQUIRE(WeftModule_SetCommandConcurrency(command, WEFTMODULE_SLOT_SAFE));
    }
    if (argc > 0 && is_text(argv[0], "fail")) return VALKEYMODULE_ERR;
    stays = argc > 0 && is_text(argv[0], "stay");
    return VALKEYMODULE_OK;
}

int ValkeyModule_OnUnload(ValkeyModuleCtx *ctx) {
    VALKEYMODULE_NOT_USED(ctx);
    require_home();
    return stays ? VALKEYMODULE_ERR : VALKEYMODULE_OK;
}
