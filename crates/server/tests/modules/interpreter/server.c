/* Operations on the server: contexts, databases, commands, events, messages and INFO. */

#include "program.h"

static void context(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(words);
    VALKEYMODULE_NOT_USED(count);
    ValkeyModuleCtx *ctx = program->ctx;
    const int comparable = VALKEYMODULE_CTX_FLAGS_LUA | VALKEYMODULE_CTX_FLAGS_MULTI | VALKEYMODULE_CTX_FLAGS_PRIMARY |
                           VALKEYMODULE_CTX_FLAGS_REPLICA | VALKEYMODULE_CTX_FLAGS_READONLY |
                           VALKEYMODULE_CTX_FLAGS_CLUSTER | VALKEYMODULE_CTX_FLAGS_MULTI_DIRTY |
                           VALKEYMODULE_CTX_FLAGS_DENY_BLOCKING | VALKEYMODULE_CTX_FLAGS_RESP3 |
                           VALKEYMODULE_CTX_FLAGS_MAXMEMORY | VALKEYMODULE_CTX_FLAGS_EVICT |
                           VALKEYMODULE_CTX_FLAGS_LOADING | VALKEYMODULE_CTX_FLAGS_REPLICATED;
    ValkeyModule_ReplyWithArray(ctx, 5);
    ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_GetContextFlags(ctx) & comparable);
    ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_GetSelectedDb(ctx));
    ValkeyModule_ReplyWithLongLong(ctx, (long long)ValkeyModule_DbSize(ctx));
    const char *name = ValkeyModule_GetCurrentCommandName(ctx);
    if (name) ValkeyModule_ReplyWithCString(ctx, name);
    else ValkeyModule_ReplyWithNull(ctx);
    ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_MustObeyClient(ctx));
}

static void versions(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(words);
    VALKEYMODULE_NOT_USED(count);
    ValkeyModuleCtx *ctx = program->ctx;
    ValkeyModule_ReplyWithArray(ctx, 9);
    ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_GetServerVersion());
    ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_GetTypeMethodVersion());
    ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_GetContextFlagsAll());
    ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_GetModuleOptionsAll());
    ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_GetKeyspaceNotificationFlagsAll());
    ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_GetOpenKeyModesAll());
    ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_GetNotifyKeyspaceEvents());
    ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_AvoidReplicaTraffic());
    ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_IsModuleNameBusy("program"));
}

static void select_database(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    /* Valkey goes on showing the database in which the transaction has begun. */
    if (ValkeyModule_GetContextFlags(program->ctx) & VALKEYMODULE_CTX_FLAGS_MULTI)
        return reply_refused(program, "a transaction");
    int status = ValkeyModule_SelectDb(program->ctx, (int)number_of(words[0]));
    ValkeyModule_ReplyWithArray(program->ctx, 2);
    reply_status(program, status);
    ValkeyModule_ReplyWithLongLong(program->ctx, ValkeyModule_GetSelectedDb(program->ctx));
}

static void random_key(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(words);
    VALKEYMODULE_NOT_USED(count);
    /* Valkey hands a null key to the automatic memory. */
    if (program->has_auto_memory) return reply_refused(program, "a key may be null");
    ValkeyModuleString *name = ValkeyModule_RandomKey(program->ctx);
    ValkeyModule_ReplyWithLongLong(program->ctx, name != NULL);
    free_string(program, name);
}

static void slot(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    size_t length;
    const char *text = text_of(words[0], &length);
    unsigned int slot = ValkeyModule_ClusterKeySlot(words[0]);
    ValkeyModule_ReplyWithArray(program->ctx, 4);
    ValkeyModule_ReplyWithLongLong(program->ctx, slot);
    ValkeyModule_ReplyWithLongLong(program->ctx, ValkeyModule_ClusterKeySlotC(text, length));
    ValkeyModule_ReplyWithCString(program->ctx, ValkeyModule_ClusterCanonicalKeyNameInSlot(slot));
    ValkeyModule_ReplyWithLongLong(program->ctx, ValkeyModule_ClusterCanonicalKeyNameInSlot(16384 + slot) == NULL);
}

