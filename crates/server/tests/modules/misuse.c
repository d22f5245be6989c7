/* Breaks the rules of the API. */

#include "check.h"

static int double_free(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    ValkeyModuleString *string = ValkeyModule_CreateString(ctx, "text", 4);
    ValkeyModule_FreeString(ctx, string);
    ValkeyModule_FreeString(ctx, string);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

/* Replies with nothing. */
static int no_reply(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    VALKEYMODULE_NOT_USED(ctx);
    return VALKEYMODULE_OK;
}

static int unlock(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    ValkeyModuleCtx *other = ValkeyModule_GetThreadSafeContext(NULL);
    ValkeyModule_ThreadSafeContextUnlock(other);
    ValkeyModule_FreeThreadSafeContext(other);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

static int negative_length(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    return ValkeyModule_ReplyWithArray(ctx, -5);
}

/* Reads through a null pointer. */
static int crash(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    volatile int *nowhere = NULL;
    return ValkeyModule_ReplyWithLongLong(ctx, *nowhere);
}

static int fails_in_report;

/* Adds a section to INFO and to the report of a crash. Crashes again there, if the argument says so. */
static void add_info(ValkeyModuleInfoCtx *info, int for_crash_report) {
    ValkeyModule_InfoAddSection(info, "state");
    ValkeyModule_InfoAddFieldLongLong(info, "is_for_crash", for_crash_report);
    if (!for_crash_report) return;
    if (fails_in_report == 'a') ValkeyModule_Assert(fails_in_report == 0);
    volatile int *nowhere = NULL;
    if (fails_in_report == 'f') *nowhere = 1;
}

static int assertion(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    ValkeyModule_Assert(ctx == NULL);
    return VALKEYMODULE_OK;
}

int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    REQUIRE(ValkeyModule_Init(ctx, "misuse", 1, VALKEYMODULE_APIVER_1));
    if (argc == 1) fails_in_report = is_text(argv[0], "assertion") ? 'a' : 'f';
    ValkeyModule_RegisterInfoFunc(ctx, add_info);
    COMMAND("misuse.assertion", assertion);
    COMMAND("misuse.double-free", double_free);
    COMMAND("misuse.no-reply", no_reply);
    COMMAND("misuse.unlock", unlock);
    COMMAND("misuse.negative-length", negative_length);
    COMMAND("misuse.crash", crash);
    return VALKEYMODULE_OK;
}
