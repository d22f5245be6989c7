/* The module of the simulation: commands with the effects of others, run in each of the ways. Ends the process if one of
 * them runs where or when it must not. */

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weftmodule.h"

#define REQUIRE(call) \
    do { \
        if ((call) != VALKEYMODULE_OK) return VALKEYMODULE_ERR; \
    } while (0)

/* Names of keys end in the letter of their type, and a digit. */
enum { KEYS = 26 * 10 };

static pthread_t home;
/* What is under way at the moment. */
static atomic_flag key_in_use[KEYS], event_of_key[KEYS];
static atomic_int slot_safe_commands, serial_commands, exclusive_sections;
/* Starts a thread of the simulation. Nothing else may run while one of its threads does. */
static int (*start_thread)(void (*body)(void *), void *argument);

static void fail(const char *what) {
    fprintf(stderr, "the module of the simulation: %s\n", what);
    abort();
}

/* Returns the number of a key; -1 for one with another name. */
static int number_of_any(const ValkeyModuleString *key) {
    size_t length;
    const char *end = ValkeyModule_StringPtrLen(key, &length) + length;
    if (length < 2 || end[-2] < 'a' || end[-2] > 'z' || end[-1] < '0' || end[-1] > '9') return -1;
    return (end[-2] - 'a') * 10 + end[-1] - '0';
}

static int number_of(const ValkeyModuleString *key) {
    int number = number_of_any(key);
    if (number < 0) fail("a key of a command has another name");
    return number;
}

static void begin_exclusive(void) {
    if (atomic_fetch_add(&exclusive_sections, 1)) fail("two exclusive sections at once");
    if (slot_safe_commands || serial_commands) fail("commands in other ways run during an exclusive section");
}

static void end_exclusive(void) { exclusive_sections--; }

static void begin_at_home(ValkeyModuleString **keys, int count) {
    VALKEYMODULE_NOT_USED(keys);
    VALKEYMODULE_NOT_USED(count);
    if (!pthread_equal(home, pthread_self())) fail("a command of the home way runs on another thread");
    begin_exclusive();
}

static void end_at_home(ValkeyModuleString **keys, int count) {
    VALKEYMODULE_NOT_USED(keys);
    VALKEYMODULE_NOT_USED(count);
    end_exclusive();
}

static int is_repeated(ValkeyModuleString **keys, int position) {
    for (int other = 0; other < position; other++) {
        if (number_of(keys[other]) == number_of(keys[position])) return 1;
    }
    return 0;
}

static void begin_slot_safe(ValkeyModuleString **keys, int count) {
    slot_safe_commands++;
    if (exclusive_sections) fail("a slot-safe command runs during an exclusive section");
    for (int i = 0; i < count; i++) {
        if (!is_repeated(keys, i) && atomic_flag_test_and_set(&key_in_use[number_of(keys[i])])) {
            fail("two slot-safe commands use a key at once");
        }
    }
}

static void end_slot_safe(ValkeyModuleString **keys, int count) {
    for (int i = 0; i < count; i++) {
        if (!is_repeated(keys, i)) atomic_flag_clear(&key_in_use[number_of(keys[i])]);
    }
    slot_safe_commands--;
}

static void begin_serial(ValkeyModuleString **keys, int count) {
    VALKEYMODULE_NOT_USED(keys);
    VALKEYMODULE_NOT_USED(count);
    if (atomic_fetch_add(&serial_commands, 1)) fail("two serial commands run at once");
    if (exclusive_sections) fail("a serial command runs during an exclusive section");
}

static void end_serial(ValkeyModuleString **keys, int count) {
    VALKEYMODULE_NOT_USED(keys);
    VALKEYMODULE_NOT_USED(count);
    serial_commands--;
}

/* Passes on the reply to GET, as a part of a larger one. */
static int reply_with_value(ValkeyModuleCtx *ctx, ValkeyModuleString *key) {
    ValkeyModuleCallReply *value = ValkeyModule_Call(ctx, "GET", "s", key);
    if (!value) return ValkeyModule_ReplyWithError(ctx, "ERR a call is refused");
    ValkeyModule_ReplyWithCallReply(ctx, value);
    ValkeyModule_FreeCallReply(value);
    return VALKEYMODULE_OK;
}

