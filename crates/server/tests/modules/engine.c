/* A scripting engine. Each line of a library is a function: NAME FLAGS OPERATION [WORD ...]; a script is one line
 * without the name and the flags. Operations:
 *
 *   say WORD        replies with the word
 *   show            replies with the numbers of keys and of arguments, and all of them
 *   call WORD ...   calls a command, in script mode, and replies with its reply; "$" is the first key
 *   wait            waits until it is killed
 *
 * Ends the process if a function runs on another thread than the load function, or if it is told to free code twice. */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"

#define MAX_FUNCTIONS 32

typedef struct Code {
    uint64_t magic;
    char *line;
} Code;

static pthread_t home;
static long long live, resets, lazy_resets;
static uint64_t version = 4;
static int data_of_engine, is_stopping;

static void at_home(void *engine) {
    if (!pthread_equal(home, pthread_self()) || engine != &data_of_engine) {
        fprintf(stderr, "engine: a function runs on another thread, or for another engine\n");
        abort();
    }
}

static ValkeyModuleScriptingEngineCompiledFunction *compile_line(char *name, char *flags, const char *line) {
    ValkeyModuleScriptingEngineCompiledFunction *function = ValkeyModule_Alloc(sizeof(*function));
    Code *code = ValkeyModule_Alloc(sizeof(*code));
    *code = (Code){.magic = 0xc0de, .line = ValkeyModule_Strdup(line)};
    *function = (ValkeyModuleScriptingEngineCompiledFunction){
        .version = 1,
        .name = name ? ValkeyModule_CreateString(NULL, name, strlen(name)) : NULL,
        .function = code,
        .desc = name ? ValkeyModule_CreateString(NULL, "described", 9) : NULL,
        .f_flags = flags && strcmp(flags, "ro") == 0 ? VMSE_SCRIPT_FLAG_NO_WRITES : 0,
    };
    live++;
    return function;
}

static ValkeyModuleScriptingEngineCompiledFunction **compile(
    ValkeyModuleCtx *ctx, ValkeyModuleScriptingEngineCtx *engine, ValkeyModuleScriptingEngineSubsystemType type,
    const char *code, size_t length, size_t timeout, size_t *count, ValkeyModuleString **error) {
    VALKEYMODULE_NOT_USED(ctx);
    VALKEYMODULE_NOT_USED(timeout);
    at_home(engine);
    if (strlen(code) != length) abort();
    if (strstr(code, "wrong")) {
        *error = ValkeyModule_CreateString(NULL, "it is wrong", 11);
        return NULL;
    }
    ValkeyModuleScriptingEngineCompiledFunction **functions = ValkeyModule_Calloc(MAX_FUNCTIONS, sizeof(*functions));
    char *copy = ValkeyModule_Strdup(code), *rest = copy, *line;
    while ((line = strsep(&rest, "\n"))) {
        if (!*line || *count == MAX_FUNCTIONS) continue;
        char *name = NULL, *flags = NULL;
        if (type == VMSE_FUNCTION) {
            name = strsep(&line, " ");
            flags = strsep(&line, " ");
        }
        functions[(*count)++] = compile_line(name, flags, line ? line : "");
    }
    ValkeyModule_Free(copy);
    return functions;
}

static void free_function(
    ValkeyModuleCtx *ctx, ValkeyModuleScriptingEngineCtx *engine, ValkeyModuleScriptingEngineSubsystemType type,
    ValkeyModuleScriptingEngineCompiledFunction *function) {
    VALKEYMODULE_NOT_USED(type);
    at_home(engine);
    Code *code = function->function;
    if (code->magic != 0xc0de) abort();
    code->magic = 0;
    ValkeyModule_Free(code->line);
    ValkeyModule_Free(code);
    if (function->name) ValkeyModule_FreeString(ctx, function->name);
    if (function->desc) ValkeyModule_FreeString(ctx, function->desc);
    ValkeyModule_Free(function);
    live--;
}

static void show(ValkeyModuleCtx *ctx, ValkeyModuleString **keys, size_t nkeys, ValkeyModuleString **args, size_t nargs) {
    ValkeyModule_ReplyWithArray(ctx, 2 + nkeys + nargs);
    ValkeyModule_ReplyWithLongLong(ctx, nkeys);
    ValkeyModule_ReplyWithLongLong(ctx, nargs);
    for (size_t i = 0; i < nkeys; i++) ValkeyModule_ReplyWithString(ctx, keys[i]);
    for (size_t i = 0; i < nargs; i++) ValkeyModule_ReplyWithString(ctx, args[i]);
}

