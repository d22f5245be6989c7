/* A command whose argument names the type of its reply. */

#include <math.h>

#include "check.h"

static int reply_single(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    const char *type = ValkeyModule_StringPtrLen(argv[1], NULL);
#define IF(name) if (strcmp(type, name) == 0) return
    IF("integer") ValkeyModule_ReplyWithLongLong(ctx, -42);
    IF("simple") ValkeyModule_ReplyWithSimpleString(ctx, "simple text");
    IF("error") ValkeyModule_ReplyWithError(ctx, "CODE some text\r\nand a line");
    IF("error-format") ValkeyModule_ReplyWithErrorFormat(ctx, "OTHER %s %d", "text", 7);
    IF("error-custom") ValkeyModule_ReplyWithCustomErrorFormat(ctx, 1, "CUSTOM %s", "text");
    IF("error-uncounted") ValkeyModule_ReplyWithCustomErrorFormat(ctx, 0, "UNCOUNTED %s", "text");
    IF("error-alone") ValkeyModule_ReplyWithError(ctx, "ALONE");
    IF("buffer") ValkeyModule_ReplyWithStringBuffer(ctx, "a\0b", 3);
    IF("c-string") ValkeyModule_ReplyWithCString(ctx, "text");
    IF("string") ValkeyModule_ReplyWithString(ctx, argv[1]);
    IF("empty-string") ValkeyModule_ReplyWithEmptyString(ctx);
    IF("verbatim") ValkeyModule_ReplyWithVerbatimString(ctx, "text", 4);
    IF("verbatim-md") ValkeyModule_ReplyWithVerbatimStringType(ctx, "text", 4, "md");
    IF("null") ValkeyModule_ReplyWithNull(ctx);
    IF("null-array") ValkeyModule_ReplyWithNullArray(ctx);
    IF("empty-array") ValkeyModule_ReplyWithEmptyArray(ctx);
    IF("true") ValkeyModule_ReplyWithBool(ctx, 5);
    IF("false") ValkeyModule_ReplyWithBool(ctx, 0);
    IF("double") ValkeyModule_ReplyWithDouble(ctx, 0.1);
    IF("infinity") ValkeyModule_ReplyWithDouble(ctx, -INFINITY);
    IF("long-double") ValkeyModule_ReplyWithLongDouble(ctx, 0.1L);
    IF("long-infinity") ValkeyModule_ReplyWithLongDouble(ctx, INFINITY);
    IF("big-number") ValkeyModule_ReplyWithBigNumber(ctx, "123456789012345678901234567890", 30);
    IF("empty-map") ValkeyModule_ReplyWithMap(ctx, 0);
    IF("empty-set") ValkeyModule_ReplyWithSet(ctx, 0);
#undef IF
    return ValkeyModule_ReplyWithErrorFormat(ctx, "ERR unknown type %s", type);
}

/* Replies with [1, {2: {3, 4}}, []]. With the argument "postponed" the lengths are set behind the elements. */
static int reply_nested(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    int is_postponed = is_text(argv[1], "postponed");
    ValkeyModule_ReplyWithArray(ctx, is_postponed ? VALKEYMODULE_POSTPONED_LEN : 3);
    ValkeyModule_ReplyWithLongLong(ctx, 1);
    ValkeyModule_ReplyWithMap(ctx, is_postponed ? VALKEYMODULE_POSTPONED_LEN : 1);
    ValkeyModule_ReplyWithLongLong(ctx, 2);
    ValkeyModule_ReplyWithSet(ctx, is_postponed ? VALKEYMODULE_POSTPONED_LEN : 2);
    ValkeyModule_ReplyWithLongLong(ctx, 3);
    ValkeyModule_ReplyWithLongLong(ctx, 4);
    if (is_postponed) ValkeyModule_ReplySetSetLength(ctx, 2);
    if (is_postponed) ValkeyModule_ReplySetMapLength(ctx, 1);
    ValkeyModule_ReplyWithArray(ctx, is_postponed ? VALKEYMODULE_POSTPONED_LEN : 0);
    if (is_postponed) ValkeyModule_ReplySetArrayLength(ctx, 0);
    if (is_postponed) ValkeyModule_ReplySetArrayLength(ctx, 3);
    return VALKEYMODULE_OK;
}

/* Replies with one attribute and a value, if the protocol has attributes. */
static int reply_attribute(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    if (ValkeyModule_ReplyWithAttribute(ctx, VALKEYMODULE_POSTPONED_LEN) == VALKEYMODULE_OK) {
        ValkeyModule_ReplyWithCString(ctx, "name");
        ValkeyModule_ReplyWithLongLong(ctx, 1);
    }
    ValkeyModule_ReplySetAttributeLength(ctx, 1);
    return ValkeyModule_ReplyWithLongLong(ctx, 2);
}

/* Leaves a length unset, and sets one too many. */
static int reply_misuse(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    if (is_text(argv[1], "unset")) ValkeyModule_ReplyWithArray(ctx, VALKEYMODULE_POSTPONED_LEN);
    if (is_text(argv[1], "unbegun")) ValkeyModule_ReplySetArrayLength(ctx, 5);
    return ValkeyModule_ReplyWithLongLong(ctx, 1);
}

int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    REQUIRE(ValkeyModule_Init(ctx, "replies", 1, VALKEYMODULE_APIVER_1));
    COMMAND("replies.single", reply_single);
    COMMAND("replies.nested", reply_nested);
    COMMAND("replies.attribute", reply_attribute);
    COMMAND("replies.misuse", reply_misuse);
    return VALKEYMODULE_OK;
}
