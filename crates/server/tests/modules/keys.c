/* Commands that call the functions of the API on keys, for the tests of Weft. */

#include "weftmodule.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

static int fail(ValkeyModuleCtx *ctx, const char *what) {
    return ValkeyModule_ReplyWithErrorFormat(ctx, "ERR %s failed with error %d", what, errno);
}

/* keys.expiry key [EX ms | AT ms | NONE]: sets the expiry, and replies with it as a duration and as a time. */
static int expiry(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc < 2) return ValkeyModule_WrongArity(ctx);
    ValkeyModuleKey *key = ValkeyModule_OpenKey(ctx, argv[1], VALKEYMODULE_READ | VALKEYMODULE_WRITE);
    if (argc > 2) {
        const char *how = ValkeyModule_StringPtrLen(argv[2], NULL);
        long long ms = VALKEYMODULE_NO_EXPIRE;
        if (argc > 3 && ValkeyModule_StringToLongLong(argv[3], &ms) != VALKEYMODULE_OK) {
            ValkeyModule_CloseKey(key);
            return ValkeyModule_ReplyWithError(ctx, "ERR not a number");
        }
        int result = strcasecmp(how, "AT") == 0 ? ValkeyModule_SetAbsExpire(key, ms) : ValkeyModule_SetExpire(key, ms);
        if (result != VALKEYMODULE_OK) {
            ValkeyModule_CloseKey(key);
            return ValkeyModule_ReplyWithError(ctx, "ERR the expiry was not set");
        }
    }
    ValkeyModule_ReplyWithArray(ctx, 2);
    ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_GetExpire(key));
    ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_GetAbsExpire(key));
    ValkeyModule_CloseKey(key);
    return VALKEYMODULE_OK;
}

/* keys.replace key value: replaces the value by a string. */
static int replace(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 3) return ValkeyModule_WrongArity(ctx);
    ValkeyModuleKey *key = ValkeyModule_OpenKey(ctx, argv[1], VALKEYMODULE_WRITE);
    if (ValkeyModule_StringSet(key, argv[2]) != VALKEYMODULE_OK) return fail(ctx, "StringSet");
    ValkeyModule_CloseKey(key);
    ValkeyModule_ReplicateVerbatim(ctx);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

/* keys.hget key field: replies with the value of a field, and with 1 if it exists. */
static int hget(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 3) return ValkeyModule_WrongArity(ctx);
    ValkeyModuleKey *key = ValkeyModule_OpenKey(ctx, argv[1], VALKEYMODULE_READ | VALKEYMODULE_WRITE);
    ValkeyModuleString *value = NULL;
    int exists = -1;
    if (ValkeyModule_HashGet(key, VALKEYMODULE_HASH_NONE, argv[2], &value, NULL) != VALKEYMODULE_OK ||
        ValkeyModule_HashGet(key, VALKEYMODULE_HASH_EXISTS, argv[2], &exists, NULL) != VALKEYMODULE_OK) {
        ValkeyModule_CloseKey(key);
        return ValkeyModule_ReplyWithError(ctx, VALKEYMODULE_ERRORMSG_WRONGTYPE);
    }
    ValkeyModule_ReplyWithArray(ctx, 2);
    if (value) {
        ValkeyModule_ReplyWithString(ctx, value);
        ValkeyModule_FreeString(ctx, value);
    } else {
        ValkeyModule_ReplyWithNull(ctx);
    }
    ValkeyModule_ReplyWithLongLong(ctx, exists);
    ValkeyModule_CloseKey(key);
    return VALKEYMODULE_OK;
}

/* keys.scores key min max [REV] [REMOVE]: replies with the members of a range, and removes each. */
static int scores(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc < 4) return ValkeyModule_WrongArity(ctx);
    double min, max;
    if (ValkeyModule_StringToDouble(argv[2], &min) != VALKEYMODULE_OK ||
        ValkeyModule_StringToDouble(argv[3], &max) != VALKEYMODULE_OK) {
        return ValkeyModule_ReplyWithError(ctx, "ERR not a number");
    }
    int is_reverse = 0, removes = 0;
    for (int index = 4; index < argc; index++) {
        const char *option = ValkeyModule_StringPtrLen(argv[index], NULL);
        is_reverse |= strcasecmp(option, "REV") == 0;
        removes |= strcasecmp(option, "REMOVE") == 0;
    }
    ValkeyModule_AutoMemory(ctx);
    ValkeyModuleKey *key = ValkeyModule_OpenKey(ctx, argv[1], VALKEYMODULE_READ | VALKEYMODULE_WRITE);
    int begun = is_reverse ? ValkeyModule_ZsetLastInScoreRange(key, min, max, 0, 0)
                           : ValkeyModule_ZsetFirstInScoreRange(key, min, max, 0, 0);
    if (begun != VALKEYMODULE_OK) return ValkeyModule_ReplyWithError(ctx, VALKEYMODULE_ERRORMSG_WRONGTYPE);
    ValkeyModule_ReplyWithArray(ctx, VALKEYMODULE_POSTPONED_LEN);
    long count = 0;
    while (!ValkeyModule_ZsetRangeEndReached(key)) {
        double score, same;
        ValkeyModuleString *member = ValkeyModule_ZsetRangeCurrentElement(key, &score);
        if (ValkeyModule_ZsetScore(key, member, &same) != VALKEYMODULE_OK || same != score) break;
        ValkeyModule_ReplyWithString(ctx, member);
        count++;
        int deleted = 0;
        if (removes) ValkeyModule_ZsetRem(key, member, &deleted);
        if (ValkeyModule_KeyType(key) == VALKEYMODULE_KEYTYPE_EMPTY) break;
        if (is_reverse) {
            ValkeyModule_ZsetRangePrev(key);
        } else {
            ValkeyModule_ZsetRangeNext(key);
        }
    }
    ValkeyModule_ZsetRangeStop(key);
    ValkeyModule_ReplySetArrayLength(ctx, count);
    return VALKEYMODULE_OK;
}

