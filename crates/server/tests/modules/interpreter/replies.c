/* Operations that reply with trees of values. */

#include "program.h"

#include <math.h>

enum { DEEPEST = 8 };

/* Replies with one value, which begins at `words[at]`. Returns the place behind it. */
static int reply_value(Program *program, ValkeyModuleString **words, int count, int at, int depth);

static int reply_elements(Program *program, ValkeyModuleString **words, int count, int at, long elements, int depth) {
    for (long i = 0; i < elements; i++) at = reply_value(program, words, count, at, depth + 1);
    return at;
}

/* A kind with elements is followed by their number, by `now` or `later` for its length, and by the elements. */
static int reply_collection(Program *program, ValkeyModuleString **words, int count, int at, int depth) {
    ValkeyModuleCtx *ctx = program->ctx;
    char kind = *text_of(words[at], NULL);
    if (kind == 'A' && is_in_script(program)) kind = 'a';
    long length = (long)(number_of(words[at + 1]) & 7);
    int is_later = is_text(words[at + 2], "later");
    if (depth >= DEEPEST) length = 0;
    /* A script gives the elements of a set or map in any order. */
    if (is_in_script(program) && (kind == 's' || kind == 'm') && length > 1) length = 1;
    long given = is_later ? VALKEYMODULE_POSTPONED_LEN : length;
    long elements = kind == 'm' || kind == 'A' ? 2 * length : length;
    at += 3;
    if (kind == 'a') ValkeyModule_ReplyWithArray(ctx, given);
    if (kind == 'm') ValkeyModule_ReplyWithMap(ctx, given);
    if (kind == 's') ValkeyModule_ReplyWithSet(ctx, given);
    if (kind == 'A') {
        /* Attributes have no form in RESP2, and describe the value that follows. */
        if (ValkeyModule_ReplyWithAttribute(ctx, given) != VALKEYMODULE_OK)
            return reply_value(program, words, count, at, depth + 1);
        at = reply_elements(program, words, count, at, elements, depth);
        if (is_later) ValkeyModule_ReplySetAttributeLength(ctx, length);
        return reply_value(program, words, count, at, depth + 1);
    }
    at = reply_elements(program, words, count, at, elements, depth);
    if (!is_later) return at;
    if (kind == 'a') ValkeyModule_ReplySetArrayLength(ctx, length);
    if (kind == 'm') ValkeyModule_ReplySetMapLength(ctx, length);
    if (kind == 's') ValkeyModule_ReplySetSetLength(ctx, length);
    return at;
}

static int reply_number(ValkeyModuleCtx *ctx, const char *kind, const ValkeyModuleString *word) {
    long double exact = 0;
    size_t length;
    const char *text = text_of(word, &length);
    if (strcmp(kind, "integer") == 0) return ValkeyModule_ReplyWithLongLong(ctx, number_of(word));
    if (strcmp(kind, "double") == 0) return ValkeyModule_ReplyWithDouble(ctx, double_of(word));
    if (strcmp(kind, "bool") == 0) return ValkeyModule_ReplyWithBool(ctx, (int)number_of(word));
    if (strcmp(kind, "exact") == 0) {
        ValkeyModule_StringToLongDouble(word, &exact);
        return ValkeyModule_ReplyWithLongDouble(ctx, exact);
    }
    return ValkeyModule_ReplyWithBigNumber(ctx, text, length);
}

static int reply_text(ValkeyModuleCtx *ctx, const char *kind, ValkeyModuleString *word) {
    size_t length;
    const char *text = text_of(word, &length);
    if (strcmp(kind, "simple") == 0) return ValkeyModule_ReplyWithSimpleString(ctx, text);
    if (strcmp(kind, "error") == 0) return ValkeyModule_ReplyWithError(ctx, text);
    if (strcmp(kind, "error-format") == 0) return ValkeyModule_ReplyWithErrorFormat(ctx, "%s %d", text, 5);
    if (strcmp(kind, "error-custom") == 0)
        return ValkeyModule_ReplyWithCustomErrorFormat(ctx, (int)(length & 1), "%s:%zu", text, length);
    if (strcmp(kind, "buffer") == 0) return ValkeyModule_ReplyWithStringBuffer(ctx, text, length);
    if (strcmp(kind, "cstring") == 0) return ValkeyModule_ReplyWithCString(ctx, text);
    if (strcmp(kind, "verbatim") == 0) return ValkeyModule_ReplyWithVerbatimString(ctx, text, length);
    if (strcmp(kind, "markdown") == 0) return ValkeyModule_ReplyWithVerbatimStringType(ctx, text, length, "md");
    if (strcmp(kind, "longtype") == 0) return ValkeyModule_ReplyWithVerbatimStringType(ctx, text, length, "html");
    return ValkeyModule_ReplyWithString(ctx, word);
}

/* Valkey confuses the stack of a script when it converts an error within an array, or a set or map with a null or NaN
 * as a key. Returns another kind for what may be such a value. */
static const char *without_confusion(const char *kind, const ValkeyModuleString *word) {
    if (strncmp(kind, "error", 5) == 0) return "cstring";
    if (strcmp(kind, "arity") == 0 || strncmp(kind, "null", 4) == 0) return "emptystring";
    double number = word ? double_of(word) : 0;
    if (number != number && (strcmp(kind, "double") == 0 || strcmp(kind, "exact") == 0)) return "integer";
    return strcmp(kind, "Attribute") == 0 ? "array" : kind;
}

static int reply_value(Program *program, ValkeyModuleString **words, int count, int at, int depth) {
    ValkeyModuleCtx *ctx = program->ctx;
    const char *kind = at < count ? text_of(words[at], NULL) : "null";
    if (is_in_script(program)) kind = without_confusion(kind, at + 1 < count ? words[at + 1] : NULL);
    static const char *const numbers[] = {"integer", "double", "bool", "exact", "bignumber"};
    if (strcmp(kind, "null") == 0) ValkeyModule_ReplyWithNull(ctx);
    else if (strcmp(kind, "nullarray") == 0) ValkeyModule_ReplyWithNullArray(ctx);
    else if (strcmp(kind, "emptyarray") == 0) ValkeyModule_ReplyWithEmptyArray(ctx);
    else if (strcmp(kind, "emptystring") == 0) ValkeyModule_ReplyWithEmptyString(ctx);
    else if (strcmp(kind, "arity") == 0) ValkeyModule_WrongArity(ctx);
    else if (at + 1 >= count) ValkeyModule_ReplyWithNull(ctx);
    else {
        static const char *const collections[] = {"array", "map", "set", "Attribute"};
        for (size_t i = 0; i < 4; i++)
            if (at + 2 < count && strcmp(kind, collections[i]) == 0)
                return reply_collection(program, words, count, at, depth);
        for (size_t i = 0; i < 5; i++)
            if (strcmp(kind, numbers[i]) == 0) {
                reply_number(ctx, kind, words[at + 1]);
                return at + 2;
            }
        reply_text(ctx, kind, words[at + 1]);
        return at + 2;
    }
    return at + 1;
}

static void reply_tree(Program *program, ValkeyModuleString **words, int count) {
    reply_value(program, words, count, 0, 0);
}

const Operation reply_operations[] = {{"reply", 1, reply_tree}, {NULL, 0, NULL}};
