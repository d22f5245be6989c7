/* Parameters of all forms. Ends the process if a function of theirs runs on another thread than the load function. */

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "check.h"

static pthread_t home;
static int flag, choice, bits, sets, applies, refuses_apply;
static long long number, memory;
static unsigned long long large;
static ValkeyModuleString *text;
static int errors_of_registration[8];

static void at_home(void) {
    if (!pthread_equal(home, pthread_self())) {
        fprintf(stderr, "parameters: a function runs on another thread\n");
        abort();
    }
}

static int get_int(const char *name, void *data) {
    VALKEYMODULE_NOT_USED(name);
    at_home();
    return *(int *)data;
}

static int set_int(const char *name, int value, void *data, ValkeyModuleString **error) {
    VALKEYMODULE_NOT_USED(name);
    VALKEYMODULE_NOT_USED(error);
    at_home();
    sets++;
    *(int *)data = value;
    return VALKEYMODULE_OK;
}

/* The two numbers have the same data, so that they are applied by one call. */
static long long *number_of(const char *name) {
    return strcmp(name, "number") == 0 ? &number : &memory;
}

static long long get_number(const char *name, void *data) {
    VALKEYMODULE_NOT_USED(data);
    at_home();
    return *number_of(name);
}

static int set_number(const char *name, long long value, void *data, ValkeyModuleString **error) {
    VALKEYMODULE_NOT_USED(data);
    at_home();
    sets++;
    if (value == 13) {
        *error = ValkeyModule_CreateString(NULL, "13 is unlucky\0hidden", 20);
        return VALKEYMODULE_ERR;
    }
    if (value == 14) return VALKEYMODULE_ERR;
    *number_of(name) = value;
    return VALKEYMODULE_OK;
}

static unsigned long long get_large(const char *name, void *data) {
    VALKEYMODULE_NOT_USED(name);
    at_home();
    return *(unsigned long long *)data;
}

static int set_large(const char *name, unsigned long long value, void *data, ValkeyModuleString **error) {
    VALKEYMODULE_NOT_USED(name);
    VALKEYMODULE_NOT_USED(error);
    at_home();
    *(unsigned long long *)data = value;
    return VALKEYMODULE_OK;
}

static ValkeyModuleString *get_text(const char *name, void *data) {
    VALKEYMODULE_NOT_USED(name);
    VALKEYMODULE_NOT_USED(data);
    at_home();
    return text;
}

static int set_text(const char *name, ValkeyModuleString *value, void *data, ValkeyModuleString **error) {
    VALKEYMODULE_NOT_USED(name);
    VALKEYMODULE_NOT_USED(data);
    VALKEYMODULE_NOT_USED(error);
    at_home();
    if (text) ValkeyModule_FreeString(NULL, text);
    ValkeyModule_RetainString(NULL, value);
    text = value;
    return VALKEYMODULE_OK;
}

static int apply(ValkeyModuleCtx *ctx, void *data, ValkeyModuleString **error) {
    VALKEYMODULE_NOT_USED(data);
    at_home();
    applies++;
    ValkeyModuleCallReply *reply = ValkeyModule_Call(ctx, "INCR", "!c", "parameters:applied");
    if (reply) ValkeyModule_FreeCallReply(reply);
    if (number != memory) return VALKEYMODULE_OK;
    if (!refuses_apply) *error = ValkeyModule_CreateString(NULL, "the numbers are equal", 21);
    return VALKEYMODULE_ERR;
}

static const char *words[] = {"none", "one", "two", "both"};
static const int numbers[] = {0, 1, 2, 3};

#define BOOL(name, flags) \
    ValkeyModule_RegisterBoolConfig(ctx, name, 1, flags, get_int, set_int, NULL, &flag)

