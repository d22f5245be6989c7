/* Users, permissions and authentication. */

#include <errno.h>
#include <stdlib.h>

#include "check.h"

static ValkeyModuleUser *own;
static long long changes;

static void count_change(uint64_t client_id, void *data) {
    VALKEYMODULE_NOT_USED(client_id);
    *(long long *)data += 1;
}

static int reply_with_errno(ValkeyModuleCtx *ctx, int result) {
    if (result == VALKEYMODULE_OK) return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
    return ValkeyModule_ReplyWithLongLong(ctx, -errno);
}

/* users.create NAME RULES: makes a user in place of the one before. */
static int create(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 3) return ValkeyModule_WrongArity(ctx);
    if (own) ValkeyModule_FreeModuleUser(own);
    own = ValkeyModule_CreateModuleUser(ValkeyModule_StringPtrLen(argv[1], NULL));
    ValkeyModuleString *error = NULL;
    const char *rules = ValkeyModule_StringPtrLen(argv[2], NULL);
    if (ValkeyModule_SetModuleUserACLString(ctx, own, rules, &error) == VALKEYMODULE_ERR) {
        size_t length;
        const char *text = ValkeyModule_StringPtrLen(error, &length);
        ValkeyModule_ReplyWithErrorFormat(ctx, "ERR %s", text);
        ValkeyModule_FreeString(ctx, error);
        return VALKEYMODULE_OK;
    }
    ValkeyModuleString *described = ValkeyModule_GetModuleUserACLString(own);
    ValkeyModule_ReplyWithString(ctx, described);
    ValkeyModule_FreeString(ctx, described);
    return VALKEYMODULE_OK;
}

/* users.rule RULE: one rule for the user. */
static int add_rule(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    int result = ValkeyModule_SetModuleUserACL(own, ValkeyModule_StringPtrLen(argv[1], NULL));
    return ValkeyModule_ReplyWithLongLong(ctx, result);
}

/* users.login [NAME]: logs the client in as the user of the module, or as one of the server. */
static int log_in(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    uint64_t client = 0;
    int result;
    if (argc == 2) {
        size_t length;
        const char *name = ValkeyModule_StringPtrLen(argv[1], &length);
        result = ValkeyModule_AuthenticateClientWithACLUser(ctx, name, length, count_change, &changes, &client);
    } else {
        result = ValkeyModule_AuthenticateClientWithUser(ctx, own, count_change, &changes, &client);
    }
    if (result != VALKEYMODULE_OK) return ValkeyModule_ReplyWithError(ctx, "ERR no login");
    CHECK(client == ValkeyModule_GetClientId(ctx));
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

static int name(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    ValkeyModuleString *user = ValkeyModule_GetCurrentUserName(ctx);
    CHECK(user != NULL);
    ValkeyModule_ReplyWithString(ctx, user);
    ValkeyModule_FreeString(ctx, user);
    return VALKEYMODULE_OK;
}

static int count_changes(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    return ValkeyModule_ReplyWithLongLong(ctx, changes);
}

/* users.close ID */
static int close_client(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    long long id;
    CHECK(ValkeyModule_StringToLongLong(argv[1], &id) == VALKEYMODULE_OK);
    return ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_DeauthenticateAndCloseClient(ctx, (uint64_t)id));
}

/* users.may DB NAME WORD ...: whether a user may run a command. The log gets the denial. */
static int may_run(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc < 4) return ValkeyModule_WrongArity(ctx);
    long long db;
    CHECK(ValkeyModule_StringToLongLong(argv[1], &db) == VALKEYMODULE_OK);
    ValkeyModuleUser *user = ValkeyModule_GetModuleUserFromUserName(argv[2]);
    if (!user) return ValkeyModule_ReplyWithError(ctx, "ERR no user");
    ValkeyModuleACLLogEntryReason reason = VALKEYMODULE_ACL_LOG_AUTH;
    errno = 0;
    int result = db == -2 ? ValkeyModule_ACLCheckCommandPermissions(user, argv + 3, argc - 3)
                          : ValkeyModule_ACLCheckPermissions(user, argv + 3, argc - 3, (int)db, &reason);
    int error = errno;
    if (result != VALKEYMODULE_OK && reason != VALKEYMODULE_ACL_LOG_AUTH)
        ValkeyModule_ACLAddLogEntry(ctx, user, argv[argc - 1], reason);
    ValkeyModule_FreeModuleUser(user);
    errno = error;
    return reply_with_errno(ctx, result);
}

