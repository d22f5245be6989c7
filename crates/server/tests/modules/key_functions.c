/* Functions of keys that no test module of Valkey calls. */

#include "check.h"

static int expiry(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    ValkeyModule_AutoMemory(ctx);
    ValkeyModuleKey *missing = ValkeyModule_OpenKey(ctx, argv[1], VALKEYMODULE_READ | VALKEYMODULE_WRITE);
    CHECK(ValkeyModule_GetExpire(missing) == VALKEYMODULE_NO_EXPIRE);
    CHECK(ValkeyModule_SetExpire(missing, 1000) == VALKEYMODULE_ERR);
    CHECK(ValkeyModule_StringSet(missing, argv[1]) == VALKEYMODULE_OK);
    CHECK(ValkeyModule_GetExpire(missing) == VALKEYMODULE_NO_EXPIRE);
    CHECK(ValkeyModule_SetExpire(missing, 100000) == VALKEYMODULE_OK);
    mstime_t left = ValkeyModule_GetExpire(missing);
    CHECK(left > 90000 && left <= 100000);
    CHECK(ValkeyModule_SetExpire(missing, VALKEYMODULE_NO_EXPIRE) == VALKEYMODULE_OK);
    CHECK(ValkeyModule_GetAbsExpire(missing) == VALKEYMODULE_NO_EXPIRE);
    mstime_t until = ValkeyModule_Milliseconds() + 50000;
    CHECK(ValkeyModule_SetAbsExpire(missing, until) == VALKEYMODULE_OK);
    CHECK(ValkeyModule_GetAbsExpire(missing) == until);
    ValkeyModuleKey *reader = ValkeyModule_OpenKey(ctx, argv[1], VALKEYMODULE_READ);
    CHECK(ValkeyModule_SetAbsExpire(reader, until) == VALKEYMODULE_ERR);
    return ValkeyModule_ReplyWithLongLong(ctx, until);
}

/* RANGE key min max first|last exclusive: replies with the elements and their scores. */
static int range(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 6) return ValkeyModule_WrongArity(ctx);
    ValkeyModule_AutoMemory(ctx);
    double min, max, score, same;
    long long is_exclusive;
    CHECK(ValkeyModule_StringToDouble(argv[2], &min) == VALKEYMODULE_OK);
    CHECK(ValkeyModule_StringToDouble(argv[3], &max) == VALKEYMODULE_OK);
    CHECK(ValkeyModule_StringToLongLong(argv[5], &is_exclusive) == VALKEYMODULE_OK);
    ValkeyModuleKey *key = ValkeyModule_OpenKey(ctx, argv[1], VALKEYMODULE_READ);
    int is_first = is_text(argv[4], "first");
    if (is_first) ValkeyModule_ZsetFirstInScoreRange(key, min, max, (int)is_exclusive, (int)is_exclusive);
    else ValkeyModule_ZsetLastInScoreRange(key, min, max, (int)is_exclusive, (int)is_exclusive);
    long count = 0;
    ValkeyModule_ReplyWithArray(ctx, VALKEYMODULE_POSTPONED_LEN);
    for (; !ValkeyModule_ZsetRangeEndReached(key); count += 2) {
        ValkeyModuleString *element = ValkeyModule_ZsetRangeCurrentElement(key, &score);
        ValkeyModule_ReplyWithString(ctx, element);
        if (ValkeyModule_ZsetScore(key, element, &same) == VALKEYMODULE_OK && same == score)
            ValkeyModule_ReplyWithDouble(ctx, score);
        else ValkeyModule_ReplyWithError(ctx, "ERR the score is another one");
        if (is_first) ValkeyModule_ZsetRangeNext(key);
        else ValkeyModule_ZsetRangePrev(key);
    }
    ValkeyModule_ReplySetArrayLength(ctx, count);
    ValkeyModule_ZsetRangeStop(key);
    return VALKEYMODULE_OK;
}

