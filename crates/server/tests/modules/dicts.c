/* Dictionaries and their iterators. */

#include "check.h"

#define VALUE(number) ((void *)(long)(number))

static int changes(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    ValkeyModule_AutoMemory(ctx);
    ValkeyModuleDict *dict = ValkeyModule_CreateDict(ctx);
    ValkeyModuleString *name = ValkeyModule_CreateString(ctx, "name", 4);
    int is_missing;
    void *old = NULL;
    CHECK(ValkeyModule_DictSet(dict, name, VALUE(1)) == VALKEYMODULE_OK);
    CHECK(ValkeyModule_DictSet(dict, name, VALUE(2)) == VALKEYMODULE_ERR);
    CHECK(ValkeyModule_DictGet(dict, name, &is_missing) == VALUE(1) && !is_missing);
    CHECK(ValkeyModule_DictReplace(dict, name, VALUE(3)) == VALKEYMODULE_ERR);
    CHECK(ValkeyModule_DictGetC(dict, "name", 4, NULL) == VALUE(3));
    CHECK(ValkeyModule_DictReplaceC(dict, "other", 5, NULL) == VALKEYMODULE_OK);
    CHECK(ValkeyModule_DictGetC(dict, "other", 5, &is_missing) == NULL && !is_missing);
    CHECK(ValkeyModule_DictGetC(dict, "othe", 4, &is_missing) == NULL && is_missing);
    CHECK(ValkeyModule_DictSize(dict) == 2);
    CHECK(ValkeyModule_MallocSizeDict(dict) > 0);
    CHECK(ValkeyModule_DictDelC(dict, "name", 4, &old) == VALKEYMODULE_OK && old == VALUE(3));
    CHECK(ValkeyModule_DictDel(dict, name, NULL) == VALKEYMODULE_ERR);
    CHECK(ValkeyModule_DictSize(dict) == 1);
    ValkeyModule_FreeDict(ctx, dict);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

/* DICTS.WALK operator key next|prev word ...: replies with the words in the order of the walk. */
static int walk(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc < 4) return ValkeyModule_WrongArity(ctx);
    ValkeyModuleDict *dict = ValkeyModule_CreateDict(NULL);
    for (int word = 4; word < argc; word++) ValkeyModule_DictSet(dict, argv[word], VALUE(word));
    ValkeyModuleDictIter *iterator =
        ValkeyModule_DictIteratorStart(dict, ValkeyModule_StringPtrLen(argv[1], NULL), argv[2]);
    int is_forward = is_text(argv[3], "next");
    long count = 0;
    void *value;
    ValkeyModuleString *key;
    ValkeyModule_ReplyWithArray(ctx, VALKEYMODULE_POSTPONED_LEN);
    while ((key = is_forward ? ValkeyModule_DictNext(ctx, iterator, &value)
                             : ValkeyModule_DictPrev(ctx, iterator, &value))) {
        int is_same = ValkeyModule_StringCompare(key, argv[(long)value]) == 0;
        if (is_same) ValkeyModule_ReplyWithString(ctx, key);
        else ValkeyModule_ReplyWithError(ctx, "ERR the value is that of another key");
        ValkeyModule_FreeString(ctx, key);
        count++;
    }
    ValkeyModule_ReplySetArrayLength(ctx, count);
    ValkeyModule_DictIteratorStop(iterator);
    ValkeyModule_FreeDict(NULL, dict);
    return VALKEYMODULE_OK;
}

static int positions(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    ValkeyModule_AutoMemory(ctx);
    ValkeyModuleDict *dict = ValkeyModule_CreateDict(ctx);
    for (const char *letter = "bdfh"; *letter; letter++) ValkeyModule_DictSetC(dict, (void *)letter, 1, VALUE(*letter));
    ValkeyModuleString *d = ValkeyModule_CreateString(ctx, "d", 1);
    ValkeyModuleDictIter *iterator = ValkeyModule_DictIteratorStartC(dict, ">=", "c", 1);
    size_t length;
    void *value;
    CHECK(ValkeyModule_DictCompare(iterator, "==", d) == VALKEYMODULE_OK);
    CHECK(ValkeyModule_DictCompareC(iterator, ">", "c", 1) == VALKEYMODULE_OK);
    CHECK(ValkeyModule_DictCompareC(iterator, "<", "c", 1) == VALKEYMODULE_ERR);
    CHECK(*(char *)ValkeyModule_DictNextC(iterator, &length, &value) == 'd' && length == 1 && value == VALUE('d'));
    CHECK(*(char *)ValkeyModule_DictNextC(iterator, NULL, NULL) == 'f');
    CHECK(*(char *)ValkeyModule_DictPrevC(iterator, &length, &value) == 'd' && value == VALUE('d'));
    CHECK(*(char *)ValkeyModule_DictPrevC(iterator, NULL, NULL) == 'b');
    CHECK(ValkeyModule_DictPrevC(iterator, NULL, NULL) == NULL);
    CHECK(ValkeyModule_DictCompare(iterator, "<=", d) == VALKEYMODULE_ERR);
    ValkeyModule_DictIteratorReseek(iterator, "<", d);
    CHECK(*(char *)ValkeyModule_DictNextC(iterator, NULL, NULL) == 'b');
    ValkeyModule_DictIteratorReseekC(iterator, "$", NULL, 0);
    CHECK(*(char *)ValkeyModule_DictPrevC(iterator, NULL, NULL) == 'h');
    /* The next step goes on from the key where the iterator is, although the key is gone. */
    ValkeyModule_DictDelC(dict, "h", 1, NULL);
    ValkeyModule_DictDelC(dict, "f", 1, NULL);
    CHECK(*(char *)ValkeyModule_DictPrevC(iterator, NULL, NULL) == 'd');
    ValkeyModule_DictIteratorStop(iterator);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    REQUIRE(ValkeyModule_Init(ctx, "dicts", 1, VALKEYMODULE_APIVER_1));
    COMMAND("dicts.changes", changes);
    COMMAND("dicts.walk", walk);
    COMMAND("dicts.positions", positions);
    return VALKEYMODULE_OK;
}
