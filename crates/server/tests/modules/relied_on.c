/* Commands and threads that rely on data that nothing else may change meanwhile, and a timer. */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"

static long fired, grants_while_loading, finished_threads;
static mstime_t period;

/* Returns the length of the string that a key holds; -1 if it is missing. */
static long long length_of(ValkeyModuleCtx *ctx, ValkeyModuleString *name) {
    ValkeyModuleKey *key = ValkeyModule_OpenKey(ctx, name, VALKEYMODULE_READ);
    if (key == NULL) return -1;
    long long length = (long long)ValkeyModule_ValueLength(key);
    ValkeyModule_CloseKey(key);
    return length;
}

/* relied.hold KEY MS: gives way to clients for so long. Replies with the length of the value before and after. */
static int hold(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 3) return ValkeyModule_WrongArity(ctx);
    long long milliseconds;
    CHECK(ValkeyModule_StringToLongLong(argv[2], &milliseconds) == VALKEYMODULE_OK);
    ValkeyModuleKey *key = ValkeyModule_OpenKey(ctx, argv[1], VALKEYMODULE_READ | VALKEYMODULE_WRITE);
    long long before = (long long)ValkeyModule_ValueLength(key);
    mstime_t end = ValkeyModule_Milliseconds() + milliseconds;
    while (ValkeyModule_Milliseconds() < end) {
        ValkeyModule_Yield(ctx, VALKEYMODULE_YIELD_FLAG_CLIENTS, NULL);
        usleep(1000);
    }
    ValkeyModule_ReplyWithArray(ctx, 2);
    ValkeyModule_ReplyWithLongLong(ctx, before);
    ValkeyModule_ReplyWithLongLong(ctx, (long long)ValkeyModule_ValueLength(key));
    ValkeyModule_CloseKey(key);
    return VALKEYMODULE_OK;
}

static int nothing(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

struct work {
    ValkeyModuleCtx *ctx;
    char key[64];
    long number;
};

static struct work *work_of(ValkeyModuleCtx *ctx, ValkeyModuleString **argv) {
    struct work *work = calloc(1, sizeof(*work));
    work->ctx = ValkeyModule_GetDetachedThreadSafeContext(ctx);
    work->number = atol(ValkeyModule_StringPtrLen(argv[2], NULL));
    strncpy(work->key, ValkeyModule_StringPtrLen(argv[1], NULL), sizeof(work->key) - 1);
    return work;
}

static void end_work(struct work *work) {
    ValkeyModule_FreeThreadSafeContext(work->ctx);
    free(work);
    __atomic_add_fetch(&finished_threads, 1, __ATOMIC_SEQ_CST);
}

static int start(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc, void *(*run)(void *)) {
    if (argc != 3) return ValkeyModule_WrongArity(ctx);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, run, work_of(ctx, argv)) == 0);
    pthread_detach(thread);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

static void *delete_later(void *argument) {
    struct work *work = argument;
    usleep((useconds_t)work->number * 1000);
    ValkeyModule_ThreadSafeContextLock(work->ctx);
    ValkeyModule_FreeCallReply(ValkeyModule_Call(work->ctx, "DEL", "!c", work->key));
    ValkeyModule_ThreadSafeContextUnlock(work->ctx);
    end_work(work);
    return NULL;
}

/* relied.delete KEY MS: starts a thread that deletes the key after this time. */
static int delete_key(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    return start(ctx, argv, argc, delete_later);
}

static void *count_under_lock(void *argument) {
    struct work *work = argument;
    for (long i = 0; i < work->number; i++) {
        ValkeyModule_ThreadSafeContextLock(work->ctx);
        ValkeyModuleCallReply *value = ValkeyModule_Call(work->ctx, "GET", "c", work->key);
        size_t length = 0;
        const char *bytes = ValkeyModule_CallReplyStringPtr(value, &length);
        char text[32] = {0};
        if (bytes != NULL) memcpy(text, bytes, length < sizeof(text) ? length : sizeof(text) - 1);
        ValkeyModule_FreeCallReply(value);
        ValkeyModule_FreeCallReply(ValkeyModule_Call(work->ctx, "relied.nothing", ""));
        ValkeyModule_FreeCallReply(ValkeyModule_Call(work->ctx, "SET", "!cl", work->key, atoll(text) + 1));
        ValkeyModule_ThreadSafeContextUnlock(work->ctx);
    }
    end_work(work);
    return NULL;
}

