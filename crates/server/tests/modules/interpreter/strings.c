/* Operations on strings, numbers and dictionaries. */

#include "program.h"

#include <math.h>

static void create(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    size_t length;
    const char *text = text_of(words[1], &length);
    keep_string(program, register_of(words[0]), ValkeyModule_CreateString(program->ctx, text, length));
    reply_status(program, VALKEYMODULE_OK);
}

/* string.from REGISTER KIND WORD: a string of a number, a stream identifier or another string. */
static void create_from(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    ValkeyModuleCtx *ctx = program->ctx;
    ValkeyModuleString *made = NULL;
    long double exact = 0;
    unsigned long long large = 0;
    ValkeyModuleStreamID id = {0, 0};
    if (is_text(words[1], "integer")) made = ValkeyModule_CreateStringFromLongLong(ctx, number_of(words[2]));
    if (is_text(words[1], "unsigned")) {
        ValkeyModule_StringToULongLong(words[2], &large);
        made = ValkeyModule_CreateStringFromULongLong(ctx, large);
    }
    if (is_text(words[1], "double")) made = ValkeyModule_CreateStringFromDouble(ctx, double_of(words[2]));
    if (is_text(words[1], "exact") || is_text(words[1], "human")) {
        ValkeyModule_StringToLongDouble(words[2], &exact);
        made = ValkeyModule_CreateStringFromLongDouble(ctx, exact, is_text(words[1], "human"));
    }
    if (is_text(words[1], "id")) {
        ValkeyModule_StringToStreamID(words[2], &id);
        made = ValkeyModule_CreateStringFromStreamID(ctx, &id);
    }
    if (is_text(words[1], "string")) made = ValkeyModule_CreateStringFromString(ctx, words[2]);
    if (is_text(words[1], "format")) {
        size_t length;
        const char *text = text_of(words[2], &length);
        made = ValkeyModule_CreateStringPrintf(ctx, "%.*s|%s|%5d|%-5x|%.3f|%c|%lld|%zu", (int)length, text, text,
                                               (int)length, (unsigned)length, (double)length / 3, 'c',
                                               -1LL - (long long)length, length);
    }
    if (!made) return reply_refused(program, "unknown kind");
    keep_string(program, register_of(words[0]), made);
    reply_string(program, made);
}

static void append(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    ValkeyModuleString *string = program->strings[register_of(words[0])];
    if (!string) return reply_refused(program, "no string");
    size_t length;
    const char *text = text_of(words[1], &length);
    reply_status(program, ValkeyModule_StringAppendBuffer(program->ctx, string, text, length));
}

static void reply(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    reply_string(program, program->strings[register_of(words[0])]);
}

/* string.parse WORD: all numbers and identifiers that it may stand for. */
static void parse(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    ValkeyModuleCtx *ctx = program->ctx;
    long long number = 0;
    unsigned long long large = 0;
    double approximate = 0;
    long double exact = 0;
    ValkeyModuleStreamID id = {0, 0};
    ValkeyModule_ReplyWithArray(ctx, 5);
    if (ValkeyModule_StringToLongLong(words[0], &number) == VALKEYMODULE_OK)
        ValkeyModule_ReplyWithLongLong(ctx, number);
    else ValkeyModule_ReplyWithNull(ctx);
    if (ValkeyModule_StringToULongLong(words[0], &large) == VALKEYMODULE_OK) {
        ValkeyModuleString *text = ValkeyModule_CreateStringFromULongLong(ctx, large);
        ValkeyModule_ReplyWithString(ctx, text);
        free_string(program, text);
    } else ValkeyModule_ReplyWithNull(ctx);
    if (ValkeyModule_StringToDouble(words[0], &approximate) == VALKEYMODULE_OK)
        ValkeyModule_ReplyWithDouble(ctx, approximate);
    else ValkeyModule_ReplyWithNull(ctx);
    if (ValkeyModule_StringToLongDouble(words[0], &exact) == VALKEYMODULE_OK)
        ValkeyModule_ReplyWithLongDouble(ctx, exact);
    else ValkeyModule_ReplyWithNull(ctx);
    if (ValkeyModule_StringToStreamID(words[0], &id) == VALKEYMODULE_OK) reply_id(program, id);
    else ValkeyModule_ReplyWithNull(ctx);
}

static void compare(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    ValkeyModuleString *first = program->strings[register_of(words[0])];
    if (!first) first = words[0];
    int result = ValkeyModule_StringCompare(first, words[1]);
    ValkeyModule_ReplyWithLongLong(program->ctx, (result > 0) - (result < 0));
}

/* string.hold REGISTER HOW: another reference, which makes the string immutable. It is given back at once or not. */
static void hold(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    ValkeyModuleString *string = program->strings[register_of(words[0])];
    if (!string) return reply_refused(program, "no string");
    if (is_text(words[1], "trim")) {
        ValkeyModule_TrimStringAllocation(string);
        return reply_string(program, string);
    }
    ValkeyModuleString *held = string;
    if (is_text(words[1], "retain")) ValkeyModule_RetainString(NULL, string);
    else held = ValkeyModule_HoldString(NULL, string);
    int status = ValkeyModule_StringAppendBuffer(program->ctx, string, "+", 1);
    ValkeyModule_FreeString(NULL, held);
    reply_status(program, status);
}

