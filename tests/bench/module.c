/* Commands whose cost `weft-bench compare --set modules` measures.
 *
 *     cc -O2 -shared -fPIC -I crates/modules/include -o module.so tests/bench/module.c
 *
 *     BENCH.NOP                  replies with 1
 *     BENCH.GET key              replies with the value of a string
 *     BENCH.SET key value        sets a string
 *     BENCH.CALL key             replies with what GET replies
 *     BENCH.SUM key rounds       adds up the bytes of a string as often, which costs the server much
 *     BENCH.SAFE.GET, BENCH.SAFE.SET, BENCH.SAFE.CALL, BENCH.SAFE.SUM
 *                                the same, declared slot-safe where the server knows what that is
 */

#include "weftmodule.h"

static int nop(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    (void)argv;
    (void)argc;
    return ValkeyModule_ReplyWithLongLong(ctx, 1);
}

/* Opens the key of a string for reading. Returns its bytes; NULL after a reply if there are none. */
static const char *read_string(ValkeyModuleCtx *ctx, ValkeyModuleString *name, ValkeyModuleKey **key, size_t *length) {
    *key = ValkeyModule_OpenKey(ctx, name, VALKEYMODULE_READ);
    if (*key == NULL) {
        ValkeyModule_ReplyWithNull(ctx);
        return NULL;
    }
    if (ValkeyModule_KeyType(*key) != VALKEYMODULE_KEYTYPE_STRING) {
        ValkeyModule_CloseKey(*key);
        ValkeyModule_ReplyWithError(ctx, VALKEYMODULE_ERRORMSG_WRONGTYPE);
        return NULL;
    }
    return ValkeyModule_StringDMA(*key, length, VALKEYMODULE_READ);
}

static int get(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    ValkeyModuleKey *key;
    size_t length;
    const char *bytes = read_string(ctx, argv[1], &key, &length);
    if (bytes == NULL) return VALKEYMODULE_OK;
    ValkeyModule_ReplyWithStringBuffer(ctx, bytes, length);
    ValkeyModule_CloseKey(key);
    return VALKEYMODULE_OK;
}

static int set(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 3) return ValkeyModule_WrongArity(ctx);
    ValkeyModuleKey *key = ValkeyModule_OpenKey(ctx, argv[1], VALKEYMODULE_WRITE);
    ValkeyModule_StringSet(key, argv[2]);
    ValkeyModule_CloseKey(key);
    ValkeyModule_ReplicateVerbatim(ctx);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

static int call(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    ValkeyModuleCallReply *reply = ValkeyModule_Call(ctx, "GET", "s", argv[1]);
    if (reply == NULL) return ValkeyModule_ReplyWithError(ctx, "ERR the call failed");
    ValkeyModule_ReplyWithCallReply(ctx, reply);
    ValkeyModule_FreeCallReply(reply);
    return VALKEYMODULE_OK;
}

static int sum(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 3) return ValkeyModule_WrongArity(ctx);
    long long rounds;
    if (ValkeyModule_StringToLongLong(argv[2], &rounds) != VALKEYMODULE_OK)
        return ValkeyModule_ReplyWithError(ctx, "ERR the number of rounds is not an integer");
    ValkeyModuleKey *key;
    size_t length;
    const char *bytes = read_string(ctx, argv[1], &key, &length);
    if (bytes == NULL) return VALKEYMODULE_OK;
    /* Each round depends on the one before, so that none can be left out. */
    unsigned long long total = 0;
    for (long long round = 0; round < rounds; round++)
        for (size_t index = 0; index < length; index++) total = total * 31 + (unsigned char)bytes[index];
    ValkeyModule_CloseKey(key);
    return ValkeyModule_ReplyWithLongLong(ctx, (long long)(total >> 1));
}

/* A command with one key. */
struct command {
    const char *name, *safe_name, *flags;
    ValkeyModuleCmdFunc function;
};

static const struct command commands[] = {
    {"bench.get", "bench.safe.get", "readonly fast", get},
    {"bench.set", "bench.safe.set", "write deny-oom", set},
    {"bench.call", "bench.safe.call", "readonly", call},
    {"bench.sum", "bench.safe.sum", "readonly", sum},
};

int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    (void)argv;
    (void)argc;
    if (ValkeyModule_Init(ctx, "bench", 1, VALKEYMODULE_APIVER_1) == VALKEYMODULE_ERR) return VALKEYMODULE_ERR;
    WeftModule_Init(ctx);
    if (ValkeyModule_CreateCommand(ctx, "bench.nop", nop, "readonly fast", 0, 0, 0) == VALKEYMODULE_ERR)
        return VALKEYMODULE_ERR;
    for (size_t index = 0; index < sizeof commands / sizeof *commands; index++) {
        const struct command *one = &commands[index];
        if (ValkeyModule_CreateCommand(ctx, one->name, one->function, one->flags, 1, 1, 1) == VALKEYMODULE_ERR ||
            ValkeyModule_CreateCommand(ctx, one->safe_name, one->function, one->flags, 1, 1, 1) == VALKEYMODULE_ERR)
            return VALKEYMODULE_ERR;
        if (WeftModule_SetCommandConcurrency)
            WeftModule_SetCommandConcurrency(ValkeyModule_GetCommand(ctx, one->safe_name), WEFTMODULE_SLOT_SAFE);
    }
    return VALKEYMODULE_OK;
}
