/* Operations that call commands and read their replies, and those about users and permissions. */

#include "program.h"

#include <strings.h>

enum { DEEPEST = 8 };

/* Describes a reply by the functions that read it. */
static void reply_parts(Program *program, ValkeyModuleCallReply *reply, int depth) {
    ValkeyModuleCtx *ctx = program->ctx;
    int type = ValkeyModule_CallReplyType(reply);
    size_t length = ValkeyModule_CallReplyLength(reply), text_length = 0;
    /* Valkey leaves the attributes of elements undefined. */
    ValkeyModuleCallReply *attribute = depth == 0 ? ValkeyModule_CallReplyAttribute(reply) : NULL;
    ValkeyModule_ReplyWithArray(ctx, 5);
    ValkeyModule_ReplyWithLongLong(ctx, type);
    ValkeyModule_ReplyWithLongLong(ctx, (long long)length);
    const char *text = ValkeyModule_CallReplyStringPtr(reply, &text_length), *format = NULL;
    if (text) ValkeyModule_ReplyWithStringBuffer(ctx, text, text_length);
    else ValkeyModule_ReplyWithNull(ctx);
    /* Reading their elements ends Valkey. */
    if (attribute) ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_CallReplyType(attribute));
    else ValkeyModule_ReplyWithNull(ctx);
    ValkeyModuleCallReply *key = NULL, *value = NULL;
    switch (type) {
    case VALKEYMODULE_REPLY_INTEGER: ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_CallReplyInteger(reply)); break;
    case VALKEYMODULE_REPLY_DOUBLE: ValkeyModule_ReplyWithDouble(ctx, ValkeyModule_CallReplyDouble(reply)); break;
    case VALKEYMODULE_REPLY_BOOL: ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_CallReplyBool(reply)); break;
    case VALKEYMODULE_REPLY_BIG_NUMBER:
        text = ValkeyModule_CallReplyBigNumber(reply, &text_length);
        ValkeyModule_ReplyWithStringBuffer(ctx, text, text_length);
        break;
    case VALKEYMODULE_REPLY_VERBATIM_STRING:
        text = ValkeyModule_CallReplyVerbatim(reply, &text_length, &format);
        ValkeyModule_ReplyWithArray(ctx, 2);
        ValkeyModule_ReplyWithStringBuffer(ctx, text, text_length);
        ValkeyModule_ReplyWithStringBuffer(ctx, format, 3);
        break;
    case VALKEYMODULE_REPLY_ARRAY:
    case VALKEYMODULE_REPLY_SET:
        if (depth >= DEEPEST) length = 0;
        ValkeyModule_ReplyWithArray(ctx, (long)length);
        for (size_t i = 0; i < length; i++)
            reply_parts(program, type == VALKEYMODULE_REPLY_SET ? ValkeyModule_CallReplySetElement(reply, i)
                                                               : ValkeyModule_CallReplyArrayElement(reply, i),
                        depth + 1);
        break;
    case VALKEYMODULE_REPLY_MAP:
    case VALKEYMODULE_REPLY_ATTRIBUTE:
        if (depth >= DEEPEST) length = 0;
        ValkeyModule_ReplyWithArray(ctx, 2 * (long)length);
        for (size_t i = 0; i < length; i++) {
            if (type == VALKEYMODULE_REPLY_MAP) ValkeyModule_CallReplyMapElement(reply, i, &key, &value);
            else ValkeyModule_CallReplyAttributeElement(reply, i, &key, &value);
            reply_parts(program, key, depth + 1);
            reply_parts(program, value, depth + 1);
        }
        break;
    default: ValkeyModule_ReplyWithNull(ctx);
    }
}

