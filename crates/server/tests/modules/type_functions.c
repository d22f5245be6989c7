/* A data type with one number, by the functions of data types that no test module of Valkey calls. */

#include "check.h"

static ValkeyModuleType *type;

static void *load(ValkeyModuleIO *io, int version) {
    if (version != 0) {
        ValkeyModule_LogIOError(io, "warning", "unknown version %d", version);
        return NULL;
    }
    double *value = ValkeyModule_Alloc(sizeof(*value));
    *value = ValkeyModule_LoadDouble(io);
    if (ValkeyModule_IsIOError(io)) {
        ValkeyModule_Free(value);
        return NULL;
    }
    ValkeyModule_LogIOError(io, "notice", "loaded %g", *value);
    return value;
}

static void save(ValkeyModuleIO *io, void *value) {
    ValkeyModule_SaveDouble(io, *(double *)value);
}

static void rewrite(ValkeyModuleIO *io, ValkeyModuleString *key, void *value) {
    ValkeyModuleString *number = ValkeyModule_CreateStringFromDouble(NULL, *(double *)value);
    ValkeyModule_EmitAOF(io, "typefunctions.set", "ss", key, number);
    ValkeyModule_FreeString(NULL, number);
}

static void digest(ValkeyModuleDigest *digest, void *value) {
    ValkeyModule_DigestAddStringBuffer(digest, value, sizeof(double));
    ValkeyModule_DigestEndSequence(digest);
    ValkeyModule_DigestAddLongLong(digest, 1);
    ValkeyModule_DigestEndSequence(digest);
}

static size_t usage(const void *value) {
    VALKEYMODULE_NOT_USED(value);
    return sizeof(double);
}

/* TYPEFUNCTIONS.SET key number */
static int set(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    double number;
    if (argc != 3) return ValkeyModule_WrongArity(ctx);
    CHECK(ValkeyModule_StringToDouble(argv[2], &number) == VALKEYMODULE_OK);
    ValkeyModule_AutoMemory(ctx);
    ValkeyModuleKey *key = ValkeyModule_OpenKey(ctx, argv[1], VALKEYMODULE_READ | VALKEYMODULE_WRITE);
    int kind = ValkeyModule_KeyType(key);
    if (kind != VALKEYMODULE_KEYTYPE_EMPTY && ValkeyModule_ModuleTypeGetType(key) != type)
        return ValkeyModule_ReplyWithError(ctx, VALKEYMODULE_ERRORMSG_WRONGTYPE);
    double *value = ValkeyModule_Alloc(sizeof(*value));
    *value = number;
    CHECK(ValkeyModule_ModuleTypeSetValue(key, type, value) == VALKEYMODULE_OK);
    ValkeyModule_ReplicateVerbatim(ctx);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

static int get(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    ValkeyModule_AutoMemory(ctx);
    ValkeyModuleKey *key = ValkeyModule_OpenKey(ctx, argv[1], VALKEYMODULE_READ);
    if (!key) return ValkeyModule_ReplyWithNull(ctx);
    if (ValkeyModule_ModuleTypeGetType(key) != type)
        return ValkeyModule_ReplyWithError(ctx, VALKEYMODULE_ERRORMSG_WRONGTYPE);
    return ValkeyModule_ReplyWithDouble(ctx, *(double *)ValkeyModule_ModuleTypeGetValue(key));
}

/* Turns a number into a string, and back by both functions for that. */
static int serialize(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    double number;
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    CHECK(ValkeyModule_StringToDouble(argv[1], &number) == VALKEYMODULE_OK);
    ValkeyModuleString *bytes = ValkeyModule_SaveDataTypeToString(NULL, &number, type);
    CHECK(bytes);
    double *loaded[2] = {ValkeyModule_LoadDataTypeFromString(bytes, type),
                         ValkeyModule_LoadDataTypeFromStringEncver(bytes, type, 0)};
    void *refused = ValkeyModule_LoadDataTypeFromStringEncver(bytes, type, 1);
    ValkeyModule_FreeString(NULL, bytes);
    CHECK(loaded[0] && loaded[1] && !refused && *loaded[0] == number && *loaded[1] == number);
    ValkeyModule_Free(loaded[0]);
    ValkeyModule_Free(loaded[1]);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    REQUIRE(ValkeyModule_Init(ctx, "typefunctions", 1, VALKEYMODULE_APIVER_1));
    ValkeyModuleTypeMethods methods = {
        .version = VALKEYMODULE_TYPE_METHOD_VERSION,
        .rdb_load = load,
        .rdb_save = save,
        .aof_rewrite = rewrite,
        .mem_usage = usage,
        .digest = digest,
        .free = ValkeyModule_Free,
    };
    type = ValkeyModule_CreateDataType(ctx, "numbertyp", 0, &methods);
    if (!type) return VALKEYMODULE_ERR;
    ValkeyModule_SetModuleOptions(ctx, VALKEYMODULE_OPTIONS_HANDLE_IO_ERRORS);
    KEY_COMMAND("typefunctions.set", set, "write deny-oom");
    KEY_COMMAND("typefunctions.get", get, "readonly");
    COMMAND("typefunctions.serialize", serialize);
    return VALKEYMODULE_OK;
}