static void call_command(ValkeyModuleCtx *ctx, char *words, ValkeyModuleString **keys, size_t nkeys) {
    ValkeyModuleString *argv[16];
    size_t argc = 0;
    char *command = strsep(&words, " "), *word;
    while ((word = strsep(&words, " ")) && argc < 16) {
        int is_key = strcmp(word, "$") == 0 && nkeys > 0;
        argv[argc++] = is_key ? ValkeyModule_CreateStringFromString(NULL, keys[0])
                              : ValkeyModule_CreateString(NULL, word, strlen(word));
    }
    ValkeyModuleCallReply *reply = ValkeyModule_Call(ctx, command, "!ESMv", argv, argc);
    ValkeyModule_ReplyWithCallReply(ctx, reply);
    ValkeyModule_FreeCallReply(reply);
    for (size_t i = 0; i < argc; i++) ValkeyModule_FreeString(NULL, argv[i]);
}

/* Shows the code to the user of the debugger, and executes the user's commands. Returns 0 if the session has failed. */
static int stop_in_debugger(const char *line) {
    int is_disconnected;
    ValkeyModuleString *error;
    ValkeyModule_ScriptingEngineDebuggerLog(ValkeyModule_CreateStringPrintf(NULL, "at %s", line), 1);
    ValkeyModule_ScriptingEngineDebuggerFlushLogs();
    ValkeyModule_ScriptingEngineDebuggerProcessCommands(&is_disconnected, &error);
    if (!error) return !is_disconnected;
    ValkeyModule_ScriptingEngineDebuggerLog(error, 0);
    return 0;
}

static void call_function(
    ValkeyModuleCtx *ctx, ValkeyModuleScriptingEngineCtx *engine, ValkeyModuleScriptingEngineServerRuntimeCtx *server,
    ValkeyModuleScriptingEngineCompiledFunction *function, ValkeyModuleScriptingEngineSubsystemType type,
    ValkeyModuleString **keys, size_t nkeys, ValkeyModuleString **args, size_t nargs) {
    VALKEYMODULE_NOT_USED(type);
    at_home(engine);
    Code *code = function->function;
    if (code->magic != 0xc0de) abort();
    if (is_stopping && !stop_in_debugger(code->line)) {
        ValkeyModule_ReplyWithError(ctx, "ERR the session has failed");
        return;
    }
    char *copy = ValkeyModule_Strdup(code->line), *rest = copy, *operation = strsep(&rest, " ");
    if (strcmp(operation, "say") == 0) {
        ValkeyModule_ReplyWithCString(ctx, rest ? rest : "");
    } else if (strcmp(operation, "show") == 0) {
        show(ctx, keys, nkeys, args, nargs);
    } else if (strcmp(operation, "call") == 0 && rest) {
        call_command(ctx, rest, keys, nkeys);
    } else if (strcmp(operation, "wait") == 0) {
        while (ValkeyModule_GetFunctionExecutionState(server) == VMSE_STATE_EXECUTING) usleep(1000);
        ValkeyModule_ReplyWithError(ctx, "ERR killed");
    } else {
        ValkeyModule_ReplyWithError(ctx, "ERR no such operation");
    }
    ValkeyModule_Free(copy);
}

static size_t function_memory(ValkeyModuleCtx *ctx, ValkeyModuleScriptingEngineCompiledFunction *function) {
    VALKEYMODULE_NOT_USED(ctx);
    VALKEYMODULE_NOT_USED(function);
    return 1;
}

static void reset_later(void *context) {
    at_home(context);
    lazy_resets++;
}

static ValkeyModuleScriptingEngineCallableLazyEnvReset *reset(
    ValkeyModuleCtx *ctx, ValkeyModuleScriptingEngineCtx *engine, ValkeyModuleScriptingEngineSubsystemType type, int async) {
    VALKEYMODULE_NOT_USED(ctx);
    VALKEYMODULE_NOT_USED(type);
    at_home(engine);
    resets++;
    if (!async) return NULL;
    ValkeyModuleScriptingEngineCallableLazyEnvReset *left = ValkeyModule_Alloc(sizeof(*left));
    *left = (ValkeyModuleScriptingEngineCallableLazyEnvReset){engine, reset_later};
    return left;
}

static ValkeyModuleScriptingEngineMemoryInfo memory(
    ValkeyModuleCtx *ctx, ValkeyModuleScriptingEngineCtx *engine, ValkeyModuleScriptingEngineSubsystemType type) {
    VALKEYMODULE_NOT_USED(ctx);
    VALKEYMODULE_NOT_USED(type);
    at_home(engine);
    return (ValkeyModuleScriptingEngineMemoryInfo){1, 100 * live, 7};
}