/* Calls of readers for other types than that of the reply, and places behind its end. */
static void reply_misread(Program *program, ValkeyModuleCallReply *reply) {
    ValkeyModuleCtx *ctx = program->ctx;
    ValkeyModuleCallReply *key = NULL, *value = NULL;
    size_t length = 0;
    const char *format = NULL;
    int type = ValkeyModule_CallReplyType(reply);
    ValkeyModule_ReplyWithArray(ctx, 8);
    ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_CallReplyInteger(reply));
    ValkeyModule_ReplyWithLongLong(ctx, type == VALKEYMODULE_REPLY_DOUBLE || ValkeyModule_CallReplyDouble(reply) !=
                                                                                 ValkeyModule_CallReplyDouble(reply));
    ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_CallReplyBool(reply));
    ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_CallReplyBigNumber(reply, &length) != NULL);
    ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_CallReplyVerbatim(reply, &length, &format) != NULL);
    ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_CallReplyArrayElement(reply, 1000) != NULL);
    ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_CallReplySetElement(reply, 1000) != NULL);
    ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_CallReplyMapElement(reply, 1000, &key, &value));
}

/* Commands that may delete the value of an open key without its name. */
static int is_about_all_keys(const char *command) {
    static const char *const all[] = {"flushall", "flushdb", "swapdb", "debug", "function", "program.reset"};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        if (strcasecmp(all[i], command) == 0) return 1;
    return 0;
}

static int is_any_open(const Program *program) {
    for (; program; program = program->outer)
        for (int i = 0; i < REGISTERS; i++)
            if (program->handles[i].key) return 1;
    return 0;
}

static int is_any_held(Program *program, ValkeyModuleString **words, int count) {
    for (int i = 0; i < count; i++)
        if (is_held(program, words[i], 0)) return 1;
    return 0;
}

/* Blocked calls that go on behind the end of their program. */
enum { MOST_PENDING = 32 };
typedef struct {
    ValkeyModuleCallReply *reply;
    char *name;
} Pending;
static Pending pending[MOST_PENDING];

static void on_unblocked(ValkeyModuleCtx *ctx, ValkeyModuleCallReply *reply, void *data) {
    VALKEYMODULE_NOT_USED(ctx);
    Pending *call = data;
    size_t length;
    const char *bytes = ValkeyModule_CallReplyProto(reply, &length);
    add_to_log("unblocked %s: %.*s", call->name, (int)length, bytes);
    ValkeyModule_FreeCallReply(reply);
}

/* Aborts a call if it still waits. */
static void end_call(Pending *call) {
    void *data = NULL;
    int status = ValkeyModule_CallReplyPromiseAbort(call->reply, &data);
    add_to_log("abort %s: %d %d", call->name, status, data == call);
    ValkeyModule_FreeCallReply(call->reply);
    ValkeyModule_Free(call->name);
    *call = (Pending){0};
}

/* Keeps a blocked call, or aborts it at once. A reply that the server frees itself cannot be kept. */
static void keep_blocked_call(Program *program, ValkeyModuleCallReply *reply, const char *name, int may_wait) {
    int place = 0;
    while (place < MOST_PENDING - 1 && pending[place].reply) place++;
    if (pending[place].reply) end_call(&pending[place]);
    pending[place] = (Pending){reply, ValkeyModule_Strdup(name)};
    ValkeyModule_CallReplyPromiseSetUnblockHandler(reply, on_unblocked, &pending[place]);
    if (!may_wait || program->has_auto_memory) end_call(&pending[place]);
}

/* program.end: aborts what still waits. */
int end_calls(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    long long ended = 0;
    for (int i = 0; i < MOST_PENDING; i++) {
        if (!pending[i].reply) continue;
        end_call(&pending[i]);
        ended++;
    }
    return ValkeyModule_ReplyWithLongLong(ctx, ended);
}

static void keep_reply(Program *program, int index, ValkeyModuleCallReply *reply) {
    if (program->replies[index]) ValkeyModule_FreeCallReply(program->replies[index]);
    program->replies[index] = reply;
}

