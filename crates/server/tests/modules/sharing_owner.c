/* Offers a function to other modules. */

#include "check.h"

static long long twice(long long number) {
    return number * 2;
}

int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    REQUIRE(ValkeyModule_Init(ctx, "owner", 1, VALKEYMODULE_APIVER_1));
    REQUIRE(ValkeyModule_ExportSharedAPI(ctx, "twice", (void *)twice));
    return ValkeyModule_ExportSharedAPI(ctx, "twice", NULL) == VALKEYMODULE_ERR ? VALKEYMODULE_OK : VALKEYMODULE_ERR;
}
