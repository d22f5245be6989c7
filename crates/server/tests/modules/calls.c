/* Commands that call other commands, with all flags, and wait for those that are blocked. */

#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>

#include "check.h"

/* calls.run FLAGS COMMAND ARGUMENT...: replies as the command does, or with the error number of the call. */
static int run(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc < 3) return ValkeyModule_WrongArity(ctx);
    char format[32];
    snprintf(format, sizeof(format), "%sv", ValkeyModule_StringPtrLen(argv[1], NULL));
    const char *command = ValkeyModule_StringPtrLen(argv[2], NULL);
    ValkeyModuleCallReply *reply = ValkeyModule_Call(ctx, command, format, argv + 3, (size_t)(argc - 3));
    int error = errno;
    if (!reply) return ValkeyModule_ReplyWithErrorFormat(ctx, "ERRNO %s", strerrorname_np(error));
    if (ValkeyModule_CallReplyType(reply) == VALKEYMODULE_REPLY_UNKNOWN) {
        ValkeyModule_ReplyWithSimpleString(ctx, "nothing");
    } else if (ValkeyModule_ReplyWithCallReply(ctx, reply) != VALKEYMODULE_OK) {
        ValkeyModule_ReplyWithError(ctx, "ERR the reply is in RESP3");
    }
    ValkeyModule_FreeCallReply(reply);
    return VALKEYMODULE_OK;
}

/* calls.type FLAGS COMMAND ARGUMENT...: the type of the reply and its length. */
static int type_of(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc < 3) return ValkeyModule_WrongArity(ctx);
    ValkeyModule_AutoMemory(ctx);
    char format[32];
    snprintf(format, sizeof(format), "%sv", ValkeyModule_StringPtrLen(argv[1], NULL));
    const char *command = ValkeyModule_StringPtrLen(argv[2], NULL);
    ValkeyModuleCallReply *reply = ValkeyModule_Call(ctx, command, format, argv + 3, (size_t)(argc - 3));
    CHECK(reply);
    ValkeyModule_ReplyWithArray(ctx, 2);
    ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_CallReplyType(reply));
    return ValkeyModule_ReplyWithLongLong(ctx, (long long)ValkeyModule_CallReplyLength(reply));
}

/* calls.formats KEY: passes arguments in every form. */
static int formats(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    ValkeyModuleCallReply *reply =
        ValkeyModule_Call(ctx, "RPUSH", "!sclbv", argv[1], "text", -12LL, "bufferX", (size_t)6, argv, (size_t)2);
    CHECK(ValkeyModule_CallReplyInteger(reply) == 5);
    ValkeyModule_FreeCallReply(reply);
    errno = 0;
    CHECK(!ValkeyModule_Call(ctx, "GET", "s?", argv[1]) && errno == EBADF);
    reply = ValkeyModule_Call(ctx, "LRANGE", "sll", argv[1], 0LL, -1LL);
    ValkeyModuleCallReply *last = ValkeyModule_CallReplyArrayElement(reply, 4);
    CHECK(last && !ValkeyModule_CallReplyArrayElement(reply, 5));
    ValkeyModule_FreeCallReply(last);
    ValkeyModuleString *string = ValkeyModule_CreateStringFromCallReply(last);
    CHECK(ValkeyModule_StringCompare(string, argv[1]) == 0);
    ValkeyModule_FreeString(ctx, string);
    size_t length;
    CHECK(ValkeyModule_CallReplyProto(last, &length) && length > 0);
    ValkeyModule_ReplyWithCallReply(ctx, reply);
    ValkeyModule_FreeCallReply(reply);
    return VALKEYMODULE_OK;
}

/* calls.replicate KEY: propagates commands that it does not run, one of them to the append-only file only. */
static int replicate(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    CHECK(ValkeyModule_Replicate(ctx, "nonsense", "s", argv[1]) == VALKEYMODULE_ERR);
    CHECK(ValkeyModule_Replicate(ctx, "SET", "s?", argv[1]) == VALKEYMODULE_ERR);
    CHECK(ValkeyModule_Replicate(ctx, "SET", "sc", argv[1], "both") == VALKEYMODULE_OK);
    CHECK(ValkeyModule_Replicate(ctx, "INCR", "cR", "file") == VALKEYMODULE_OK);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

/* calls.mixed KEY: a call without propagation, one with, and the command as it is. */
static int mixed(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    ValkeyModule_FreeCallReply(ValkeyModule_Call(ctx, "LPUSH", "sc", argv[1], "silent"));
    ValkeyModule_FreeCallReply(ValkeyModule_Call(ctx, "calls.formats", "c", "unheard"));
    ValkeyModule_FreeCallReply(ValkeyModule_Call(ctx, "LPUSH", "!sc", argv[1], "shown"));
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

static ValkeyModuleCallReply *pending;

/* Stores the reply of a blocked command, in the same unit. */
static void store_reply(ValkeyModuleCtx *ctx, ValkeyModuleCallReply *reply, void *key) {
    size_t length;
    const char *proto = ValkeyModule_CallReplyProto(reply, &length);
    ValkeyModule_FreeCallReply(ValkeyModule_Call(ctx, "SET", "!cb", key, proto, length));
    ValkeyModule_FreeCallReply(reply);
    ValkeyModule_Free(key);
}

/* calls.await KEY FLAGS COMMAND ARGUMENT...: stores the reply of a command that may block. */
static int await(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc < 4) return ValkeyModule_WrongArity(ctx);
    char format[32];
    snprintf(format, sizeof(format), "%sKEv", ValkeyModule_StringPtrLen(argv[2], NULL));
    const char *command = ValkeyModule_StringPtrLen(argv[3], NULL);
    ValkeyModuleCallReply *reply = ValkeyModule_Call(ctx, command, format, argv + 4, (size_t)(argc - 4));
    CHECK(reply);
    if (ValkeyModule_CallReplyType(reply) != VALKEYMODULE_REPLY_PROMISE) {
        ValkeyModule_ReplyWithCallReply(ctx, reply);
        ValkeyModule_FreeCallReply(reply);
        return VALKEYMODULE_OK;
    }
    char *key = ValkeyModule_Strdup(ValkeyModule_StringPtrLen(argv[1], NULL));
    ValkeyModule_CallReplyPromiseSetUnblockHandler(reply, store_reply, key);
    if (pending) ValkeyModule_FreeCallReply(pending);
    pending = reply;
    return ValkeyModule_ReplyWithSimpleString(ctx, "blocked");
}

/* calls.abort: takes back the last blocked command. */
static int abort_last(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    CHECK(pending);
    void *key = NULL;
    int is_aborted = ValkeyModule_CallReplyPromiseAbort(pending, &key) == VALKEYMODULE_OK;
    if (is_aborted) ValkeyModule_Free(key);
    return ValkeyModule_ReplyWithLongLong(ctx, is_aborted);
}

int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    REQUIRE(ValkeyModule_Init(ctx, "calls", 1, VALKEYMODULE_APIVER_1));
    COMMAND("calls.run", run);
    COMMAND("calls.type", type_of);
    KEY_COMMAND("calls.formats", formats, "write");
    KEY_COMMAND("calls.replicate", replicate, "write");
    KEY_COMMAND("calls.mixed", mixed, "write");
    COMMAND("calls.await", await);
    COMMAND("calls.abort", abort_last);
    return VALKEYMODULE_OK;
}