/* parameters.register: the error number of a registration after the load. */
static int late(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    errno = 0;
    CHECK(BOOL("late", VALKEYMODULE_CONFIG_DEFAULT) == VALKEYMODULE_ERR && errno == EBUSY);
    CHECK(ValkeyModule_LoadConfigs(ctx) == VALKEYMODULE_ERR);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

/* parameters.counts: calls of set functions of the boolean and the number, and of the apply function. */
static int counts(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    ValkeyModule_ReplyWithArray(ctx, 2);
    ValkeyModule_ReplyWithLongLong(ctx, sets);
    return ValkeyModule_ReplyWithLongLong(ctx, applies);
}

/* parameters.errors: the error numbers of the registrations that had to fail. */
static int errors(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    ValkeyModule_ReplyWithArray(ctx, 6);
    for (int i = 0; i < 6; i++) ValkeyModule_ReplyWithLongLong(ctx, errors_of_registration[i]);
    return VALKEYMODULE_OK;
}

/* parameters.get NAME: CONFIG GET as a call of the module. */
static int get(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    ValkeyModuleCallReply *reply = ValkeyModule_Call(ctx, "CONFIG", "Ecs", "GET", argv[1]);
    ValkeyModule_ReplyWithCallReply(ctx, reply);
    ValkeyModule_FreeCallReply(reply);
    return VALKEYMODULE_OK;
}

/* parameters.set NAME VALUE: CONFIG SET as a call of the module. */
static int set(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 3) return ValkeyModule_WrongArity(ctx);
    ValkeyModuleCallReply *reply = ValkeyModule_Call(ctx, "CONFIG", "Ecss", "SET", argv[1], argv[2]);
    ValkeyModule_ReplyWithCallReply(ctx, reply);
    ValkeyModule_FreeCallReply(reply);
    return VALKEYMODULE_OK;
}

static int note_error(int result) {
    return result == VALKEYMODULE_OK ? 0 : errno;
}

int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    REQUIRE(ValkeyModule_Init(ctx, "parameters", 1, VALKEYMODULE_APIVER_1));
    home = pthread_self();
    REQUIRE(ValkeyModule_RegisterBoolConfig(ctx, "flag", 1, VALKEYMODULE_CONFIG_DEFAULT, get_int, set_int, NULL, &flag));
    REQUIRE(ValkeyModule_RegisterNumericConfig(
        ctx, "number", 5, VALKEYMODULE_CONFIG_DEFAULT, -10, 1000000, get_number, set_number, apply, NULL));
    REQUIRE(ValkeyModule_RegisterNumericConfig(
        ctx, "memory", 1024, VALKEYMODULE_CONFIG_MEMORY, 0, LLONG_MAX, get_number, set_number, apply, NULL));
    REQUIRE(ValkeyModule_RegisterUnsignedNumericConfig(
        ctx, "large", ULLONG_MAX, VALKEYMODULE_CONFIG_UNSIGNED, 1, ULLONG_MAX, get_large, set_large, NULL, &large));
    REQUIRE(ValkeyModule_RegisterStringConfig(
        ctx, "text", NULL, VALKEYMODULE_CONFIG_SENSITIVE, get_text, set_text, NULL, NULL));
    REQUIRE(ValkeyModule_RegisterEnumConfig(
        ctx, "choice", 1, VALKEYMODULE_CONFIG_DENY_LOADING, words, numbers, 4, get_int, set_int, NULL, &choice));
    REQUIRE(ValkeyModule_RegisterEnumConfig(
        ctx, "Bits", 3, VALKEYMODULE_CONFIG_BITFLAGS, words, numbers, 3, get_int, set_int, NULL, &bits));
    REQUIRE(BOOL("fixed", VALKEYMODULE_CONFIG_IMMUTABLE));
    REQUIRE(BOOL("hidden", VALKEYMODULE_CONFIG_HIDDEN));
    REQUIRE(BOOL("protected", VALKEYMODULE_CONFIG_PROTECTED));
    int *errors_so_far = errors_of_registration;
    *errors_so_far++ = note_error(BOOL("FLAG", VALKEYMODULE_CONFIG_DEFAULT));
    *errors_so_far++ = note_error(BOOL("wrong name", VALKEYMODULE_CONFIG_DEFAULT));
    *errors_so_far++ = note_error(BOOL("", VALKEYMODULE_CONFIG_DEFAULT));
    *errors_so_far++ = note_error(BOOL("unknown", 1 << 20));
    *errors_so_far++ = note_error(BOOL("memory-flag", VALKEYMODULE_CONFIG_MEMORY));
    *errors_so_far++ = note_error(BOOL("bits-flag", VALKEYMODULE_CONFIG_BITFLAGS));
    COMMAND("parameters.register", late);
    COMMAND("parameters.counts", counts);
    COMMAND("parameters.errors", errors);
    COMMAND("parameters.get", get);
    COMMAND("parameters.set", set);
    if (argc > 0 && is_text(argv[0], "noload")) return VALKEYMODULE_OK;
    refuses_apply = argc > 0 && is_text(argv[0], "silent");
    return ValkeyModule_LoadConfigs(ctx);
}

int ValkeyModule_OnUnload(ValkeyModuleCtx *ctx) {
    if (text) ValkeyModule_FreeString(ctx, text);
    text = NULL;
    return VALKEYMODULE_OK;
}
