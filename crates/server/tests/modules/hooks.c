/* Events of the server, command filters, and clients by their ids. */

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "check.h"

#define MAX_LINES 512

static char lines[MAX_LINES][256];
static int count;
static pthread_t home;
static ValkeyModuleCommandFilter *filter;

static void require_home(void) {
    if (!pthread_equal(home, pthread_self())) abort();
}

static void add(const char *line) {
    if (count < MAX_LINES) snprintf(lines[count++], sizeof(lines[0]), "%s", line);
}

static long long call_number(ValkeyModuleCtx *ctx, const char *name, ValkeyModuleString *key) {
    ValkeyModuleCallReply *reply =
        key ? ValkeyModule_Call(ctx, name, "s", key) : ValkeyModule_Call(ctx, name, "");
    long long number = reply ? ValkeyModule_CallReplyInteger(reply) : -1;
    if (reply) ValkeyModule_FreeCallReply(reply);
    return number;
}

static void add_key(ValkeyModuleCtx *ctx, uint64_t sub, ValkeyModuleKey *key) {
    const ValkeyModuleString *name = ValkeyModule_GetKeyNameFromModuleKey(key);
    ValkeyModuleString *copy = ValkeyModule_CreateStringFromString(ctx, name);
    ValkeyModuleKey *opened = ValkeyModule_OpenKey(ctx, copy, VALKEYMODULE_READ);
    char line[256];
    snprintf(line, sizeof(line), "key %d %s length %zu opened %zu exists %lld expires %d", (int)sub,
             ValkeyModule_StringPtrLen(name, NULL), ValkeyModule_ValueLength(key),
             opened ? ValkeyModule_ValueLength(opened) : 999, call_number(ctx, "EXISTS", copy),
             ValkeyModule_GetAbsExpire(key) != VALKEYMODULE_NO_EXPIRE);
    add(line);
    if (opened) ValkeyModule_CloseKey(opened);
    ValkeyModule_FreeString(ctx, copy);
}

static void add_result(uint64_t kind, uint64_t sub, ValkeyModuleCommandResultInfo *info) {
    char line[256], first[64] = "";
    if (info->argc > 1) snprintf(first, sizeof(first), " %s", ValkeyModule_StringPtrLen(info->argv[1], NULL));
    snprintf(line, sizeof(line), "command %d %d %s%s words %d module %d changes %lld: %s", (int)kind, (int)sub,
             info->command_name ? info->command_name : "(unknown)", first, info->argc, info->is_module_client,
             info->dirty, info->rejection_context ? info->rejection_context : "");
    if (!info->command_name || strncmp(info->command_name, "hooks.", 6) != 0) add(line);
}

static void receive(ValkeyModuleCtx *ctx, ValkeyModuleEvent event, uint64_t sub, void *data) {
    require_home();
    char line[256] = "";
    switch (event.id) {
    case VALKEYMODULE_EVENT_FLUSHDB:
        snprintf(line, sizeof(line), "flush %d db %d keys %lld", (int)sub, ((ValkeyModuleFlushInfo *)data)->dbnum,
                 call_number(ctx, "DBSIZE", NULL));
        break;
    case VALKEYMODULE_EVENT_SWAPDB:
        snprintf(line, sizeof(line), "swap %d %d", ((ValkeyModuleSwapDbInfo *)data)->dbnum_first,
                 ((ValkeyModuleSwapDbInfo *)data)->dbnum_second);
        break;
    case VALKEYMODULE_EVENT_CLIENT_CHANGE:
        if (((ValkeyModuleClientInfo *)data)->id != ValkeyModule_GetClientId(ctx)) abort();
        snprintf(line, sizeof(line), "client %d %s", (int)sub, ((ValkeyModuleClientInfo *)data)->addr);
        break;
    case VALKEYMODULE_EVENT_CONFIG:
        snprintf(line, sizeof(line), "config %u %s", ((ValkeyModuleConfigChange *)data)->num_changes,
                 ((ValkeyModuleConfigChange *)data)->config_names[0]);
        break;
    case VALKEYMODULE_EVENT_AUTHENTICATION_ATTEMPT:
        snprintf(line, sizeof(line), "authentication %s %d", ((ValkeyModuleAuthenticationInfo *)data)->username,
                 ((ValkeyModuleAuthenticationInfo *)data)->result);
        break;
    case VALKEYMODULE_EVENT_KEY:
        add_key(ctx, sub, ((ValkeyModuleKeyInfo *)data)->key);
        return;
    case VALKEYMODULE_EVENT_COMMAND_RESULT_SUCCESS:
    case VALKEYMODULE_EVENT_COMMAND_RESULT_FAILURE:
    case VALKEYMODULE_EVENT_COMMAND_RESULT_REJECTED:
    case VALKEYMODULE_EVENT_COMMAND_RESULT_ACL_REJECTED:
        add_result(event.id, sub, data);
        return;
    default:
        snprintf(line, sizeof(line), "event %d %d", (int)event.id, (int)sub);
    }
    add(line);
}

