/* Strings, with and without automatic memory. */

#include "check.h"

static int numbers(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    ValkeyModule_AutoMemory(ctx);
    CHECK(is_text(ValkeyModule_CreateStringFromLongLong(ctx, -7), "-7"));
    CHECK(is_text(ValkeyModule_CreateStringFromULongLong(ctx, 18446744073709551615ULL), "18446744073709551615"));
    CHECK(is_text(ValkeyModule_CreateStringFromDouble(ctx, 1e20), "1e+20"));
    CHECK(is_text(ValkeyModule_CreateStringFromDouble(ctx, 0.1), "0.1"));
    CHECK(is_text(ValkeyModule_CreateStringFromLongDouble(ctx, 3.0L, 1), "3"));
    CHECK(is_text(ValkeyModule_CreateStringFromLongDouble(ctx, 0.25L, 1), "0.25"));
    CHECK(is_text(ValkeyModule_CreateStringFromLongDouble(ctx, -0.0L, 1), "0"));
    CHECK(is_text(ValkeyModule_CreateStringFromLongDouble(ctx, 1e30L, 0), "1e+30"));
    CHECK(is_text(ValkeyModule_CreateStringPrintf(ctx, "%s-%05d-%c", "a", 42, 'z'), "a-00042-z"));
    ValkeyModuleStreamID id = {5, 18446744073709551615ULL};
    CHECK(is_text(ValkeyModule_CreateStringFromStreamID(ctx, &id), "5-18446744073709551615"));

    long long integer;
    unsigned long long natural;
    double number;
    long double long_number;
    CHECK(ValkeyModule_StringToLongLong(ValkeyModule_CreateString(ctx, "-12", 3), &integer) == VALKEYMODULE_OK);
    CHECK(integer == -12);
    CHECK(ValkeyModule_StringToLongLong(ValkeyModule_CreateString(ctx, "12 ", 3), &integer) == VALKEYMODULE_ERR);
    CHECK(ValkeyModule_StringToULongLong(ValkeyModule_CreateString(ctx, "18446744073709551615", 20), &natural) ==
          VALKEYMODULE_OK);
    CHECK(natural == 18446744073709551615ULL);
    CHECK(ValkeyModule_StringToDouble(ValkeyModule_CreateString(ctx, "2.5", 3), &number) == VALKEYMODULE_OK);
    CHECK(number == 2.5);
    CHECK(ValkeyModule_StringToDouble(ValkeyModule_CreateString(ctx, "nan", 3), &number) == VALKEYMODULE_ERR);
    CHECK(ValkeyModule_StringToLongDouble(ValkeyModule_CreateString(ctx, "0.1", 3), &long_number) == VALKEYMODULE_OK);
    CHECK(long_number == 0.1L);
    CHECK(ValkeyModule_StringToLongDouble(ValkeyModule_CreateString(ctx, " 1", 2), &long_number) == VALKEYMODULE_ERR);
    CHECK(ValkeyModule_StringToLongDouble(ValkeyModule_CreateString(ctx, "1x", 2), &long_number) == VALKEYMODULE_ERR);
    CHECK(ValkeyModule_StringToLongDouble(ValkeyModule_CreateString(ctx, "", 0), &long_number) == VALKEYMODULE_ERR);
    CHECK(ValkeyModule_StringToStreamID(ValkeyModule_CreateString(ctx, "7-8", 3), &id) == VALKEYMODULE_OK);
    CHECK(id.ms == 7 && id.seq == 8);
    CHECK(ValkeyModule_StringToStreamID(ValkeyModule_CreateString(ctx, "7-*", 3), &id) == VALKEYMODULE_ERR);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

static int holders(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    /* An argument has one holder, the server, until the module retains it. */
    ValkeyModule_RetainString(ctx, argv[1]);
    CHECK(ValkeyModule_StringAppendBuffer(ctx, argv[1], "x", 1) == VALKEYMODULE_ERR);
    ValkeyModule_FreeString(ctx, argv[1]);

    ValkeyModuleString *copy = ValkeyModule_CreateStringFromString(NULL, argv[1]);
    CHECK(copy != argv[1] && ValkeyModule_StringCompare(copy, argv[1]) == 0);
    CHECK(ValkeyModule_StringAppendBuffer(ctx, copy, "\0more", 5) == VALKEYMODULE_OK);
    CHECK(ValkeyModule_StringCompare(copy, argv[1]) > 0 && ValkeyModule_StringCompare(argv[1], copy) < 0);
    ValkeyModule_TrimStringAllocation(copy);
    ValkeyModuleString *held = ValkeyModule_HoldString(NULL, copy);
    CHECK(ValkeyModule_StringAppendBuffer(ctx, held, "x", 1) == VALKEYMODULE_ERR);
    ValkeyModule_FreeString(NULL, held);

    ValkeyModule_AutoMemory(ctx);
    ValkeyModuleString *automatic = ValkeyModule_CreateString(ctx, "automatic", 9);
    ValkeyModule_RetainString(ctx, automatic);
    CHECK(ValkeyModule_StringAppendBuffer(ctx, automatic, "!", 1) == VALKEYMODULE_OK);
    ValkeyModule_FreeString(NULL, automatic);

    size_t length;
    CHECK(strncmp(ValkeyModule_StringPtrLen(NULL, &length), "(NULL", 5) == 0);
    ValkeyModule_ReplyWithString(ctx, copy);
    ValkeyModule_FreeString(NULL, copy);
    return VALKEYMODULE_OK;
}

/* Keeps a string beyond the command that has created it. */
static int keep(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    static ValkeyModuleString *kept;
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    if (kept) {
        ValkeyModule_ReplyWithString(ctx, kept);
        ValkeyModule_FreeString(NULL, kept);
    } else {
        ValkeyModule_ReplyWithNull(ctx);
    }
    ValkeyModule_RetainString(ctx, argv[1]);
    ValkeyModule_TrimStringAllocation(argv[1]);
    kept = argv[1];
    return VALKEYMODULE_OK;
}

int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    REQUIRE(ValkeyModule_Init(ctx, "strings", 1, VALKEYMODULE_APIVER_1));
    COMMAND("strings.numbers", numbers);
    COMMAND("strings.holders", holders);
    COMMAND("strings.keep", keep);
    return VALKEYMODULE_OK;
}
