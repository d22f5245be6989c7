/* Ends the process if its functions run on several threads. */

#include <pthread.h>
#include <stdio.h>

#include "check.h"

static pthread_t home;
static ValkeyModuleType *type;
static long long commands, timers, events, loads, calls_of_type, jobs;

static void at_home(const char *where, long long *count) {
    if (!pthread_equal(home, pthread_self())) {
        fprintf(stderr, "affinity: %s runs on another thread\n", where);
        abort();
    }
    ++*count;
}

static void *load(ValkeyModuleIO *io, int version) {
    VALKEYMODULE_NOT_USED(version);
    at_home("load", &loads);
    long long *value = ValkeyModule_Alloc(sizeof(*value));
    *value = ValkeyModule_LoadSigned(io);
    return value;
}

static void save(ValkeyModuleIO *io, void *value) {
    at_home("save", &calls_of_type);
    ValkeyModule_SaveSigned(io, *(long long *)value);
}

static void rewrite(ValkeyModuleIO *io, ValkeyModuleString *key, void *value) {
    at_home("rewrite", &calls_of_type);
    ValkeyModule_EmitAOF(io, "affinity.set", "sl", key, *(long long *)value);
}

static void free_value(void *value) {
    at_home("free", &calls_of_type);
    ValkeyModule_Free(value);
}

static void on_timer(ValkeyModuleCtx *ctx, void *data) {
    VALKEYMODULE_NOT_USED(data);
    at_home("timer", &timers);
    ValkeyModule_CreateTimer(ctx, 1, on_timer, NULL);
}

static void on_job(ValkeyModuleCtx *ctx, void *data) {
    VALKEYMODULE_NOT_USED(ctx);
    VALKEYMODULE_NOT_USED(data);
    at_home("job", &jobs);
}

static int on_event(ValkeyModuleCtx *ctx, int kind, const char *event, ValkeyModuleString *key) {
    VALKEYMODULE_NOT_USED(kind);
    VALKEYMODULE_NOT_USED(event);
    VALKEYMODULE_NOT_USED(key);
    at_home("event", &events);
    ValkeyModule_AddPostNotificationJob(ctx, on_job, NULL, NULL);
    return VALKEYMODULE_OK;
}

/* AFFINITY.SET key number */
static int set(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    long long number;
    if (argc != 3) return ValkeyModule_WrongArity(ctx);
    at_home("command", &commands);
    CHECK(ValkeyModule_StringToLongLong(argv[2], &number) == VALKEYMODULE_OK);
    ValkeyModule_AutoMemory(ctx);
    ValkeyModuleKey *key = ValkeyModule_OpenKey(ctx, argv[1], VALKEYMODULE_READ | VALKEYMODULE_WRITE);
    long long *value = ValkeyModule_Alloc(sizeof(*value));
    *value = number;
    ValkeyModule_ModuleTypeSetValue(key, type, value);
    ValkeyModule_ReplicateVerbatim(ctx);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

/* AFFINITY.GET key */
static int get(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    at_home("command", &commands);
    ValkeyModule_AutoMemory(ctx);
    ValkeyModuleKey *key = ValkeyModule_OpenKey(ctx, argv[1], VALKEYMODULE_READ);
    if (!key || ValkeyModule_ModuleTypeGetType(key) != type) return ValkeyModule_ReplyWithNull(ctx);
    return ValkeyModule_ReplyWithLongLong(ctx, *(long long *)ValkeyModule_ModuleTypeGetValue(key));
}

/* Replies with the names of what has run, and how often. */
static int counts(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    ValkeyModuleString *text = ValkeyModule_CreateStringPrintf(
        ctx, "commands=%lld timers=%lld events=%lld loads=%lld types=%lld jobs=%lld", commands, timers, events, loads,
        calls_of_type, jobs);
    ValkeyModule_ReplyWithString(ctx, text);
    ValkeyModule_FreeString(ctx, text);
    return VALKEYMODULE_OK;
}

int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    home = pthread_self();
    REQUIRE(ValkeyModule_Init(ctx, "affinity", 1, VALKEYMODULE_APIVER_1));
    ValkeyModuleTypeMethods methods = {
        .version = VALKEYMODULE_TYPE_METHOD_VERSION,
        .rdb_load = load,
        .rdb_save = save,
        .aof_rewrite = rewrite,
        .free = free_value,
    };
    type = ValkeyModule_CreateDataType(ctx, "affinity1", 0, &methods);
    if (!type) return VALKEYMODULE_ERR;
    KEY_COMMAND("affinity.set", set, "write deny-oom");
    KEY_COMMAND("affinity.get", get, "readonly");
    COMMAND("affinity.counts", counts);
    REQUIRE(ValkeyModule_SubscribeToKeyspaceEvents(
        ctx, VALKEYMODULE_NOTIFY_STRING | VALKEYMODULE_NOTIFY_GENERIC | VALKEYMODULE_NOTIFY_EXPIRED, on_event));
    ValkeyModule_CreateTimer(ctx, 1, on_timer, NULL);
    return VALKEYMODULE_OK;
}