/* hooks.subscribe KIND [VERSION]: subscribes to a kind of events, or ends that with version 0. */
static int subscribe(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    long long kind = 0, version = 1;
    CHECK(argc >= 2 && ValkeyModule_StringToLongLong(argv[1], &kind) == VALKEYMODULE_OK);
    if (argc == 3) CHECK(ValkeyModule_StringToLongLong(argv[2], &version) == VALKEYMODULE_OK);
    ValkeyModuleEvent event = {(uint64_t)kind, (uint64_t)version};
    int result = ValkeyModule_SubscribeToServerEvent(ctx, event, version ? receive : NULL);
    return ValkeyModule_ReplyWithLongLong(ctx, result);
}

/* hooks.log: returns the events so far, and forgets them. */
static int show(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    require_home();
    ValkeyModule_ReplyWithArray(ctx, count);
    for (int i = 0; i < count; i++) ValkeyModule_ReplyWithCString(ctx, lines[i]);
    count = 0;
    return VALKEYMODULE_OK;
}

/* Replaces the word "@swap" by "swapped", deletes "@drop", and repeats "@twice"; makes GIT to GET. */
static void change(ValkeyModuleCommandFilterCtx *command) {
    require_home();
    for (int i = 0; i < ValkeyModule_CommandFilterArgsCount(command); i++) {
        const ValkeyModuleString *word = ValkeyModule_CommandFilterArgGet(command, i);
        if (is_text(word, "@swap")) {
            ValkeyModule_CommandFilterArgReplace(command, i, ValkeyModule_CreateString(NULL, "swapped", 7));
        } else if (is_text(word, "GIT")) {
            ValkeyModule_CommandFilterArgReplace(command, i, ValkeyModule_CreateString(NULL, "GET", 3));
        } else if (is_text(word, "@drop")) {
            ValkeyModule_CommandFilterArgDelete(command, i--);
        } else if (is_text(word, "@twice")) {
            ValkeyModule_CommandFilterArgReplace(command, i, ValkeyModule_CreateString(NULL, "once", 4));
            ValkeyModule_CommandFilterArgInsert(command, i, ValkeyModule_CreateString(NULL, "once", 4));
        }
    }
}

/* hooks.filter FLAGS: registers the filter. */
static int register_filter(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    long long flags = 0;
    CHECK(argc == 2 && ValkeyModule_StringToLongLong(argv[1], &flags) == VALKEYMODULE_OK);
    filter = ValkeyModule_RegisterCommandFilter(ctx, change, (int)flags);
    CHECK(filter != NULL);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

/* hooks.unfilter: removes it. */
static int remove_filter(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    return ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_UnregisterCommandFilter(ctx, filter));
}

/* hooks.call WORD...: calls a command. */
static int call(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    CHECK(argc >= 2);
    const char *name = ValkeyModule_StringPtrLen(argv[1], NULL);
    ValkeyModuleCallReply *reply = ValkeyModule_Call(ctx, name, "!Ev", argv + 2, (size_t)argc - 2);
    CHECK(reply != NULL);
    ValkeyModule_ReplyWithCallReply(ctx, reply);
    ValkeyModule_FreeCallReply(reply);
    return VALKEYMODULE_OK;
}

