/* What modules are called for while other threads have exclusive mode: snapshots, flushes and loads. Ends the process if
 * one of these functions runs on another thread than the first. With the argument `type` there is a data type with data
 * besides the keys, so the module is not unloaded; with `slow` it takes some time to load. */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"

static pthread_t home;
static long long saves, events, keys;

static void at_home(const char *where, long long *count) {
    if (!pthread_equal(home, pthread_self())) {
        fprintf(stderr, "moments: %s runs on another thread\n", where);
        abort();
    }
    ++*count;
}

static void *load(ValkeyModuleIO *io, int version) {
    VALKEYMODULE_NOT_USED(version);
    return (void *)ValkeyModule_LoadUnsigned(io);
}

static void save(ValkeyModuleIO *io, void *value) {
    at_home("save", &saves);
    ValkeyModule_SaveUnsigned(io, (uint64_t)value);
}

static void free_value(void *value) {
    VALKEYMODULE_NOT_USED(value);
}

static void save_data(ValkeyModuleIO *io, int when) {
    at_home("aux_save", &saves);
    ValkeyModule_SaveSigned(io, when);
}

static int load_data(ValkeyModuleIO *io, int version, int when) {
    VALKEYMODULE_NOT_USED(version);
    at_home("aux_load", &saves);
    return ValkeyModule_LoadSigned(io) == when ? VALKEYMODULE_OK : VALKEYMODULE_ERR;
}

static void on_event(ValkeyModuleCtx *ctx, ValkeyModuleEvent event, uint64_t sub, void *data) {
    VALKEYMODULE_NOT_USED(ctx);
    VALKEYMODULE_NOT_USED(event);
    VALKEYMODULE_NOT_USED(sub);
    VALKEYMODULE_NOT_USED(data);
    at_home("event", &events);
}

static int on_key(ValkeyModuleCtx *ctx, int class, const char *event, ValkeyModuleString *key) {
    VALKEYMODULE_NOT_USED(ctx);
    VALKEYMODULE_NOT_USED(class);
    VALKEYMODULE_NOT_USED(event);
    VALKEYMODULE_NOT_USED(key);
    at_home("key event", &keys);
    return VALKEYMODULE_OK;
}

/* Replies with the numbers of saves and loads, of events, and of loaded keys. */
static int counts(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    ValkeyModule_ReplyWithArray(ctx, 3);
    ValkeyModule_ReplyWithLongLong(ctx, saves);
    ValkeyModule_ReplyWithLongLong(ctx, events);
    return ValkeyModule_ReplyWithLongLong(ctx, keys);
}

int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    home = pthread_self();
    REQUIRE(ValkeyModule_Init(ctx, "moments", 1, VALKEYMODULE_APIVER_1));
    for (int index = 0; index < argc; index++) {
        if (is_text(argv[index], "slow")) usleep(20000);
        if (!is_text(argv[index], "type")) continue;
        ValkeyModuleTypeMethods methods = {
            .version = VALKEYMODULE_TYPE_METHOD_VERSION,
            .rdb_load = load,
            .rdb_save = save,
            .free = free_value,
            .aux_save = save_data,
            .aux_load = load_data,
            .aux_save_triggers = VALKEYMODULE_AUX_BEFORE_RDB | VALKEYMODULE_AUX_AFTER_RDB,
        };
        if (!ValkeyModule_CreateDataType(ctx, "moments01", 0, &methods)) return VALKEYMODULE_ERR;
    }
    COMMAND("moments.counts", counts);
    REQUIRE(ValkeyModule_SubscribeToServerEvent(ctx, ValkeyModuleEvent_FlushDB, on_event));
    REQUIRE(ValkeyModule_SubscribeToServerEvent(ctx, ValkeyModuleEvent_Loading, on_event));
    REQUIRE(ValkeyModule_SubscribeToServerEvent(ctx, ValkeyModuleEvent_Persistence, on_event));
    return ValkeyModule_SubscribeToKeyspaceEvents(ctx, VALKEYMODULE_NOTIFY_LOADED, on_key);
}
