/* A data type with all callbacks: counters that clients change in place. Its functions run on one thread only. */

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "check.h"

typedef struct {
    long long number;
    size_t effort;
} Counter;

static pthread_t home;
static ValkeyModuleType *type;
static long long freed, unlinked, saved, copied, slow_ms;
static ValkeyModuleString *before_keys, *after_keys;

static void at_home(const char *where) {
    if (!pthread_equal(home, pthread_self())) {
        fprintf(stderr, "types: %s runs on another thread\n", where);
        abort();
    }
}

static Counter *create(long long number) {
    Counter *counter = ValkeyModule_Calloc(1, sizeof(*counter));
    counter->number = number;
    return counter;
}

/* Gives way to other clients for the time that TYPES.SLOW has set. */
static void be_slow(ValkeyModuleIO *io) {
    uint64_t end = ValkeyModule_MonotonicMicroseconds() + (uint64_t)slow_ms * 1000;
    while (ValkeyModule_MonotonicMicroseconds() < end) {
        ValkeyModule_Yield(ValkeyModule_GetContextFromIO(io), VALKEYMODULE_YIELD_FLAG_CLIENTS, "it is slow");
        usleep(1000);
    }
}

static void *load(ValkeyModuleIO *io, int version) {
    at_home("load");
    be_slow(io);
    if (version != 3 || !ValkeyModule_GetKeyNameFromIO(io)) return NULL;
    long long number = ValkeyModule_LoadSigned(io);
    size_t length;
    char *text = ValkeyModule_LoadStringBuffer(io, &length);
    if (ValkeyModule_IsIOError(io)) return NULL;
    int is_valid = length == 3 && memcmp(text, "end", 3) == 0;
    ValkeyModule_Free(text);
    return is_valid ? create(number) : NULL;
}

static void save(ValkeyModuleIO *io, void *value) {
    at_home("save");
    saved++;
    ValkeyModule_SaveSigned(io, ((Counter *)value)->number);
    ValkeyModule_SaveStringBuffer(io, "end", 3);
}

static void rewrite(ValkeyModuleIO *io, ValkeyModuleString *key, void *value) {
    at_home("rewrite");
    ValkeyModule_EmitAOF(io, "types.set", "sl", key, ((Counter *)value)->number);
}

static size_t usage(ValkeyModuleKeyOptCtx *ctx, const void *value, size_t samples) {
    at_home("usage");
    VALKEYMODULE_NOT_USED(value);
    return 1000 * ValkeyModule_GetDbIdFromOptCtx(ctx) + samples + 100000;
}

static void digest(ValkeyModuleDigest *digest, void *value) {
    at_home("digest");
    ValkeyModule_DigestAddLongLong(digest, ((Counter *)value)->number);
    ValkeyModule_DigestEndSequence(digest);
}

static void free_value(void *value) {
    Counter *counter = value;
    /* A value whose effort is large may be freed on any thread. */
    if (counter->effort <= 64) at_home("free");
    __atomic_add_fetch(&freed, 1, __ATOMIC_SEQ_CST);
    ValkeyModule_Free(counter);
}

static size_t effort(ValkeyModuleKeyOptCtx *ctx, const void *value) {
    VALKEYMODULE_NOT_USED(ctx);
    at_home("effort");
    return ((const Counter *)value)->effort ? ((const Counter *)value)->effort : 1;
}

static void unlink_value(ValkeyModuleKeyOptCtx *ctx, const void *value) {
    VALKEYMODULE_NOT_USED(value);
    at_home("unlink");
    if (ValkeyModule_GetKeyNameFromOptCtx(ctx)) unlinked++;
}

static void *copy(ValkeyModuleKeyOptCtx *ctx, const void *value) {
    at_home("copy");
    if (is_text(ValkeyModule_GetToKeyNameFromOptCtx(ctx), "refused")) return NULL;
    copied++;
    return create(((const Counter *)value)->number + ValkeyModule_GetToDbIdFromOptCtx(ctx));
}

static void aux_save(ValkeyModuleIO *io, int when) {
    at_home("aux_save");
    ValkeyModuleString *text = when == VALKEYMODULE_AUX_BEFORE_RDB ? before_keys : after_keys;
    if (text) ValkeyModule_SaveString(io, text);
}