/* command.keys WORD...: the keys of a command, with their flags. */
static void command_keys(Program *program, ValkeyModuleString **words, int count) {
    int keys = 0, *flags = NULL;
    errno = 0;
    int *positions = ValkeyModule_GetCommandKeysWithFlags(program->ctx, words, count, &keys, &flags);
    if (!positions) return reply_with_errno(program, keys, errno);
    ValkeyModule_ReplyWithArray(program->ctx, 2 * keys);
    for (int i = 0; i < keys; i++) {
        ValkeyModule_ReplyWithLongLong(program->ctx, positions[i]);
        ValkeyModule_ReplyWithLongLong(program->ctx, flags[i]);
    }
    ValkeyModule_Free(positions);
    ValkeyModule_Free(flags);
}

/* event.notify CLASS NAME KEY */
static void notify(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    ValkeyModuleString *name = program->key_names[(unsigned long long)number_of(words[2]) % 3];
    reply_status(program, ValkeyModule_NotifyKeyspaceEvent(program->ctx, (int)number_of(words[0]),
                                                           text_of(words[1], NULL), name));
}

static void signal_modified(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    ValkeyModuleString *name = program->key_names[(unsigned long long)number_of(words[0]) % 3];
    reply_status(program, ValkeyModule_SignalModifiedKey(program->ctx, name));
}

static void publish(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    ValkeyModule_ReplyWithLongLong(program->ctx, ValkeyModule_PublishMessage(program->ctx, words[0], words[1]));
}

/* event.supported EVENT SUBEVENT */
static void is_supported(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    ValkeyModuleEvent event = {(uint64_t)number_of(words[0]), 1};
    int answer = ValkeyModule_IsSubEventSupported(event, (uint64_t)number_of(words[1]));
    ValkeyModule_ReplyWithLongLong(program->ctx, answer);
}

static void info(ValkeyModuleInfoCtx *ctx, int for_crash_report) {
    VALKEYMODULE_NOT_USED(for_crash_report);
    ValkeyModuleString *text = ValkeyModule_CreateString(NULL, "some, text", 10);
    ValkeyModule_InfoAddSection(ctx, "");
    ValkeyModule_InfoAddFieldCString(ctx, "plain", "text");
    ValkeyModule_InfoAddFieldULongLong(ctx, "large", ~0ULL);
    ValkeyModule_InfoAddSection(ctx, "numbers");
    ValkeyModule_InfoAddFieldLongLong(ctx, "negative", -5);
    ValkeyModule_InfoAddFieldDouble(ctx, "half", 0.5);
    ValkeyModule_InfoBeginDictField(ctx, "group");
    ValkeyModule_InfoAddFieldString(ctx, "first", text);
    ValkeyModule_InfoAddFieldLongLong(ctx, "second", 2);
    ValkeyModule_InfoEndDictField(ctx);
    ValkeyModule_FreeString(NULL, text);
}

/* info.field SECTION FIELD: the field in every form. */
static void info_field(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    ValkeyModuleCtx *ctx = program->ctx;
    ValkeyModuleServerInfoData *data = ValkeyModule_GetServerInfo(ctx, text_of(words[0], NULL));
    const char *field = text_of(words[1], NULL);
    int failures[3] = {-1, -1, -1};
    long long number = ValkeyModule_ServerInfoGetFieldSigned(data, field, &failures[0]);
    unsigned long long large = ValkeyModule_ServerInfoGetFieldUnsigned(data, field, &failures[1]);
    double score = ValkeyModule_ServerInfoGetFieldDouble(data, field, &failures[2]);
    ValkeyModuleString *string = ValkeyModule_ServerInfoGetField(ctx, data, field);
    const char *text = ValkeyModule_ServerInfoGetFieldC(data, field);
    ValkeyModule_ReplyWithArray(ctx, 8);
    reply_string(program, string);
    if (text) ValkeyModule_ReplyWithCString(ctx, text);
    else ValkeyModule_ReplyWithNull(ctx);
    ValkeyModule_ReplyWithLongLong(ctx, number);
    ValkeyModule_ReplyWithLongLong(ctx, (long long)large);
    ValkeyModule_ReplyWithDouble(ctx, score);
    for (int i = 0; i < 3; i++) ValkeyModule_ReplyWithLongLong(ctx, failures[i]);
    free_string(program, string);
    ValkeyModule_FreeServerInfo(ctx, data);
}

const Operation server_operations[] = {
    {"context", 0, context},         {"versions", 0, versions},         {"database", 1, select_database},
    {"random", 0, random_key},       {"slot", 1, slot},                 {"command.keys", 1, command_keys},
    {"event.notify", 3, notify},     {"event.signal", 1, signal_modified}, {"publish", 2, publish},
    {"event.supported", 2, is_supported}, {"info.field", 2, info_field}, {NULL, 0, NULL},
};

