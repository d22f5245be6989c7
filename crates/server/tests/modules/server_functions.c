/* Functions about clients, commands and the server that no test module of Valkey calls. */

#include <pthread.h>
#include <unistd.h>

#include "check.h"

static int names(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    CHECK(ValkeyModule_IsModuleNameBusy("serverfunctions") == 1);
    CHECK(ValkeyModule_IsModuleNameBusy("nobody") == 0);
    CHECK(ValkeyModule_AvoidReplicaTraffic() == 0 || ValkeyModule_AvoidReplicaTraffic() == 1);
    ValkeyModule_ReplyWithArray(ctx, 2);
    ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_AvoidReplicaTraffic());
    ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_GetNotifyKeyspaceEvents());
    return VALKEYMODULE_OK;
}

/* KEYS command argument ...: replies with the positions of the keys of the command. */
static int keys(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    int count;
    int *positions = ValkeyModule_GetCommandKeys(ctx, argv + 1, argc - 1, &count);
    if (!positions) return ValkeyModule_ReplyWithNull(ctx);
    ValkeyModule_ReplyWithArray(ctx, count);
    for (int i = 0; i < count; i++) ValkeyModule_ReplyWithLongLong(ctx, positions[i]);
    ValkeyModule_Free(positions);
    return VALKEYMODULE_OK;
}

/* PROTO command argument: replies with the bytes of the reply of the command. */
static int proto(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 3) return ValkeyModule_WrongArity(ctx);
    size_t length;
    ValkeyModuleCallReply *reply = ValkeyModule_Call(ctx, ValkeyModule_StringPtrLen(argv[1], NULL), "s", argv[2]);
    if (!reply) return ValkeyModule_ReplyWithNull(ctx);
    const char *bytes = ValkeyModule_CallReplyProto(reply, &length);
    ValkeyModule_ReplyWithStringBuffer(ctx, bytes, length);
    ValkeyModule_FreeCallReply(reply);
    return VALKEYMODULE_OK;
}

/* Ends the connection of a client. */
static int disconnect(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    long long client;
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    CHECK(ValkeyModule_StringToLongLong(argv[1], &client) == VALKEYMODULE_OK);
    return ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_DeauthenticateAndCloseClient(ctx, (uint64_t)client));
}

static int user_client;
static long long disconnected_in_reply, disconnected_in_callback;

static int on_reply(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    if (ValkeyModule_BlockedClientDisconnected(ctx)) disconnected_in_reply++;
    return ValkeyModule_ReplyWithSimpleString(ctx, "unblocked");
}

static void on_free(ValkeyModuleCtx *ctx, void *data) {
    VALKEYMODULE_NOT_USED(data);
    if (ValkeyModule_BlockedClientDisconnected(ctx)) disconnected_in_callback++;
}

static ValkeyModuleBlockedClient *blocked;

static int block(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    blocked = ValkeyModule_BlockClient(ctx, on_reply, NULL, on_free, 0);
    return VALKEYMODULE_OK;
}

/* Unblocks the client of `block`; replies with the number of clients that were disconnected before. */
static int unblock(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    if (blocked) ValkeyModule_UnblockClient(blocked, &user_client);
    blocked = NULL;
    return ValkeyModule_ReplyWithLongLong(ctx, disconnected_in_reply * 100 + disconnected_in_callback);
}

static void info(ValkeyModuleInfoCtx *ctx, int for_crash_report) {
    VALKEYMODULE_NOT_USED(for_crash_report);
    ValkeyModuleString *text = ValkeyModule_CreateString(NULL, "text", 4);
    ValkeyModule_InfoAddSection(ctx, "part");
    ValkeyModule_InfoAddFieldString(ctx, "field", text);
    ValkeyModule_InfoBeginDictField(ctx, "group");
    ValkeyModule_InfoAddFieldString(ctx, "first", text);
    ValkeyModule_InfoAddFieldULongLong(ctx, "second", 7);
    ValkeyModule_InfoEndDictField(ctx);
    ValkeyModule_FreeString(NULL, text);
}

static int failed_assertion(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    ValkeyModule_Assert(argc == 1 && "this assertion");
    ValkeyModule__Assert("always fails", "no_file.c", 42);
    VALKEYMODULE_NOT_USED(ctx);
    VALKEYMODULE_NOT_USED(argv);
    return VALKEYMODULE_OK;
}

static int child_exit_code = -1;

static void on_child(int exit_code, int signal, void *data) {
    VALKEYMODULE_NOT_USED(data);
    child_exit_code = signal ? -signal : exit_code;
}

/* Forks a child that reports its progress and ends with code 7. Replies with null if the server refuses. */
static int fork_child(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    int child = ValkeyModule_Fork(on_child, NULL);
    if (child < 0) return ValkeyModule_ReplyWithNull(ctx);
    if (child == 0) {
        ValkeyModule_SendChildHeartbeat(0.5);
        ValkeyModule_ExitFromChild(7);
    }
    return ValkeyModule_ReplyWithLongLong(ctx, 1);
}

static int child_code(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    return ValkeyModule_ReplyWithLongLong(ctx, child_exit_code);
}

int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    REQUIRE(ValkeyModule_Init(ctx, "serverfunctions", 1, VALKEYMODULE_APIVER_1));
    REQUIRE(ValkeyModule_RegisterInfoFunc(ctx, info));
    COMMAND("serverfunctions.names", names);
    COMMAND("serverfunctions.keys", keys);
    COMMAND("serverfunctions.proto", proto);
    COMMAND("serverfunctions.disconnect", disconnect);
    COMMAND("serverfunctions.block", block);
    COMMAND("serverfunctions.unblock", unblock);
    COMMAND("serverfunctions.assert", failed_assertion);
    COMMAND("serverfunctions.fork", fork_child);
    COMMAND("serverfunctions.child", child_code);
    return VALKEYMODULE_OK;
}