static int hash(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    ValkeyModule_AutoMemory(ctx);
    ValkeyModuleKey *key = ValkeyModule_OpenKey(ctx, argv[1], VALKEYMODULE_READ | VALKEYMODULE_WRITE);
    ValkeyModuleString *a = ValkeyModule_CreateString(ctx, "a", 1), *b = ValkeyModule_CreateString(ctx, "b", 1);
    ValkeyModuleString *first = NULL, *second = NULL;
    int has_a, has_c;
    CHECK(ValkeyModule_HashGet(key, VALKEYMODULE_HASH_NONE, a, &first, NULL) == VALKEYMODULE_OK && !first);
    CHECK(ValkeyModule_HashSet(key, VALKEYMODULE_HASH_NONE, a, b, b, a, NULL) == 0);
    CHECK(ValkeyModule_HashSet(key, VALKEYMODULE_HASH_COUNT_ALL, a, b, NULL) == 1);
    CHECK(ValkeyModule_HashGet(key, VALKEYMODULE_HASH_NONE, a, &first, b, &second, NULL) == VALKEYMODULE_OK);
    CHECK(is_text(first, "b") && is_text(second, "a"));
    CHECK(ValkeyModule_HashGet(key, VALKEYMODULE_HASH_CFIELDS, "b", &first, "c", &second, NULL) == VALKEYMODULE_OK);
    CHECK(is_text(first, "a") && !second);
    CHECK(ValkeyModule_HashGet(key, VALKEYMODULE_HASH_EXISTS | VALKEYMODULE_HASH_CFIELDS, "a", &has_a, "c", &has_c,
                               NULL) == VALKEYMODULE_OK);
    CHECK(has_a && !has_c);
    CHECK(ValkeyModule_HashSet(key, VALKEYMODULE_HASH_CFIELDS, "a", VALKEYMODULE_HASH_DELETE, NULL) == 1);
    CHECK(ValkeyModule_ValueLength(key) == 1);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

/* Changes nothing, but lets watches and caches believe it. */
/* PROVIDE key field bytes: sets a field to bytes that belong to the module, and frees them. Replies with the results. */
static int provide(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 4) return ValkeyModule_WrongArity(ctx);
    ValkeyModule_AutoMemory(ctx);
    ValkeyModuleKey *key = ValkeyModule_OpenKey(ctx, argv[1], VALKEYMODULE_READ | VALKEYMODULE_WRITE);
    size_t length;
    const char *text = ValkeyModule_StringPtrLen(argv[3], &length);
    char *bytes = ValkeyModule_Alloc(length);
    memcpy(bytes, text, length);
    int result = ValkeyModule_HashSetStringRef(key, argv[2], bytes, length);
    ValkeyModule_Free(bytes);
    return ValkeyModule_ReplyWithLongLong(ctx, result);
}

/* PROVIDED key field */
static int is_provided(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 3) return ValkeyModule_WrongArity(ctx);
    ValkeyModule_AutoMemory(ctx);
    return ValkeyModule_ReplyWithLongLong(
        ctx, ValkeyModule_HashHasStringRef(ValkeyModule_OpenKey(ctx, argv[1], VALKEYMODULE_READ), argv[2]));
}

static int touch(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    ValkeyModule_SignalModifiedKey(ctx, argv[1]);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

static int database(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    ValkeyModuleKey *key = ValkeyModule_OpenKey(ctx, argv[1], VALKEYMODULE_WRITE);
    int id = ValkeyModule_GetDbIdFromModuleKey(key);
    int has_name = ValkeyModule_StringCompare(ValkeyModule_GetKeyNameFromModuleKey(key), argv[1]) == 0;
    ValkeyModule_CloseKey(key);
    CHECK(has_name);
    return ValkeyModule_ReplyWithLongLong(ctx, id);
}

static void count_key(ValkeyModuleCtx *ctx, ValkeyModuleString *name, ValkeyModuleKey *key, void *count) {
    VALKEYMODULE_NOT_USED(ctx);
    VALKEYMODULE_NOT_USED(name);
    VALKEYMODULE_NOT_USED(key);
    ++*(long long *)count;
}

/* Scans all keys twice with one cursor. */
static int scan(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    long long counts[2] = {0, 0};
    ValkeyModuleScanCursor *cursor = ValkeyModule_ScanCursorCreate();
    while (ValkeyModule_Scan(ctx, cursor, count_key, &counts[0])) {}
    CHECK(ValkeyModule_Scan(ctx, cursor, count_key, &counts[0]) == 0);
    ValkeyModule_ScanCursorRestart(cursor);
    while (ValkeyModule_Scan(ctx, cursor, count_key, &counts[1])) {}
    ValkeyModule_ScanCursorDestroy(cursor);
    CHECK(counts[0] == counts[1]);
    return ValkeyModule_ReplyWithLongLong(ctx, counts[0]);
}

int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    REQUIRE(ValkeyModule_Init(ctx, "keyfunctions", 1, VALKEYMODULE_APIVER_1));
    KEY_COMMAND("keyfunctions.expiry", expiry, "write");
    KEY_COMMAND("keyfunctions.range", range, "readonly");
    KEY_COMMAND("keyfunctions.hash", hash, "write");
    KEY_COMMAND("keyfunctions.touch", touch, "write");
    KEY_COMMAND("keyfunctions.provide", provide, "write");
    KEY_COMMAND("keyfunctions.provided", is_provided, "readonly");
    KEY_COMMAND("keyfunctions.database", database, "write");
    COMMAND("keyfunctions.scan", scan);
    return VALKEYMODULE_OK;
}