static int aux_load(ValkeyModuleIO *io, int version, int when) {
    VALKEYMODULE_NOT_USED(version);
    at_home("aux_load");
    ValkeyModuleString **text = when == VALKEYMODULE_AUX_BEFORE_RDB ? &before_keys : &after_keys;
    if (*text) ValkeyModule_FreeString(NULL, *text);
    *text = ValkeyModule_LoadString(io);
    return ValkeyModule_IsIOError(io) ? VALKEYMODULE_ERR : VALKEYMODULE_OK;
}

static Counter *counter_of(ValkeyModuleKey *key) {
    return key && ValkeyModule_ModuleTypeGetType(key) == type ? ValkeyModule_ModuleTypeGetValue(key) : NULL;
}

/* TYPES.SET key number [effort] */
static int set(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    long long number, effort = 0;
    if (argc != 3 && argc != 4) return ValkeyModule_WrongArity(ctx);
    CHECK(ValkeyModule_StringToLongLong(argv[2], &number) == VALKEYMODULE_OK);
    CHECK(argc == 3 || ValkeyModule_StringToLongLong(argv[3], &effort) == VALKEYMODULE_OK);
    ValkeyModuleKey *key = ValkeyModule_OpenKey(ctx, argv[1], VALKEYMODULE_READ | VALKEYMODULE_WRITE);
    Counter *counter = create(number);
    counter->effort = (size_t)effort;
    ValkeyModule_ModuleTypeSetValue(key, type, counter);
    ValkeyModule_CloseKey(key);
    ValkeyModule_ReplicateVerbatim(ctx);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

/* TYPES.INCR key ...: adds one to each of the counters in place. */
static int increment(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    long long sum = 0;
    for (int i = 1; i < argc; i++) {
        ValkeyModuleKey *key = ValkeyModule_OpenKey(ctx, argv[i], VALKEYMODULE_READ | VALKEYMODULE_WRITE);
        Counter *counter = counter_of(key);
        if (counter) sum += ++counter->number;
        ValkeyModule_CloseKey(key);
    }
    ValkeyModule_ReplicateVerbatim(ctx);
    return ValkeyModule_ReplyWithLongLong(ctx, sum);
}

/* TYPES.GET key */
static int get(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    ValkeyModuleKey *key = ValkeyModule_OpenKey(ctx, argv[1], VALKEYMODULE_READ);
    Counter *counter = counter_of(key);
    long long number = counter ? counter->number : -1;
    ValkeyModule_CloseKey(key);
    return ValkeyModule_ReplyWithLongLong(ctx, number);
}

/* TYPES.SWAP key number: replaces the value, and replies with the old number. */
static int swap(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    long long number;
    void *old;
    if (argc != 3) return ValkeyModule_WrongArity(ctx);
    CHECK(ValkeyModule_StringToLongLong(argv[2], &number) == VALKEYMODULE_OK);
    ValkeyModuleKey *key = ValkeyModule_OpenKey(ctx, argv[1], VALKEYMODULE_READ | VALKEYMODULE_WRITE);
    Counter *counter = create(number);
    int result = ValkeyModule_ModuleTypeReplaceValue(key, type, counter, &old);
    ValkeyModule_CloseKey(key);
    if (result != VALKEYMODULE_OK) {
        ValkeyModule_Free(counter);
        return ValkeyModule_ReplyWithError(ctx, "ERR not replaced");
    }
    number = ((Counter *)old)->number;
    ValkeyModule_Free(old);
    return ValkeyModule_ReplyWithLongLong(ctx, number);
}

/* TYPES.TEXT key number: encodes a number and decodes it. */
static int text(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    long long number;
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    CHECK(ValkeyModule_StringToLongLong(argv[1], &number) == VALKEYMODULE_OK);
    Counter counter = {.number = number};
    ValkeyModuleString *string = ValkeyModule_SaveDataTypeToString(NULL, &counter, type);
    CHECK(string);
    /* The callback refuses values without a key. */
    CHECK(!ValkeyModule_LoadDataTypeFromStringEncver(string, type, 3));
    size_t length;
    ValkeyModule_StringPtrLen(string, &length);
    ValkeyModule_FreeString(NULL, string);
    return ValkeyModule_ReplyWithLongLong(ctx, (long long)length);
}

/* TYPES.AUX before after */
static int aux(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 3) return ValkeyModule_WrongArity(ctx);
    before_keys = ValkeyModule_HoldString(NULL, argv[1]);
    after_keys = ValkeyModule_HoldString(NULL, argv[2]);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

/* TYPES.SLOW milliseconds: each value takes so long to load. */
static int slow(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    CHECK(ValkeyModule_StringToLongLong(argv[1], &slow_ms) == VALKEYMODULE_OK);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

/* TYPES.FILE save|load path: saves or loads all data. */
static int file(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 3) return ValkeyModule_WrongArity(ctx);
    size_t length;
    ValkeyModuleRdbStream *stream = ValkeyModule_RdbStreamCreateFromFile(ValkeyModule_StringPtrLen(argv[2], &length));
    int result = is_text(argv[1], "save") ? ValkeyModule_RdbSave(ctx, stream, 0) : ValkeyModule_RdbLoad(ctx, stream, 0);
    ValkeyModule_RdbStreamFree(stream);
    CHECK(result == VALKEYMODULE_OK);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

static int counts(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    size_t length;
    ValkeyModuleString *shown = ValkeyModule_CreateStringPrintf(
        ctx, "freed=%lld unlinked=%lld saved=%lld copied=%lld before=%s after=%s",
        __atomic_load_n(&freed, __ATOMIC_SEQ_CST), unlinked, saved, copied,
        before_keys ? ValkeyModule_StringPtrLen(before_keys, &length) : "",
        after_keys ? ValkeyModule_StringPtrLen(after_keys, &length) : "");
    ValkeyModule_ReplyWithString(ctx, shown);
    ValkeyModule_FreeString(ctx, shown);
    return VALKEYMODULE_OK;
}

int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    home = pthread_self();
    REQUIRE(ValkeyModule_Init(ctx, "types", 1, VALKEYMODULE_APIVER_1));
    /* The arguments name the options. Without arguments, it handles failed reads. */
    int options = argc == 0 ? VALKEYMODULE_OPTIONS_HANDLE_IO_ERRORS : 0;
    for (int i = 0; i < argc; i++) {
        if (is_text(argv[i], "io-errors")) options |= VALKEYMODULE_OPTIONS_HANDLE_IO_ERRORS;
        if (is_text(argv[i], "async-load")) options |= VALKEYMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD;
        if (is_text(argv[i], "migrates")) options |= VALKEYMODULE_OPTIONS_HANDLE_ATOMIC_SLOT_MIGRATION;
    }
    ValkeyModule_SetModuleOptions(ctx, options);
    ValkeyModuleTypeMethods methods = {
        .version = VALKEYMODULE_TYPE_METHOD_VERSION,
        .rdb_load = load,
        .rdb_save = save,
        .aof_rewrite = rewrite,
        .mem_usage2 = usage,
        .digest = digest,
        .free = free_value,
        .free_effort2 = effort,
        .unlink2 = unlink_value,
        .copy2 = copy,
        .aux_load = aux_load,
        .aux_save2 = aux_save,
        .aux_save_triggers = VALKEYMODULE_AUX_BEFORE_RDB | VALKEYMODULE_AUX_AFTER_RDB,
    };
    if (ValkeyModule_CreateDataType(ctx, "too-short", 1024, &methods)) return VALKEYMODULE_ERR;
    if (ValkeyModule_CreateDataType(ctx, "short", 3, &methods)) return VALKEYMODULE_ERR;
    type = ValkeyModule_CreateDataType(ctx, "types-cnt", 3, &methods);
    if (!type || ValkeyModule_CreateDataType(ctx, "types-cnt", 4, &methods)) return VALKEYMODULE_ERR;
    KEY_COMMAND("types.set", set, "write deny-oom");
    KEY_COMMAND("types.get", get, "readonly");
    KEY_COMMAND("types.swap", swap, "write");
    REQUIRE(ValkeyModule_CreateCommand(ctx, "types.incr", increment, "write", 1, -1, 1));
    COMMAND("types.text", text);
    COMMAND("types.aux", aux);
    COMMAND("types.slow", slow);
    COMMAND("types.file", file);
    COMMAND("types.counts", counts);
    return VALKEYMODULE_OK;
}