/* Returns whether SET succeeded. */
static int set(ValkeyModuleCtx *ctx, ValkeyModuleString *key, ValkeyModuleString *value) {
    ValkeyModuleCallReply *reply = ValkeyModule_Call(ctx, "SET", "!ss", key, value);
    int is_done = reply && ValkeyModule_CallReplyType(reply) != VALKEYMODULE_REPLY_ERROR;
    if (reply) ValkeyModule_FreeCallReply(reply);
    return is_done;
}

/* key: appends a byte, by a read and a write. */
static int append(ValkeyModuleCtx *ctx, ValkeyModuleString **argv) {
    ValkeyModuleCallReply *old = ValkeyModule_Call(ctx, "GET", "s", argv[1]);
    if (!old) return ValkeyModule_ReplyWithError(ctx, "ERR a call is refused");
    size_t length = 0;
    const char *bytes = ValkeyModule_CallReplyStringPtr(old, &length);
    ValkeyModuleString *value = ValkeyModule_CreateString(ctx, bytes ? bytes : "", bytes ? length : 0);
    ValkeyModule_FreeCallReply(old);
    ValkeyModule_StringAppendBuffer(ctx, value, "a", 1);
    int is_done = set(ctx, argv[1], value);
    ValkeyModule_StringPtrLen(value, &length);
    ValkeyModule_FreeString(ctx, value);
    if (!is_done) return ValkeyModule_ReplyWithError(ctx, "ERR a write is refused");
    return ValkeyModule_ReplyWithLongLong(ctx, (long long)length);
}

/* key value: sets a string through its key, and replies with the old value. */
static int exchange(ValkeyModuleCtx *ctx, ValkeyModuleString **argv) {
    ValkeyModuleKey *key = ValkeyModule_OpenKey(ctx, argv[1], VALKEYMODULE_READ | VALKEYMODULE_WRITE);
    if (!key) return ValkeyModule_ReplyWithError(ctx, "ERR the key cannot be opened");
    size_t length;
    if (ValkeyModule_KeyType(key) == VALKEYMODULE_KEYTYPE_EMPTY) {
        ValkeyModule_ReplyWithNull(ctx);
    } else {
        const char *bytes = ValkeyModule_StringDMA(key, &length, VALKEYMODULE_READ);
        ValkeyModule_ReplyWithStringBuffer(ctx, bytes, length);
    }
    ValkeyModule_StringSet(key, argv[2]);
    ValkeyModule_CloseKey(key);
    ValkeyModule_Replicate(ctx, "SET", "ss", argv[1], argv[2]);
    return VALKEYMODULE_OK;
}

/* key key value: sets two strings, and replies with the old values. */
static int swap(ValkeyModuleCtx *ctx, ValkeyModuleString **argv) {
    ValkeyModule_ReplyWithArray(ctx, 2);
    reply_with_value(ctx, argv[1]);
    reply_with_value(ctx, argv[2]);
    if (!set(ctx, argv[1], argv[3]) || !set(ctx, argv[2], argv[3])) fail("a write is refused");
    return VALKEYMODULE_OK;
}

/* key key: replies with two strings. */
static int read_two(ValkeyModuleCtx *ctx, ValkeyModuleString **argv) {
    ValkeyModule_ReplyWithArray(ctx, 2);
    reply_with_value(ctx, argv[1]);
    return reply_with_value(ctx, argv[2]);
}

#define IN_A_WAY(name, way, keys, words) \
    static int name##_##way(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) { \
        if (argc != words) return ValkeyModule_WrongArity(ctx); \
        begin_##way(argv + 1, keys); \
        int result = name(ctx, argv); \
        end_##way(argv + 1, keys); \
        return result; \
    }
#define IN_EACH_WAY(name, keys, words) \
    IN_A_WAY(name, at_home, keys, words) \
    IN_A_WAY(name, serial, keys, words) \
    IN_A_WAY(name, slot_safe, keys, words)

IN_EACH_WAY(append, 1, 2)
IN_EACH_WAY(exchange, 1, 3)
IN_EACH_WAY(swap, 2, 4)
IN_EACH_WAY(read_two, 2, 3)

/* A client that waits for a thread, and the keys that it wants. */
struct waiting_client {
    ValkeyModuleBlockedClient *client;
    ValkeyModuleString *words[3];
};

static void read_in_thread(void *argument) {
    struct waiting_client *waiting = argument;
    ValkeyModuleCtx *ctx = ValkeyModule_GetThreadSafeContext(waiting->client);
    ValkeyModule_ThreadSafeContextLock(ctx);
    begin_exclusive();
    read_two(ctx, waiting->words);
    for (int i = 1; i < 3; i++) ValkeyModule_FreeString(ctx, waiting->words[i]);
    end_exclusive();
    ValkeyModule_ThreadSafeContextUnlock(ctx);
    ValkeyModule_FreeThreadSafeContext(ctx);
    ValkeyModule_UnblockClient(waiting->client, NULL);
    ValkeyModule_Free(waiting);
}

