/* Uses a function of another module, once it is there. */

#include "check.h"

/* USER.TWICE number: replies with null if no module offers the function. */
static int twice(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    long long number;
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    CHECK(ValkeyModule_StringToLongLong(argv[1], &number) == VALKEYMODULE_OK);
    long long (*function)(long long) = (long long (*)(long long))ValkeyModule_GetSharedAPI(ctx, "twice");
    if (!function) return ValkeyModule_ReplyWithNull(ctx);
    return ValkeyModule_ReplyWithLongLong(ctx, function(number));
}

int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    REQUIRE(ValkeyModule_Init(ctx, "user", 1, VALKEYMODULE_APIVER_1));
    COMMAND("user.twice", twice);
    return VALKEYMODULE_OK;
}