/* relied.count KEY TIMES: starts a thread that increments the key by several calls under each lock. */
static int count(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    return start(ctx, argv, argc, count_under_lock);
}

static void *lock_often(void *argument) {
    struct work *work = argument;
    mstime_t end = ValkeyModule_Milliseconds() + work->number;
    while (ValkeyModule_Milliseconds() < end) {
        ValkeyModule_ThreadSafeContextLock(work->ctx);
        int loads = ValkeyModule_GetContextFlags(work->ctx) & VALKEYMODULE_CTX_FLAGS_LOADING;
        if (loads) __atomic_add_fetch(&grants_while_loading, 1, __ATOMIC_SEQ_CST);
        ValkeyModule_ThreadSafeContextUnlock(work->ctx);
        usleep(100);
    }
    end_work(work);
    return NULL;
}

/* relied.lock UNUSED MS: starts a thread that locks again and again for so long. */
static int lock(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    return start(ctx, argv, argc, lock_often);
}

static void *yield_under_lock(void *argument) {
    struct work *work = argument;
    ValkeyModule_ThreadSafeContextLock(work->ctx);
    mstime_t end = ValkeyModule_Milliseconds() + work->number;
    while (ValkeyModule_Milliseconds() < end) {
        ValkeyModule_Yield(work->ctx, VALKEYMODULE_YIELD_FLAG_CLIENTS, "A thread is busy");
        usleep(1000);
    }
    ValkeyModule_ThreadSafeContextUnlock(work->ctx);
    end_work(work);
    return NULL;
}

/* relied.yield UNUSED MS: starts a thread that locks, and gives way to clients for so long. */
static int yield_lock(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    return start(ctx, argv, argc, yield_under_lock);
}

static void fire(ValkeyModuleCtx *ctx, void *data) {
    fired++;
    ValkeyModule_CreateTimer(ctx, period, fire, data);
}

/* relied.timer MS: starts a timer that fires again and again. */
static int timer(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    long long milliseconds;
    if (argc != 2 || ValkeyModule_StringToLongLong(argv[1], &milliseconds) != VALKEYMODULE_OK)
        return ValkeyModule_WrongArity(ctx);
    period = milliseconds;
    ValkeyModule_CreateTimer(ctx, period, fire, NULL);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

/* relied.state: the timers that have fired, the locks while data were loaded, and the threads that have ended. */
static int state(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    ValkeyModule_ReplyWithArray(ctx, 3);
    ValkeyModule_ReplyWithLongLong(ctx, fired);
    ValkeyModule_ReplyWithLongLong(ctx, __atomic_load_n(&grants_while_loading, __ATOMIC_SEQ_CST));
    return ValkeyModule_ReplyWithLongLong(ctx, __atomic_load_n(&finished_threads, __ATOMIC_SEQ_CST));
}

/* relied.length KEY: the length of the value; -1 if it is missing. */
static int length(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    return ValkeyModule_ReplyWithLongLong(ctx, length_of(ctx, argv[1]));
}

int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    if (ValkeyModule_Init(ctx, "relied", 1, VALKEYMODULE_APIVER_1) != VALKEYMODULE_OK) return VALKEYMODULE_ERR;
    KEY_COMMAND("relied.hold", hold, "readonly");
    KEY_COMMAND("relied.length", length, "readonly");
    COMMAND("relied.nothing", nothing);
    COMMAND("relied.delete", delete_key);
    COMMAND("relied.count", count);
    COMMAND("relied.lock", lock);
    COMMAND("relied.timer", timer);
    COMMAND("relied.yield", yield_lock);
    REQUIRE(ValkeyModule_CreateCommand(ctx, "relied.state", state, "allow-busy", 0, 0, 0));
    return VALKEYMODULE_OK;
}