/* key key: replies with two strings from another thread, which takes the lock. */
static int read_on_thread(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 3) return ValkeyModule_WrongArity(ctx);
    begin_at_home(argv + 1, 2);
    struct waiting_client *waiting = ValkeyModule_Alloc(sizeof(*waiting));
    for (int i = 1; i < 3; i++) waiting->words[i] = ValkeyModule_CreateStringFromString(NULL, argv[i]);
    waiting->client = ValkeyModule_BlockClient(ctx, NULL, NULL, NULL, 0);
    if (start_thread(read_in_thread, waiting) != VALKEYMODULE_OK) fail("a thread cannot be started");
    end_at_home(argv + 1, 2);
    return VALKEYMODULE_OK;
}

static int on_event_at_home(ValkeyModuleCtx *ctx, int class, const char *event, ValkeyModuleString *key) {
    VALKEYMODULE_NOT_USED(ctx);
    VALKEYMODULE_NOT_USED(class);
    VALKEYMODULE_NOT_USED(event);
    VALKEYMODULE_NOT_USED(key);
    if (!pthread_equal(home, pthread_self())) fail("an event of the home way comes to another thread");
    return VALKEYMODULE_OK;
}

static int on_event_slot_safe(ValkeyModuleCtx *ctx, int class, const char *event, ValkeyModuleString *key) {
    VALKEYMODULE_NOT_USED(class);
    VALKEYMODULE_NOT_USED(event);
    int number = number_of_any(key);
    if (number < 0) return VALKEYMODULE_OK;
    atomic_flag *flag = &event_of_key[number];
    if (atomic_flag_test_and_set(flag)) fail("two events of a key come at once");
    /* Something at which another thread may go on. */
    ValkeyModule_GetContextFlags(ctx);
    atomic_flag_clear(flag);
    return VALKEYMODULE_OK;
}

static int create(ValkeyModuleCtx *ctx, const char *name, ValkeyModuleCmdFunc function, const char *flags, int keys) {
    int way = strstr(name, ".slot-safe") ? WEFTMODULE_SLOT_SAFE : strstr(name, ".serial") ? WEFTMODULE_SERIAL : WEFTMODULE_HOME;
    REQUIRE(ValkeyModule_CreateCommand(ctx, name, function, flags, 1, keys, 1));
    return WeftModule_SetCommandConcurrency(ValkeyModule_GetCommand(ctx, name), way);
}

#define CREATE_IN_EACH_WAY(name, function, flags, keys) \
    REQUIRE(create(ctx, name ".home", function##_at_home, flags, keys)); \
    REQUIRE(create(ctx, name ".serial", function##_serial, flags, keys)); \
    REQUIRE(create(ctx, name ".slot-safe", function##_slot_safe, flags, keys))

/* Arguments: the way in which keyspace events come, if they do. */
int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    home = pthread_self();
    REQUIRE(ValkeyModule_Init(ctx, "simulation", 1, VALKEYMODULE_APIVER_1));
    WeftModule_Init(ctx);
    REQUIRE(ValkeyModule_GetApi("WeftModule_StartThread", (void *)&start_thread));
    CREATE_IN_EACH_WAY("simulation.append", append, "write", 1);
    CREATE_IN_EACH_WAY("simulation.exchange", exchange, "write", 1);
    CREATE_IN_EACH_WAY("simulation.swap", swap, "write", 2);
    CREATE_IN_EACH_WAY("simulation.read", read_two, "readonly", 2);
    REQUIRE(create(ctx, "simulation.read.thread", read_on_thread, "readonly", 2));
    const char *events = argc == 1 ? ValkeyModule_StringPtrLen(argv[0], NULL) : "none";
    int classes = VALKEYMODULE_NOTIFY_STRING | VALKEYMODULE_NOTIFY_GENERIC;
    if (strcmp(events, "home") == 0) return ValkeyModule_SubscribeToKeyspaceEvents(ctx, classes, on_event_at_home);
    if (strcmp(events, "slot-safe") == 0) {
        return WeftModule_SubscribeToKeyspaceEventsSlotSafe(ctx, classes, on_event_slot_safe);
    }
    return VALKEYMODULE_OK;
}