/* hooks.own VALUE: sets the key "@swap", a word that the client's filtered command has not. */
static int call_own(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    CHECK(argc == 2);
    ValkeyModuleCallReply *reply = ValkeyModule_Call(ctx, "SET", "!cs", "@swap", argv[1]);
    CHECK(reply != NULL);
    ValkeyModule_FreeCallReply(reply);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

/* hooks.client ID: describes a client. */
static int describe(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    long long id = 0;
    CHECK(argc == 2 && ValkeyModule_StringToLongLong(argv[1], &id) == VALKEYMODULE_OK);
    ValkeyModuleClientInfo info = {.version = 1}, newer = {.version = 2};
    if (ValkeyModule_GetClientInfoById(&info, (uint64_t)id) != VALKEYMODULE_OK) {
        errno = 0;
        CHECK(ValkeyModule_GetClientUserNameById(ctx, (uint64_t)id) == NULL && errno == ENOENT);
        return ValkeyModule_ReplyWithNull(ctx);
    }
    CHECK(ValkeyModule_GetClientInfoById(&newer, (uint64_t)id) == VALKEYMODULE_ERR);
    CHECK(ValkeyModule_GetClientInfoById(NULL, (uint64_t)id) == VALKEYMODULE_OK);
    CHECK(info.id == (uint64_t)id && info.port > 0 && strcmp(info.addr, "127.0.0.1") == 0);
    ValkeyModuleString *name = ValkeyModule_GetClientNameById(ctx, (uint64_t)id);
    ValkeyModuleString *user = ValkeyModule_GetClientUserNameById(ctx, (uint64_t)id);
    char line[256];
    snprintf(line, sizeof(line), "db %d name %s user %s multi %d blocked %d tracking %d", info.db,
             name ? ValkeyModule_StringPtrLen(name, NULL) : "-", ValkeyModule_StringPtrLen(user, NULL),
             !!(info.flags & VALKEYMODULE_CLIENTINFO_FLAG_MULTI), !!(info.flags & VALKEYMODULE_CLIENTINFO_FLAG_BLOCKED),
             !!(info.flags & VALKEYMODULE_CLIENTINFO_FLAG_TRACKING));
    if (name) ValkeyModule_FreeString(ctx, name);
    ValkeyModule_FreeString(ctx, user);
    return ValkeyModule_ReplyWithCString(ctx, line);
}

/* hooks.rename ID NAME: gives a client a name. Replies with the error number. */
static int rename_client(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    long long id = 0;
    CHECK(argc == 3 && ValkeyModule_StringToLongLong(argv[1], &id) == VALKEYMODULE_OK);
    errno = 0;
    int result = ValkeyModule_SetClientNameById((uint64_t)id, argv[2]);
    CHECK((result == VALKEYMODULE_OK) == (errno == 0));
    return ValkeyModule_ReplyWithLongLong(ctx, errno);
}

/* hooks.supported KIND SUB: asks for a sub-event. */
static int ask(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    long long kind = 0, sub = 0;
    CHECK(argc == 3 && ValkeyModule_StringToLongLong(argv[1], &kind) == VALKEYMODULE_OK);
    CHECK(ValkeyModule_StringToLongLong(argv[2], &sub) == VALKEYMODULE_OK);
    ValkeyModuleEvent event = {(uint64_t)kind, 1};
    return ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_IsSubEventSupported(event, (uint64_t)sub));
}

int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    REQUIRE(ValkeyModule_Init(ctx, "hooks", 1, VALKEYMODULE_APIVER_1));
    home = pthread_self();
    COMMAND("hooks.subscribe", subscribe);
    COMMAND("hooks.log", show);
    COMMAND("hooks.filter", register_filter);
    COMMAND("hooks.unfilter", remove_filter);
    COMMAND("hooks.call", call);
    COMMAND("hooks.own", call_own);
    COMMAND("hooks.client", describe);
    COMMAND("hooks.rename", rename_client);
    COMMAND("hooks.supported", ask);
    return VALKEYMODULE_OK;
}
