/* Commands with subcommands, key specs, documentation, ACL categories, and positions that only the module knows. */

#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"

static pid_t home_thread;

static int name_of_command(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    return ValkeyModule_ReplyWithSimpleString(ctx, ValkeyModule_GetCurrentCommandName(ctx));
}

/* registry.pairs N KEY VALUE ...: keys are at every second position. Aborts if asked off its home thread. */
static int pairs(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    VALKEYMODULE_NOT_USED(argv);
    if (ValkeyModule_IsKeysPositionRequest(ctx)) {
        if (gettid() != home_thread) abort();
        for (int i = 2; i < argc; i += 2)
            ValkeyModule_KeyAtPosWithFlags(ctx, i, VALKEYMODULE_CMD_KEY_OW | VALKEYMODULE_CMD_KEY_UPDATE);
        ValkeyModule_ChannelAtPosWithFlags(ctx, 1, VALKEYMODULE_CMD_CHANNEL_PUBLISH);
        ValkeyModule_KeyAtPos(ctx, 0);
        return VALKEYMODULE_OK;
    }
    if (argc < 3) return ValkeyModule_WrongArity(ctx);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

/* registry.shout CHANNEL: a channel that only the module knows. */
static int shout(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (ValkeyModule_IsChannelsPositionRequest(ctx)) {
        if (gettid() != home_thread) abort();
        if (argc > 1) ValkeyModule_ChannelAtPosWithFlags(ctx, 1, VALKEYMODULE_CMD_CHANNEL_PUBLISH);
        if (argc > 2) ValkeyModule_ChannelAtPosWithFlags(ctx, 2, VALKEYMODULE_CMD_CHANNEL_UNSUBSCRIBE);
        return VALKEYMODULE_OK;
    }
    UNUSED_ARGUMENTS;
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

/* registry.keys WORD ...: the positions of the keys of a command, or the error number. */
static int keys_of(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    int count = 0, *flags = NULL;
    errno = 0;
    int *keys = ValkeyModule_GetCommandKeysWithFlags(ctx, argv + 1, argc - 1, &count, &flags);
    if (!keys) return ValkeyModule_ReplyWithLongLong(ctx, -errno);
    ValkeyModule_ReplyWithArray(ctx, 2 * count);
    for (int i = 0; i < count; i++) {
        ValkeyModule_ReplyWithLongLong(ctx, keys[i]);
        ValkeyModule_ReplyWithLongLong(ctx, flags[i]);
    }
    ValkeyModule_Free(keys);
    ValkeyModule_Free(flags);
    return VALKEYMODULE_OK;
}

/* registry.late: what a module may not do after its load function. */
static int too_late(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    CHECK(ValkeyModule_CreateCommand(ctx, "registry.more", too_late, "", 0, 0, 0) == VALKEYMODULE_ERR);
    ValkeyModuleCommand *command = ValkeyModule_GetCommand(ctx, "REGISTRY.box");
    CHECK(command != NULL);
    CHECK(ValkeyModule_CreateSubcommand(command, "more", too_late, "", 0, 0, 0) == VALKEYMODULE_ERR);
    CHECK(ValkeyModule_SetCommandACLCategories(command, "read") == VALKEYMODULE_ERR);
    errno = 0;
    CHECK(ValkeyModule_AddACLCategory(ctx, "late") == VALKEYMODULE_ERR && errno == EINVAL);
    CHECK(ValkeyModule_GetCommand(ctx, "get") == NULL);
    /* Documentation may come later. */
    ValkeyModuleCommandInfo info = {.version = VALKEYMODULE_COMMAND_INFO_VERSION, .summary = "Comes late."};
    if (ValkeyModule_SetCommandInfo(command, &info) == VALKEYMODULE_OK)
        return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
    CHECK(errno == EEXIST);
    return ValkeyModule_ReplyWithSimpleString(ctx, "EEXIST");
}

/* Wrong metadata is refused as a whole. */
static int check_refusals(ValkeyModuleCommand *command) {
    ValkeyModuleCommandInfo none = {.summary = "without a version"};
    ValkeyModuleCommandInfo flags = {
        .version = VALKEYMODULE_COMMAND_INFO_VERSION,
        .key_specs = (ValkeyModuleCommandKeySpec[]){
            {.flags = VALKEYMODULE_CMD_KEY_RO | VALKEYMODULE_CMD_KEY_RW, .begin_search_type = VALKEYMODULE_KSPEC_BS_UNKNOWN},
            {0},
        },
    };
    ValkeyModuleCommandInfo token = {
        .version = VALKEYMODULE_COMMAND_INFO_VERSION,
        .args = (ValkeyModuleCommandArg[]){{.name = "a", .type = VALKEYMODULE_ARG_TYPE_PURE_TOKEN}, {0}},
    };
    ValkeyModuleCommandInfo nested = {
        .version = VALKEYMODULE_COMMAND_INFO_VERSION,
        .args = (ValkeyModuleCommandArg[]){{.name = "a", .type = VALKEYMODULE_ARG_TYPE_ONEOF}, {0}},
    };
    ValkeyModuleCommandInfo *wrong[] = {&none, &flags, &token, &nested};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        errno = 0;
        if (ValkeyModule_SetCommandInfo(command, wrong[i]) != VALKEYMODULE_ERR || errno != EINVAL) return VALKEYMODULE_ERR;
    }
    return VALKEYMODULE_OK;
}

static int describe(ValkeyModuleCommand *command) {
    ValkeyModuleCommandInfo info = {
        .version = VALKEYMODULE_COMMAND_INFO_VERSION,
        .summary = "Copies between keys.",
        .complexity = "O(1)",
        .since = "1.2.3",
        .tips = "request_policy:all_shards nondeterministic_output",
        .arity = -3,
        .history = (ValkeyModuleCommandHistoryEntry[]){{"1.3.0", "Was changed."}, {0}},
        .key_specs = (ValkeyModuleCommandKeySpec[]){
            {.notes = "the source", .flags = VALKEYMODULE_CMD_KEY_RO | VALKEYMODULE_CMD_KEY_ACCESS,
             .begin_search_type = VALKEYMODULE_KSPEC_BS_INDEX, .bs.index.pos = 1},
            {.flags = VALKEYMODULE_CMD_KEY_OW | VALKEYMODULE_CMD_KEY_UPDATE,
             .begin_search_type = VALKEYMODULE_KSPEC_BS_KEYWORD, .bs.keyword = {"TO", 2},
             .find_keys_type = VALKEYMODULE_KSPEC_FK_RANGE, .fk.range = {-1, 2, 0}},
            {.flags = VALKEYMODULE_CMD_KEY_RM, .begin_search_type = VALKEYMODULE_KSPEC_BS_KEYWORD,
             .bs.keyword = {"COUNT", -1}, .find_keys_type = VALKEYMODULE_KSPEC_FK_KEYNUM, .fk.keynum = {0, 1, 1}},
            {0},
        },
        .args = (ValkeyModuleCommandArg[]){
            {.name = "source", .type = VALKEYMODULE_ARG_TYPE_KEY, .key_spec_index = 0, .display_text = "from"},
            {.name = "mode", .type = VALKEYMODULE_ARG_TYPE_ONEOF, .flags = VALKEYMODULE_CMD_ARG_OPTIONAL,
             .subargs = (ValkeyModuleCommandArg[]){
                 {.name = "now", .type = VALKEYMODULE_ARG_TYPE_PURE_TOKEN, .token = "NOW", .since = "1.3.0"},
                 {.name = "at", .type = VALKEYMODULE_ARG_TYPE_UNIX_TIME, .token = "AT", .summary = "the time"},
                 {0},
             }},
            {.name = "target", .type = VALKEYMODULE_ARG_TYPE_KEY, .key_spec_index = 1, .token = "TO",
             .flags = VALKEYMODULE_CMD_ARG_MULTIPLE | VALKEYMODULE_CMD_ARG_MULTIPLE_TOKEN},
            {0},
        },
    };
    return ValkeyModule_SetCommandInfo(command, &info);
}

int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (ValkeyModule_Init(ctx, "registry", 3, VALKEYMODULE_APIVER_1) != VALKEYMODULE_OK) return VALKEYMODULE_ERR;
    /* The name is busy only once the module is loaded. */
    if (ValkeyModule_IsModuleNameBusy("registry")) return VALKEYMODULE_ERR;
    home_thread = gettid();
    static const char *const wrong_flags[] = {"write,fast", " write", "write  fast", "quick"};
    for (int i = 0; i < 4; i++)
        if (ValkeyModule_CreateCommand(ctx, "registry.x", too_late, wrong_flags[i], 0, 0, 0) == VALKEYMODULE_OK)
            return VALKEYMODULE_ERR;
    static const char *const wrong_names[] = {"a b", "a|b", "a@b", "get", "GET"};
    for (int i = 0; i < 5; i++)
        if (ValkeyModule_CreateCommand(ctx, wrong_names[i], too_late, "", 0, 0, 0) == VALKEYMODULE_OK)
            return VALKEYMODULE_ERR;

    REQUIRE(ValkeyModule_CreateCommand(ctx, "Registry.Copy", name_of_command, "write deny-oom random fast", 0, 0, 0));
    ValkeyModuleCommand *copy = ValkeyModule_GetCommand(ctx, "registry.copy");
    REQUIRE(check_refusals(copy));
    REQUIRE(describe(copy));
    errno = 0;
    if (describe(copy) != VALKEYMODULE_ERR || errno != EEXIST) return VALKEYMODULE_ERR;

    REQUIRE(ValkeyModule_CreateCommand(ctx, "registry.box", NULL, "", 0, 0, 0));
    ValkeyModuleCommand *box = ValkeyModule_GetCommand(ctx, "registry.box");
    REQUIRE(ValkeyModule_CreateSubcommand(box, "put", name_of_command, "write", 2, 2, 1));
    REQUIRE(ValkeyModule_CreateSubcommand(box, "TAKE", name_of_command, "readonly", 2, -1, 1));
    ValkeyModuleCommand *put = ValkeyModule_GetCommand(ctx, "registry.box|PUT");
    if (!put || ValkeyModule_CreateSubcommand(box, "take", too_late, "", 0, 0, 0) == VALKEYMODULE_OK ||
        ValkeyModule_CreateSubcommand(put, "more", too_late, "", 0, 0, 0) == VALKEYMODULE_OK ||
        ValkeyModule_CreateSubcommand(copy, "more", too_late, "", 0, 0, 0) == VALKEYMODULE_OK)
        return VALKEYMODULE_ERR;
    REQUIRE(ValkeyModule_CreateCommand(ctx, "registry.empty", NULL, "", 0, 0, 0));

    errno = 0;
    if (ValkeyModule_AddACLCategory(ctx, "re ad") == VALKEYMODULE_OK || errno != EINVAL) return VALKEYMODULE_ERR;
    if (ValkeyModule_AddACLCategory(ctx, "Read") == VALKEYMODULE_OK || errno != EBUSY) return VALKEYMODULE_ERR;
    REQUIRE(ValkeyModule_AddACLCategory(ctx, "shapes"));
    REQUIRE(ValkeyModule_SetCommandACLCategories(put, "write shapes"));
    REQUIRE(ValkeyModule_SetCommandACLCategories(copy, "read"));
    if (ValkeyModule_SetCommandACLCategories(copy, "read colours") == VALKEYMODULE_OK) return VALKEYMODULE_ERR;

    REQUIRE(ValkeyModule_CreateCommand(ctx, "registry.pairs", pairs, "getkeys-api no-mandatory-keys", 1, 1, 1));
    REQUIRE(ValkeyModule_CreateCommand(ctx, "registry.shout", shout, "getchannels-api pubsub", 0, 0, 0));
    COMMAND("registry.keys", keys_of);
    COMMAND("registry.late", too_late);
    if (argc > 0 && is_text(argv[0], "categories")) {
        char name[32];
        int added = 1;
        for (int i = 0; i < 64; i++) {
            snprintf(name, sizeof(name), "category-%d", i);
            errno = 0;
            if (ValkeyModule_AddACLCategory(ctx, name) == VALKEYMODULE_OK) added++;
            else if (errno != ENOMEM) return VALKEYMODULE_ERR;
        }
        /* There are 64 categories, 21 of which are those of the server. */
        if (added != 43) return VALKEYMODULE_ERR;
    }
    return VALKEYMODULE_OK;
}