/* call REGISTER FLAGS COMMAND ARGUMENT...: replies with the type of the reply, or with the error number. */
static void call(Program *program, ValkeyModuleString **words, int count) {
    /* The command may delete or replace the value of an open key. */
    if (is_any_held(program, words + 3, count - 3)) return reply_refused(program, "the key is open");
    if (is_about_all_keys(text_of(words[2], NULL)) && is_any_open(program))
        return reply_refused(program, "a key is open");
    const char *flags = text_of(words[1], NULL);
    /* Valkey ends if a script runs another one. */
    if (is_in_script(program) && strncasecmp(text_of(words[2], NULL), "eval", 4) == 0)
        return reply_refused(program, "a script in a script");
    /* Valkey ends if it has no text for the error. */
    if (strchr(flags, 'S') && ((!strchr(flags, 'E') && !strchr(flags, 'D')) || strchr(flags, 'z')))
        return reply_refused(program, "the mode of scripts without texts of errors");
    int index = register_of(words[0]);
    char format[64];
    snprintf(format, sizeof(format), "%.32sv", text_of(words[1], NULL));
    keep_reply(program, index, NULL);
    errno = 0;
    ValkeyModuleCallReply *reply =
        ValkeyModule_Call(program->ctx, text_of(words[2], NULL), format, words + 3, (size_t)(count - 3));
    int error = errno;
    if (!reply) return reply_with_errno(program, -1, error);
    int type = ValkeyModule_CallReplyType(reply);
    ValkeyModule_ReplyWithLongLong(program->ctx, type);
    if (type != VALKEYMODULE_REPLY_PROMISE) return keep_reply(program, index, reply);
    keep_blocked_call(program, reply, text_of(words[2], NULL), is_text(words[count - 1], "0"));
}

/* call.mixed REGISTER FLAGS COMMAND KEY WORD NUMBER: the arguments in other forms than one vector. */
static void call_mixed(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    if (is_any_held(program, words + 3, 3)) return reply_refused(program, "the key is open");
    char format[64];
    snprintf(format, sizeof(format), "%.16ssblc%.8s", text_of(words[1], NULL), text_of(words[1], NULL));
    size_t length;
    const char *text = text_of(words[4], &length);
    errno = 0;
    ValkeyModuleCallReply *reply = ValkeyModule_Call(program->ctx, text_of(words[2], NULL), format, words[3], text,
                                                     length, number_of(words[5]), text);
    int error = errno;
    if (!reply) return reply_with_errno(program, -1, error);
    keep_reply(program, register_of(words[0]), reply);
    ValkeyModule_ReplyWithLongLong(program->ctx, ValkeyModule_CallReplyType(reply));
}

/* call.show REGISTER reply|parts|misread|bytes|string */
static void show(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    ValkeyModuleCallReply *reply = program->replies[register_of(words[0])];
    if (!reply) return reply_refused(program, "no reply");
    size_t length = 0;
    const char *bytes = ValkeyModule_CallReplyProto(reply, &length);
    if (is_text(words[1], "parts")) return reply_parts(program, reply, 0);
    if (is_text(words[1], "misread")) return reply_misread(program, reply);
    if (is_text(words[1], "bytes") || is_in_script(program)) {
        ValkeyModule_ReplyWithStringBuffer(program->ctx, bytes, length);
        return;
    }
    if (is_text(words[1], "string")) {
        ValkeyModuleString *string = ValkeyModule_CreateStringFromCallReply(reply);
        reply_string(program, string);
        free_string(program, string);
        return;
    }
    if (length == 0) reply_refused(program, "an empty reply");
    else if (ValkeyModule_ReplyWithCallReply(program->ctx, reply) != VALKEYMODULE_OK)
        reply_refused(program, "the reply has another protocol");
}

/* propagate FLAGS COMMAND ARGUMENT...; without a command, the running one. */
static void propagate(Program *program, ValkeyModuleString **words, int count) {
    if (count < 2) return reply_status(program, ValkeyModule_ReplicateVerbatim(program->ctx));
    char format[64];
    snprintf(format, sizeof(format), "%.32sv", text_of(words[0], NULL));
    reply_status(program, ValkeyModule_Replicate(program->ctx, text_of(words[1], NULL), format, words + 2,
                                                 (size_t)(count - 2)));
}

/* nested WORD...: another program within this one. */
static void nested(Program *program, ValkeyModuleString **words, int count) {
    ValkeyModuleCallReply *reply =
        ValkeyModule_Call(program->ctx, "program.run", "Esssv", program->key_names[0], program->key_names[1],
                          program->key_names[2], words, (size_t)count);
    if (!reply) return reply_with_errno(program, -1, errno);
    size_t length;
    const char *bytes = ValkeyModule_CallReplyProto(reply, &length);
    if (is_in_script(program)) ValkeyModule_ReplyWithStringBuffer(program->ctx, bytes, length);
    else if (ValkeyModule_ReplyWithCallReply(program->ctx, reply) != VALKEYMODULE_OK)
        reply_refused(program, "the reply has another protocol");
    ValkeyModule_FreeCallReply(reply);
}