static int go(ValkeyModuleString **argv, size_t argc, void *context) {
    VALKEYMODULE_NOT_USED(argv);
    VALKEYMODULE_NOT_USED(argc);
    at_home(context);
    return 0;
}

static int echo(ValkeyModuleString **argv, size_t argc, void *context) {
    at_home(context);
    for (size_t i = 1; i < argc; i++) {
        const char *word = ValkeyModule_StringPtrLen(argv[i], NULL);
        ValkeyModule_ScriptingEngineDebuggerLog(ValkeyModule_CreateStringPrintf(NULL, "echo %s", word), 0);
    }
    ValkeyModule_ScriptingEngineDebuggerLogRespReplyStr("*2\r\n:1\r\n$1\r\na\r\n");
    ValkeyModule_ScriptingEngineDebuggerFlushLogs();
    return 1;
}

static const ValkeyModuleScriptingEngineDebuggerCommandParam words[] = {{"first", 0, 0}, {"second", 1, 0}};
static const ValkeyModuleScriptingEngineDebuggerCommand commands[] = {
    VALKEYMODULE_SCRIPTING_ENGINE_DEBUGGER_COMMAND_WITH_CTX("go", 1, NULL, 0, "Goes on.", 0, go, &data_of_engine),
    VALKEYMODULE_SCRIPTING_ENGINE_DEBUGGER_COMMAND_WITH_CTX("echo", 2, words, 2, "Echoes.", 0, echo, &data_of_engine),
};

static ValkeyModuleScriptingEngineDebuggerEnableRet enable(
    ValkeyModuleCtx *ctx, ValkeyModuleScriptingEngineCtx *engine, ValkeyModuleScriptingEngineSubsystemType type,
    const ValkeyModuleScriptingEngineDebuggerCommand **list, size_t *count) {
    VALKEYMODULE_NOT_USED(ctx);
    at_home(engine);
    *list = commands;
    *count = 2;
    return type == VMSE_EVAL ? VMSE_DEBUG_ENABLED : VMSE_DEBUG_ENABLE_FAIL;
}

static void end(
    ValkeyModuleCtx *ctx, ValkeyModuleScriptingEngineCtx *engine, ValkeyModuleScriptingEngineSubsystemType type) {
    VALKEYMODULE_NOT_USED(ctx);
    VALKEYMODULE_NOT_USED(type);
    at_home(engine);
    is_stopping = 0;
}

static void begin(
    ValkeyModuleCtx *ctx, ValkeyModuleScriptingEngineCtx *engine, ValkeyModuleScriptingEngineSubsystemType type,
    ValkeyModuleString *source) {
    VALKEYMODULE_NOT_USED(ctx);
    VALKEYMODULE_NOT_USED(type);
    at_home(engine);
    is_stopping = !is_text(source, "");
}

/* engine.counts: live code, resets, and resets that came later. */
static int counts(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    ValkeyModule_ReplyWithArray(ctx, 3);
    ValkeyModule_ReplyWithLongLong(ctx, live);
    ValkeyModule_ReplyWithLongLong(ctx, resets);
    return ValkeyModule_ReplyWithLongLong(ctx, lazy_resets);
}

int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    REQUIRE(ValkeyModule_Init(ctx, "engine", 1, VALKEYMODULE_APIVER_1));
    home = pthread_self();
    ValkeyModuleScriptingEngineMethods methods = {
        .version = version,
        .compile_code = compile,
        .free_function = free_function,
        .call_function = call_function,
        .get_function_memory_overhead = function_memory,
        .reset_env = reset,
        .get_memory_info = memory,
        .debugger_enable = enable,
        .debugger_disable = end,
        .debugger_start = begin,
        .debugger_end = end,
    };
    methods.version = 5;
    if (ValkeyModule_RegisterScriptingEngine(ctx, "tiny", &data_of_engine, &methods) == VALKEYMODULE_OK)
        return VALKEYMODULE_ERR;
    methods.version = version;
    if (ValkeyModule_RegisterScriptingEngine(ctx, "LUA", &data_of_engine, &methods) == VALKEYMODULE_OK)
        return VALKEYMODULE_ERR;
    REQUIRE(ValkeyModule_RegisterScriptingEngine(ctx, "tiny", &data_of_engine, &methods));
    COMMAND("engine.counts", counts);
    return VALKEYMODULE_OK;
}

int ValkeyModule_OnUnload(ValkeyModuleCtx *ctx) {
    REQUIRE(ValkeyModule_UnregisterScriptingEngine(ctx, "TINY"));
    if (live != 0) abort();
    return ValkeyModule_UnregisterScriptingEngine(ctx, "tiny") == VALKEYMODULE_ERR ? VALKEYMODULE_OK : VALKEYMODULE_ERR;
}