/* users.key NAME KEY FLAGS and users.prefix, users.channel likewise */
static int check_kind(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc, int kind) {
    if (argc != 4) return ValkeyModule_WrongArity(ctx);
    long long flags;
    CHECK(ValkeyModule_StringToLongLong(argv[3], &flags) == VALKEYMODULE_OK);
    ValkeyModuleUser *user = ValkeyModule_GetModuleUserFromUserName(argv[1]);
    CHECK(user != NULL);
    size_t length;
    const char *text = ValkeyModule_StringPtrLen(argv[2], &length);
    errno = 0;
    int result = kind == 0   ? ValkeyModule_ACLCheckKeyPermissions(user, argv[2], (int)flags)
                 : kind == 1 ? ValkeyModule_ACLCheckKeyPrefixPermissions(user, text, length, (unsigned)flags)
                             : ValkeyModule_ACLCheckChannelPermissions(user, argv[2], (int)flags);
    int error = errno;
    ValkeyModule_FreeModuleUser(user);
    errno = error;
    return reply_with_errno(ctx, result);
}

static int may_use_key(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    return check_kind(ctx, argv, argc, 0);
}

static int may_use_prefix(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    return check_kind(ctx, argv, argc, 1);
}

static int may_use_channel(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    return check_kind(ctx, argv, argc, 2);
}

/* users.call WORD ...: runs a command as the user of the module. */
static int call_as_own(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc < 2) return ValkeyModule_WrongArity(ctx);
    ValkeyModule_SetContextUser(ctx, own);
    const char *command = ValkeyModule_StringPtrLen(argv[1], NULL);
    ValkeyModuleCallReply *reply = ValkeyModule_Call(ctx, command, "CEv", argv + 2, (size_t)(argc - 2));
    CHECK(reply != NULL);
    ValkeyModule_ReplyWithCallReply(ctx, reply);
    ValkeyModule_FreeCallReply(reply);
    return VALKEYMODULE_OK;
}

/* users.secret WORD ...: hides every second argument. */
static int secret(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    for (int i = 1; i < argc; i += 2) CHECK(ValkeyModule_RedactClientCommandArgument(ctx, i) == VALKEYMODULE_OK);
    CHECK(ValkeyModule_RedactClientCommandArgument(ctx, 0) == VALKEYMODULE_ERR);
    CHECK(ValkeyModule_RedactClientCommandArgument(ctx, argc) == VALKEYMODULE_ERR);
    CHECK(ValkeyModule_GetClientCertificate(ctx, ValkeyModule_GetClientId(ctx)) == NULL);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    if (ValkeyModule_Init(ctx, "users", 1, VALKEYMODULE_APIVER_1) != VALKEYMODULE_OK) return VALKEYMODULE_ERR;
    COMMAND("users.create", create);
    COMMAND("users.rule", add_rule);
    COMMAND("users.login", log_in);
    COMMAND("users.name", name);
    COMMAND("users.changes", count_changes);
    COMMAND("users.close", close_client);
    COMMAND("users.may", may_run);
    COMMAND("users.key", may_use_key);
    COMMAND("users.prefix", may_use_prefix);
    COMMAND("users.channel", may_use_channel);
    COMMAND("users.call", call_as_own);
    COMMAND("users.secret", secret);
    return VALKEYMODULE_OK;
}
