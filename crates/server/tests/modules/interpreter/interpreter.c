/* The commands that run programs (see program.h), for comparisons of servers. */

#include "program.h"

#include <pthread.h>
#include <stdarg.h>

static _Thread_local Program *innermost;

int is_in_script(const Program *program) {
    return (ValkeyModule_GetContextFlags(program->ctx) & VALKEYMODULE_CTX_FLAGS_LUA) != 0;
}

void reply_refused(Program *program, const char *reason) {
    if (is_in_script(program)) ValkeyModule_ReplyWithCString(program->ctx, reason);
    else ValkeyModule_ReplyWithErrorFormat(program->ctx, "REFUSED %s", reason);
}

void reply_status(Program *program, int status) {
    ValkeyModule_ReplyWithSimpleString(program->ctx, status == VALKEYMODULE_OK ? "OK" : "ERR");
}

/* An error number counts only where the API documents it: if the call has failed. */
void reply_with_errno(Program *program, long long result, int error) {
    ValkeyModule_ReplyWithArray(program->ctx, 2);
    ValkeyModule_ReplyWithLongLong(program->ctx, result);
    ValkeyModule_ReplyWithLongLong(program->ctx, error);
}

void reply_string(Program *program, ValkeyModuleString *string) {
    if (string) ValkeyModule_ReplyWithString(program->ctx, string);
    else ValkeyModule_ReplyWithNull(program->ctx);
}

void reply_id(Program *program, ValkeyModuleStreamID id) {
    ValkeyModuleString *text = ValkeyModule_CreateStringFromStreamID(program->ctx, &id);
    ValkeyModule_ReplyWithString(program->ctx, text);
    free_string(program, text);
}

long long number_of(const ValkeyModuleString *word) {
    long long number = 0;
    return ValkeyModule_StringToLongLong(word, &number) == VALKEYMODULE_OK ? number : 0;
}

double double_of(const ValkeyModuleString *word) {
    double number = 0;
    return ValkeyModule_StringToDouble(word, &number) == VALKEYMODULE_OK ? number : 0;
}

int register_of(const ValkeyModuleString *word) {
    return (int)((unsigned long long)number_of(word) % REGISTERS);
}

const char *text_of(const ValkeyModuleString *word, size_t *length) {
    return ValkeyModule_StringPtrLen(word, length);
}

void free_string(Program *program, ValkeyModuleString *string) {
    if (string) ValkeyModule_FreeString(program->ctx, string);
}

void keep_string(Program *program, int index, ValkeyModuleString *string) {
    free_string(program, program->strings[index]);
    program->strings[index] = string;
}

int is_held(const Program *program, const ValkeyModuleString *name, int writes_only) {
    for (const Program *each = program; each; each = each->outer) {
        for (int i = 0; i < REGISTERS; i++) {
            const Handle *handle = &each->handles[i];
            if (!handle->key || (writes_only && !(handle->mode & VALKEYMODULE_WRITE))) continue;
            if (ValkeyModule_StringCompare(handle->name, name) == 0) return 1;
        }
    }
    return 0;
}

void close_handle(Handle *handle) {
    if (!handle->key) return;
    ValkeyModule_CloseKey(handle->key);
    *handle = (Handle){0};
}

static const Operation *find(const ValkeyModuleString *name) {
    static const Operation *const lists[] = {
        string_operations, dict_operations, reply_operations, key_operations, collection_operations,
        call_operations, user_operations, value_operations, server_operations,
    };
    for (size_t list = 0; list < sizeof(lists) / sizeof(*lists); list++)
        for (const Operation *operation = lists[list]; operation->name; operation++)
            if (is_text(name, operation->name)) return operation;
    return NULL;
}

