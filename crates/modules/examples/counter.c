/* Counters with a limit, whose commands run in parallel on Weft and one after the other on Valkey.
 *
 *     cc -shared -fPIC -I crates/modules/include -o counter.so crates/modules/examples/counter.c
 *     weft-server --loadmodule ./counter.so
 *
 *     COUNTER.ADD key amount limit     adds, unless the sum would be above the limit; replies with the sum or null
 *     COUNTER.MOVE from to amount      takes from one counter what it adds to another; replies with null if it lacks it
 *     COUNTER.GET key                  replies with the value, 0 if there is no counter
 *     COUNTER.LARGEST                  replies with the largest result so far of COUNTER.ADD
 *
 * A counter is a string with a number, so all commands on strings work with it.
 *
 * What makes the first three commands slot-safe:
 * 1. They open no keys but those that their key positions declare.
 * 2. They share one variable, and use it atomically.
 * 3. They call no function of the API that needs all keys.
 * COUNTER.LARGEST is not declared slot-safe: it runs as every command of a module does, alone. */

#include <stdatomic.h>
#include <string.h>

#include "weftmodule.h"

/* The largest result of COUNTER.ADD. */
static atomic_llong largest;

/* Reads the number of a key, 0 if the key is empty. Replies with an error and returns 0 if it has another value. */
static int read_counter(ValkeyModuleCtx *ctx, ValkeyModuleKey *key, long long *number) {
    *number = 0;
    int type = ValkeyModule_KeyType(key);
    if (type == VALKEYMODULE_KEYTYPE_EMPTY) return 1;
    if (type != VALKEYMODULE_KEYTYPE_STRING) {
        ValkeyModule_ReplyWithError(ctx, VALKEYMODULE_ERRORMSG_WRONGTYPE);
        return 0;
    }
    size_t length;
    const char *bytes = ValkeyModule_StringDMA(key, &length, VALKEYMODULE_READ);
    ValkeyModuleString *text = ValkeyModule_CreateString(ctx, bytes, length);
    int is_number = ValkeyModule_StringToLongLong(text, number) == VALKEYMODULE_OK;
    ValkeyModule_FreeString(ctx, text);
    if (!is_number) ValkeyModule_ReplyWithError(ctx, "ERR the value is not an integer");
    return is_number;
}

static void write_counter(ValkeyModuleCtx *ctx, ValkeyModuleKey *key, long long number) {
    ValkeyModuleString *text = ValkeyModule_CreateStringFromLongLong(ctx, number);
    ValkeyModule_StringSet(key, text);
    ValkeyModule_FreeString(ctx, text);
}

static int read_amount(ValkeyModuleCtx *ctx, ValkeyModuleString *text, long long *number) {
    if (ValkeyModule_StringToLongLong(text, number) == VALKEYMODULE_OK && *number >= 0) return 1;
    ValkeyModule_ReplyWithError(ctx, "ERR the amount is not an integer from 0");
    return 0;
}

static void note_largest(long long sum) {
    long long seen = atomic_load_explicit(&largest, memory_order_relaxed);
    while (sum > seen && !atomic_compare_exchange_weak(&largest, &seen, sum)) {}
}

/* COUNTER.ADD key amount limit */
static int add(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 4) return ValkeyModule_WrongArity(ctx);
    long long amount, limit, sum;
    if (!read_amount(ctx, argv[2], &amount) || !read_amount(ctx, argv[3], &limit)) return VALKEYMODULE_OK;
    ValkeyModule_AutoMemory(ctx);
    ValkeyModuleKey *key = ValkeyModule_OpenKey(ctx, argv[1], VALKEYMODULE_READ | VALKEYMODULE_WRITE);
    if (!read_counter(ctx, key, &sum)) return VALKEYMODULE_OK;
    if (amount > limit || sum > limit - amount) return ValkeyModule_ReplyWithNull(ctx);
    sum += amount;
    write_counter(ctx, key, sum);
    note_largest(sum);
    ValkeyModule_ReplicateVerbatim(ctx);
    return ValkeyModule_ReplyWithLongLong(ctx, sum);
}

/* COUNTER.MOVE from to amount */
static int move(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 4) return ValkeyModule_WrongArity(ctx);
    long long amount, source, target;
    if (!read_amount(ctx, argv[3], &amount)) return VALKEYMODULE_OK;
    ValkeyModule_AutoMemory(ctx);
    ValkeyModuleKey *from = ValkeyModule_OpenKey(ctx, argv[1], VALKEYMODULE_READ | VALKEYMODULE_WRITE);
    ValkeyModuleKey *to = ValkeyModule_OpenKey(ctx, argv[2], VALKEYMODULE_READ | VALKEYMODULE_WRITE);
    if (!read_counter(ctx, from, &source) || !read_counter(ctx, to, &target)) return VALKEYMODULE_OK;
    if (source < amount) return ValkeyModule_ReplyWithNull(ctx);
    if (ValkeyModule_StringCompare(argv[1], argv[2]) != 0) {
        write_counter(ctx, from, source - amount);
        write_counter(ctx, to, target + amount);
        ValkeyModule_ReplicateVerbatim(ctx);
    }
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

/* COUNTER.GET key */
static int get(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    long long number = 0;
    ValkeyModule_AutoMemory(ctx);
    ValkeyModuleKey *key = ValkeyModule_OpenKey(ctx, argv[1], VALKEYMODULE_READ);
    if (key && !read_counter(ctx, key, &number)) return VALKEYMODULE_OK;
    return ValkeyModule_ReplyWithLongLong(ctx, number);
}

/* COUNTER.LARGEST */
static int show_largest(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    (void)argv;
    if (argc != 1) return ValkeyModule_WrongArity(ctx);
    return ValkeyModule_ReplyWithLongLong(ctx, atomic_load(&largest));
}

/* Declares a command as slot-safe, in a server that knows what that is. */
static void declare_slot_safe(ValkeyModuleCtx *ctx, const char *name) {
    if (WeftModule_SetCommandConcurrency)
        WeftModule_SetCommandConcurrency(ValkeyModule_GetCommand(ctx, name), WEFTMODULE_SLOT_SAFE);
}

int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    (void)argv;
    (void)argc;
    if (ValkeyModule_Init(ctx, "counter", 1, VALKEYMODULE_APIVER_1) == VALKEYMODULE_ERR) return VALKEYMODULE_ERR;
    WeftModule_Init(ctx);
    if (ValkeyModule_CreateCommand(ctx, "counter.add", add, "write deny-oom fast", 1, 1, 1) == VALKEYMODULE_ERR ||
        ValkeyModule_CreateCommand(ctx, "counter.move", move, "write deny-oom fast", 1, 2, 1) == VALKEYMODULE_ERR ||
        ValkeyModule_CreateCommand(ctx, "counter.get", get, "readonly fast", 1, 1, 1) == VALKEYMODULE_ERR ||
        ValkeyModule_CreateCommand(ctx, "counter.largest", show_largest, "readonly", 0, 0, 0) == VALKEYMODULE_ERR)
        return VALKEYMODULE_ERR;
    declare_slot_safe(ctx, "counter.add");
    declare_slot_safe(ctx, "counter.move");
    declare_slot_safe(ctx, "counter.get");
    return VALKEYMODULE_OK;
}
