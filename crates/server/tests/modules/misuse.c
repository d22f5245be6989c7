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

int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    REQUIRE(ValkeyModule_Init(ctx, "misuse", 1, VALKEYMODULE_APIVER_1));
    COMMAND("misuse.double-free", double_free);
    COMMAND("misuse.no-reply", no_reply);
    COMMAND("misuse.unlock", unlock);
    COMMAND("misuse.negative-length", negative_length);
    COMMAND("misuse.crash", crash);
    return VALKEYMODULE_OK;
}