const Operation string_operations[] = {
    {"string.create", 2, create}, {"string.from", 3, create_from}, {"string.append", 2, append},
    {"string.reply", 1, reply},   {"string.parse", 1, parse},      {"string.compare", 2, compare},
    {"string.hold", 2, hold},     {NULL, 0, NULL},
};

/* The values of a dictionary are numbers. */
#define VALUE(number) ((void *)(long)(number))

static ValkeyModuleDict *dict_of(Program *program, const ValkeyModuleString *word) {
    int index = register_of(word);
    if (!program->dicts[index]) program->dicts[index] = ValkeyModule_CreateDict(program->ctx);
    return program->dicts[index];
}

static void mark_stale(Program *program, int dict) {
    for (int i = 0; i < REGISTERS; i++)
        if (program->iterators[i] && program->iterated[i] == dict) program->is_stale[i] = 1;
}

/* dict.set REGISTER HOW KEY NUMBER */
static void dict_set(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    ValkeyModuleDict *dict = dict_of(program, words[0]);
    void *value = VALUE(number_of(words[3]));
    size_t length;
    char *text = (char *)text_of(words[2], &length);
    int status = is_text(words[1], "set")       ? ValkeyModule_DictSet(dict, words[2], value)
                 : is_text(words[1], "replace") ? ValkeyModule_DictReplace(dict, words[2], value)
                 : is_text(words[1], "replacec") ? ValkeyModule_DictReplaceC(dict, text, length, value)
                                                : ValkeyModule_DictSetC(dict, text, length, value);
    mark_stale(program, register_of(words[0]));
    ValkeyModule_ReplyWithArray(program->ctx, 2);
    reply_status(program, status);
    ValkeyModule_ReplyWithLongLong(program->ctx, (long long)ValkeyModule_DictSize(dict));
}

static void dict_get(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    int is_missing = -1;
    void *value = ValkeyModule_DictGet(dict_of(program, words[0]), words[1], &is_missing);
    ValkeyModule_ReplyWithArray(program->ctx, 2);
    ValkeyModule_ReplyWithLongLong(program->ctx, is_missing);
    ValkeyModule_ReplyWithLongLong(program->ctx, (long)value);
}

static void dict_delete(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    void *old = VALUE(-1);
    int status = ValkeyModule_DictDel(dict_of(program, words[0]), words[1], &old);
    mark_stale(program, register_of(words[0]));
    ValkeyModule_ReplyWithArray(program->ctx, 2);
    reply_status(program, status);
    ValkeyModule_ReplyWithLongLong(program->ctx, (long)old);
}

static int is_known_operator(const char *operator) {
    static const char *const known[] = {"^", "$", "==", ">=", "<=", ">", "<"};
    for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
        if (strcmp(known[i], operator) == 0) return 1;
    return 0;
}

/* dict.seek DICT ITERATOR OPERATOR KEY */
static void dict_seek(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    int index = register_of(words[1]);
    const char *operator = text_of(words[2], NULL);
    /* Valkey leaves an iterator without a place then. */
    if (!is_known_operator(operator)) return reply_refused(program, "unknown operator");
    int same = program->iterators[index] && program->iterated[index] == register_of(words[0]);
    if (program->iterators[index] && !same) {
        ValkeyModule_DictIteratorStop(program->iterators[index]);
        program->iterators[index] = NULL;
    }
    int status = VALKEYMODULE_OK;
    if (same) status = ValkeyModule_DictIteratorReseek(program->iterators[index], operator, words[3]);
    else program->iterators[index] = ValkeyModule_DictIteratorStart(dict_of(program, words[0]), operator, words[3]);
    program->iterated[index] = register_of(words[0]);
    program->is_stale[index] = 0;
    reply_status(program, status);
}

/* dict.step ITERATOR DIRECTION STEPS */
static void dict_step(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    int index = register_of(words[0]);
    ValkeyModuleDictIter *iterator = program->iterators[index];
    if (!iterator || program->is_stale[index]) return reply_refused(program, "no iterator");
    int is_forward = is_text(words[1], "next");
    long steps = (long)(number_of(words[2]) & 7), taken = 0;
    ValkeyModule_ReplyWithArray(program->ctx, VALKEYMODULE_POSTPONED_LEN);
    for (long step = 0; step < steps; step++) {
        void *value = NULL;
        ValkeyModuleString *key = is_forward ? ValkeyModule_DictNext(program->ctx, iterator, &value)
                                             : ValkeyModule_DictPrev(program->ctx, iterator, &value);
        if (!key) break;
        ValkeyModule_ReplyWithString(program->ctx, key);
        ValkeyModule_ReplyWithLongLong(program->ctx, (long)value);
        free_string(program, key);
        taken += 2;
    }
    ValkeyModule_ReplySetArrayLength(program->ctx, taken);
}

static void dict_compare(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    int index = register_of(words[0]);
    if (!program->iterators[index] || program->is_stale[index]) return reply_refused(program, "no iterator");
    const char *operator = text_of(words[1], NULL);
    if (!is_known_operator(operator)) return reply_refused(program, "unknown operator");
    reply_status(program, ValkeyModule_DictCompare(program->iterators[index], operator, words[2]));
}

const Operation dict_operations[] = {
    {"dict.set", 4, dict_set},   {"dict.get", 2, dict_get},   {"dict.delete", 2, dict_delete},
    {"dict.seek", 4, dict_seek}, {"dict.step", 3, dict_step}, {"dict.compare", 3, dict_compare},
    {NULL, 0, NULL},
};