const Operation call_operations[] = {
    {"call", 3, call},           {"call.mixed", 6, call_mixed}, {"call.show", 2, show},
    {"propagate", 1, propagate}, {"nested", 1, nested},         {NULL, 0, NULL},
};

/* user.rules RULE...: the rules, one after the other or in one text, for the user of the program. */
static void set_rules(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    if (!program->user) program->user = ValkeyModule_CreateModuleUser("mine");
    ValkeyModuleString *error = NULL;
    const char *rules = text_of(words[0], NULL);
    int status = is_text(words[1], "one")
                     ? ValkeyModule_SetModuleUserACL(program->user, rules)
                     : ValkeyModule_SetModuleUserACLString(program->ctx, program->user, rules, &error);
    ValkeyModuleString *described = ValkeyModule_GetModuleUserACLString(program->user);
    ValkeyModule_ReplyWithArray(program->ctx, 3);
    reply_status(program, status);
    reply_string(program, error);
    reply_string(program, described);
    free_string(program, error);
    free_string(program, described);
}

static ValkeyModuleUser *user_named(Program *program, ValkeyModuleString *name) {
    return is_text(name, "mine") ? program->user : ValkeyModule_GetModuleUserFromUserName(name);
}

/* user.check NAME key|prefix|channel WORD FLAGS */
static void check_name(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    ValkeyModuleUser *user = user_named(program, words[0]);
    if (!user) return reply_refused(program, "no user");
    size_t length;
    const char *text = text_of(words[2], &length);
    int flags = (int)number_of(words[3]);
    errno = 0;
    int status = is_text(words[1], "key")      ? ValkeyModule_ACLCheckKeyPermissions(user, words[2], flags)
                 : is_text(words[1], "prefix") ? ValkeyModule_ACLCheckKeyPrefixPermissions(user, text, length,
                                                                                         (unsigned)flags)
                                               : ValkeyModule_ACLCheckChannelPermissions(user, words[2], flags);
    reply_with_errno(program, status, status == VALKEYMODULE_OK ? 0 : errno);
    if (user != program->user) ValkeyModule_FreeModuleUser(user);
}

/* user.may NAME DATABASE WORD...: whether the user may run a command; -2 asks without a database. */
static void check_command(Program *program, ValkeyModuleString **words, int count) {
    ValkeyModuleUser *user = user_named(program, words[0]);
    if (!user) return reply_refused(program, "no user");
    long long database = number_of(words[1]);
    ValkeyModuleACLLogEntryReason reason = VALKEYMODULE_ACL_LOG_AUTH;
    errno = 0;
    int status = database == -2
                     ? ValkeyModule_ACLCheckCommandPermissions(user, words + 2, count - 2)
                     : ValkeyModule_ACLCheckPermissions(user, words + 2, count - 2, (int)database, &reason);
    int error = status == VALKEYMODULE_OK ? 0 : errno;
    ValkeyModule_ReplyWithArray(program->ctx, 3);
    ValkeyModule_ReplyWithLongLong(program->ctx, status);
    ValkeyModule_ReplyWithLongLong(program->ctx, error);
    ValkeyModule_ReplyWithLongLong(program->ctx, reason);
    if (user != program->user) ValkeyModule_FreeModuleUser(user);
}

/* user.act yes|no: calls with the flag C run as the user of the program. */
static void act(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    int begins = is_text(words[0], "yes");
    if (begins && !program->user) return reply_refused(program, "no user");
    ValkeyModule_SetContextUser(program->ctx, begins ? program->user : NULL);
    program->has_context_user = begins;
    ValkeyModuleString *name = ValkeyModule_GetCurrentUserName(program->ctx);
    reply_string(program, name);
    free_string(program, name);
}

const Operation user_operations[] = {
    {"user.rules", 2, set_rules}, {"user.check", 4, check_name}, {"user.may", 3, check_command},
    {"user.act", 1, act},         {NULL, 0, NULL},
};