long run_operations(Program *program, ValkeyModuleString **words, int count) {
    long elements = 0;
    for (int at = 0; at + 1 < count; elements++) {
        const Operation *operation = find(words[at]);
        long long arguments = number_of(words[at + 1]);
        if (arguments < 0 || arguments > count - at - 2) arguments = count - at - 2;
        if (!operation) reply_refused(program, "no such operation");
        else if (arguments < operation->arguments) reply_refused(program, "arguments are missing");
        else operation->run(program, words + at + 2, (int)arguments);
        at += 2 + (int)arguments;
    }
    return elements;
}

static void free_registers(Program *program) {
    for (int i = 0; i < REGISTERS; i++) {
        close_handle(&program->handles[i]);
        free_string(program, program->strings[i]);
        if (program->replies[i]) ValkeyModule_FreeCallReply(program->replies[i]);
        if (program->iterators[i]) ValkeyModule_DictIteratorStop(program->iterators[i]);
        if (program->dicts[i]) ValkeyModule_FreeDict(program->ctx, program->dicts[i]);
    }
    if (program->has_context_user) ValkeyModule_SetContextUser(program->ctx, NULL);
    if (program->user) ValkeyModule_FreeModuleUser(program->user);
}

/* program.run KEY KEY KEY WORD...: with the word `auto` first, the server frees what the registers hold. */
int run_program(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc < 4) return ValkeyModule_WrongArity(ctx);
    Program program = {.ctx = ctx, .key_names = argv + 1, .outer = innermost};
    int first = 4;
    if (argc > 4 && is_text(argv[4], "auto")) {
        ValkeyModule_AutoMemory(ctx);
        program.has_auto_memory = 1;
        first++;
    }
    innermost = &program;
    ValkeyModule_ReplyWithArray(ctx, VALKEYMODULE_POSTPONED_LEN);
    long elements = run_operations(&program, argv + first, argc - first);
    ValkeyModule_ReplySetArrayLength(ctx, elements);
    innermost = program.outer;
    if (!program.has_auto_memory) {
        free_registers(&program);
    } else {
        for (int i = 0; i < REGISTERS; i++)
            if (program.iterators[i]) ValkeyModule_DictIteratorStop(program.iterators[i]);
        if (program.has_context_user) ValkeyModule_SetContextUser(ctx, NULL);
        if (program.user) ValkeyModule_FreeModuleUser(program.user);
    }
    return VALKEYMODULE_OK;
}

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char *log_lines[1024];
static size_t log_length;

void add_to_log(const char *format, ...) {
    char *line;
    va_list values;
    va_start(values, format);
    int length = vasprintf(&line, format, values);
    va_end(values);
    if (length < 0) return;
    pthread_mutex_lock(&log_lock);
    if (log_length < sizeof(log_lines) / sizeof(*log_lines)) log_lines[log_length++] = line;
    else free(line);
    pthread_mutex_unlock(&log_lock);
}

/* program.log: shows and empties the log. */
int show_log(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    pthread_mutex_lock(&log_lock);
    ValkeyModule_ReplyWithArray(ctx, (long)log_length);
    for (size_t i = 0; i < log_length; i++) {
        ValkeyModule_ReplyWithCString(ctx, log_lines[i]);
        free(log_lines[i]);
    }
    log_length = 0;
    pthread_mutex_unlock(&log_lock);
    return VALKEYMODULE_OK;
}

/* With the argument `events`, the module subscribes to key events. */
int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    REQUIRE(ValkeyModule_Init(ctx, "program", 1, VALKEYMODULE_APIVER_1));
    ValkeyModule_SetModuleOptions(ctx, VALKEYMODULE_OPTIONS_HANDLE_IO_ERRORS);
    REQUIRE(ValkeyModule_CreateCommand(ctx, "program.run", run_program, "write", 1, 3, 1));
    REQUIRE(ValkeyModule_CreateCommand(ctx, "program.read", run_program, "readonly", 1, 3, 1));
    COMMAND("program.log", show_log);
    COMMAND("program.end", end_calls);
    REQUIRE(register_type(ctx));
    REQUIRE(register_server(ctx));
    if (argc > 0 && is_text(argv[0], "events")) REQUIRE(register_events(ctx));
    return VALKEYMODULE_OK;
}