/* program.keys N WORD...: keys are at every second place behind N; only the function knows them. */
static int keys_by_request(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (ValkeyModule_IsKeysPositionRequest(ctx)) {
        int flags = VALKEYMODULE_CMD_KEY_RW | VALKEYMODULE_CMD_KEY_UPDATE;
        for (int i = 2; i < argc; i += 2) {
            if (i % 4) ValkeyModule_KeyAtPosWithFlags(ctx, i, flags);
            else ValkeyModule_KeyAtPos(ctx, i);
        }
        return VALKEYMODULE_OK;
    }
    if (argc < 3) return ValkeyModule_WrongArity(ctx);
    return ValkeyModule_ReplyWithString(ctx, argv[argc - 1]);
}

static int on_reply(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    const char *data = ValkeyModule_GetBlockedClientPrivateData(ctx);
    ValkeyModule_ReplyWithArray(ctx, 4);
    ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_IsBlockedReplyRequest(ctx));
    ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_IsBlockedTimeoutRequest(ctx));
    ValkeyModule_ReplyWithCString(ctx, data ? data : "no data");
    return ValkeyModule_ReplyWithString(ctx, argv[argc - 1]);
}

static void on_free(ValkeyModuleCtx *ctx, void *data) {
    VALKEYMODULE_NOT_USED(ctx);
    add_to_log("free %s", data ? (const char *)data : "no data");
}

/* program.block now|timeout|abort|none: blocks the client, for a moment. */
static int block(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    int is_timeout = is_text(argv[1], "timeout");
    errno = 0;
    ValkeyModuleBlockedClient *client = ValkeyModule_BlockClient(ctx, is_text(argv[1], "none") ? NULL : on_reply,
                                                                 on_reply, on_free, is_timeout ? 1 : 100000);
    add_to_log("handle %d", client != NULL);
    if (!client) return ValkeyModule_ReplyWithErrorFormat(ctx, "ERR not blocked %d", errno);
    if (is_timeout) return VALKEYMODULE_OK;
    if (is_text(argv[1], "abort")) {
        ValkeyModule_AbortBlock(client);
        return ValkeyModule_ReplyWithSimpleString(ctx, "aborted");
    }
    if (is_text(argv[1], "none")) {
        ValkeyModuleCtx *own = ValkeyModule_GetThreadSafeContext(client);
        ValkeyModule_ReplyWithLongLong(own, 7);
        ValkeyModule_FreeThreadSafeContext(own);
    }
    ValkeyModule_UnblockClient(client, "data");
    return VALKEYMODULE_OK;
}

int register_server(ValkeyModuleCtx *ctx) {
    REQUIRE(ValkeyModule_RegisterInfoFunc(ctx, info));
    REQUIRE(ValkeyModule_CreateCommand(ctx, "program.keys", keys_by_request, "getkeys-api", 1, 1, 1));
    REQUIRE(ValkeyModule_CreateCommand(ctx, "program.block", block, "", 0, 0, 0));
    return VALKEYMODULE_OK;
}

static void on_job(ValkeyModuleCtx *ctx, void *data) {
    add_to_log("job %s in %d", (char *)data, ValkeyModule_GetSelectedDb(ctx));
}

static void free_job(void *data) {
    ValkeyModule_Free(data);
}

static int on_event(ValkeyModuleCtx *ctx, int class, const char *event, ValkeyModuleString *key) {
    add_to_log("event %d %s %s in %d", class, event, text_of(key, NULL), ValkeyModule_GetSelectedDb(ctx));
    if (class & (VALKEYMODULE_NOTIFY_LIST | VALKEYMODULE_NOTIFY_EXPIRED))
        ValkeyModule_AddPostNotificationJob(ctx, on_job, ValkeyModule_Strdup(event), free_job);
    return VALKEYMODULE_OK;
}

int register_events(ValkeyModuleCtx *ctx) {
    return ValkeyModule_SubscribeToKeyspaceEvents(ctx, VALKEYMODULE_NOTIFY_ALL | VALKEYMODULE_NOTIFY_KEY_MISS |
                                                           VALKEYMODULE_NOTIFY_NEW, on_event);
}