/* keys.overwrite key offset text: writes into a string by a pointer; replies with what GET returns meanwhile. */
static int overwrite(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 4) return ValkeyModule_WrongArity(ctx);
    long long offset;
    if (ValkeyModule_StringToLongLong(argv[2], &offset) != VALKEYMODULE_OK || offset < 0) {
        return ValkeyModule_ReplyWithError(ctx, "ERR not an offset");
    }
    ValkeyModule_AutoMemory(ctx);
    ValkeyModuleKey *key = ValkeyModule_OpenKey(ctx, argv[1], VALKEYMODULE_READ | VALKEYMODULE_WRITE);
    size_t added, length;
    const char *text = ValkeyModule_StringPtrLen(argv[3], &added);
    if (ValkeyModule_ValueLength(key) < offset + added &&
        ValkeyModule_StringTruncate(key, offset + added) != VALKEYMODULE_OK) {
        return ValkeyModule_ReplyWithError(ctx, VALKEYMODULE_ERRORMSG_WRONGTYPE);
    }
    char *bytes = ValkeyModule_StringDMA(key, &length, VALKEYMODULE_WRITE);
    if (bytes == NULL) return ValkeyModule_ReplyWithError(ctx, VALKEYMODULE_ERRORMSG_WRONGTYPE);
    memcpy(bytes + offset, text, added);
    ValkeyModuleCallReply *seen = ValkeyModule_Call(ctx, "GET", "s", argv[1]);
    if (seen == NULL) return fail(ctx, "GET");
    return ValkeyModule_ReplyWithCallReply(ctx, seen);
}

static void count_key(ValkeyModuleCtx *ctx, ValkeyModuleString *name, ValkeyModuleKey *key, void *data) {
    VALKEYMODULE_NOT_USED(ctx);
    VALKEYMODULE_NOT_USED(name);
    if (key && ValkeyModule_GetDbIdFromModuleKey(key) == ValkeyModule_GetSelectedDb(ctx)) (*(long long *)data)++;
}

/* keys.count: counts the keys of the database by two walks with one cursor, and by DbSize. */
static int count(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    VALKEYMODULE_NOT_USED(argv);
    if (argc != 1) return ValkeyModule_WrongArity(ctx);
    long long first = 0, second = 0;
    ValkeyModuleScanCursor *cursor = ValkeyModule_ScanCursorCreate();
    while (ValkeyModule_Scan(ctx, cursor, count_key, &first)) {
    }
    ValkeyModule_ScanCursorRestart(cursor);
    while (ValkeyModule_Scan(ctx, cursor, count_key, &second)) {
    }
    ValkeyModule_ScanCursorDestroy(cursor);
    ValkeyModule_ReplyWithArray(ctx, 3);
    ValkeyModule_ReplyWithLongLong(ctx, first);
    ValkeyModule_ReplyWithLongLong(ctx, second);
    ValkeyModule_ReplyWithLongLong(ctx, (long long)ValkeyModule_DbSize(ctx));
    return VALKEYMODULE_OK;
}

/* keys.signal key: says that a key has changed. */
static int signal_key(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    ValkeyModule_SignalModifiedKey(ctx, argv[1]);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

/* keys.push key element...: pushes elements to a list, which is propagated. */
static int push(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc < 3) return ValkeyModule_WrongArity(ctx);
    ValkeyModuleKey *key = ValkeyModule_OpenKey(ctx, argv[1], VALKEYMODULE_WRITE);
    for (int index = 2; index < argc; index++) {
        if (ValkeyModule_ListPush(key, VALKEYMODULE_LIST_TAIL, argv[index]) != VALKEYMODULE_OK) {
            ValkeyModule_CloseKey(key);
            return fail(ctx, "ListPush");
        }
    }
    size_t length = ValkeyModule_ValueLength(key);
    ValkeyModule_CloseKey(key);
    ValkeyModule_ReplicateVerbatim(ctx);
    return ValkeyModule_ReplyWithLongLong(ctx, (long long)length);
}

/* keys.reset: deletes all keys. */
static int reset(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    VALKEYMODULE_NOT_USED(argv);
    VALKEYMODULE_NOT_USED(argc);
    ValkeyModule_ResetDataset(0, 1);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    VALKEYMODULE_NOT_USED(argv);
    VALKEYMODULE_NOT_USED(argc);
    if (ValkeyModule_Init(ctx, "keys", 1, VALKEYMODULE_APIVER_1) != VALKEYMODULE_OK) return VALKEYMODULE_ERR;
    const struct {
        const char *name;
        ValkeyModuleCmdFunc function;
        const char *flags;
        int first_key;
    } commands[] = {
        {"keys.expiry", expiry, "write", 1},       {"keys.hget", hget, "readonly", 1},
        {"keys.scores", scores, "write", 1},       {"keys.overwrite", overwrite, "write", 1},
        {"keys.count", count, "readonly", 0},      {"keys.signal", signal_key, "write", 1},
        {"keys.push", push, "write deny-oom", 1},  {"keys.reset", reset, "write", 0},
        {"keys.replace", replace, "write deny-oom", 1},
    };
    for (size_t index = 0; index < sizeof commands / sizeof *commands; index++) {
        int first = commands[index].first_key;
        if (ValkeyModule_CreateCommand(ctx, commands[index].name, commands[index].function, commands[index].flags,
                                       first, first, first) != VALKEYMODULE_OK) {
            return VALKEYMODULE_ERR;
        }
    }
    return VALKEYMODULE_OK;
}
