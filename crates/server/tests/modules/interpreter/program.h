/* A program is a list of calls of the module API, given as words: NAME COUNT ARGUMENT..., for each call.
 *
 * Calls share the registers of their program. Each adds one element to the reply of the command, also if it cannot be
 * made. A call that would be unsafe in Valkey (it uses freed memory, or ends the server) is refused here, in the same
 * way for all servers, so that generated programs need not know the state of the registers. */

#ifndef PROGRAM_H
#define PROGRAM_H

#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "../check.h"

enum { REGISTERS = 4 };

/* An open key. */
typedef struct {
    ValkeyModuleKey *key;
    ValkeyModuleString *name;
    int mode;
    /* Set while an iterator refers to the value: Valkey does not protect it against changes. */
    int has_range, has_list_iterator, has_stream_iterator;
    /* The last identifier that this handle has added is far in the future. */
    int is_far;
} Handle;

typedef struct Program {
    ValkeyModuleCtx *ctx;
    ValkeyModuleString **key_names;
    int has_auto_memory;
    ValkeyModuleString *strings[REGISTERS];
    Handle handles[REGISTERS];
    ValkeyModuleCallReply *replies[REGISTERS];
    ValkeyModuleDict *dicts[REGISTERS];
    ValkeyModuleDictIter *iterators[REGISTERS];
    /* The dictionary of an iterator, and whether it has changed since the last seek. */
    int iterated[REGISTERS], is_stale[REGISTERS];
    ValkeyModuleUser *user;
    int has_context_user;
    /* The program that calls this one. */
    struct Program *outer;
} Program;

typedef struct {
    const char *name;
    int arguments;
    void (*run)(Program *program, ValkeyModuleString **arguments, int count);
} Operation;

extern const Operation string_operations[], dict_operations[], reply_operations[], key_operations[],
    collection_operations[], call_operations[], user_operations[], value_operations[], server_operations[];

/* Replies of operations. Within a script there are no errors, because Valkey confuses its stack when it converts an
 * error within an array. */
int is_in_script(const Program *program);
void reply_refused(Program *program, const char *reason);
void reply_status(Program *program, int status);
void reply_with_errno(Program *program, long long result, int error);
void reply_string(Program *program, ValkeyModuleString *string);
void reply_id(Program *program, ValkeyModuleStreamID id);

/* Arguments. A word that is not a number is 0. */
long long number_of(const ValkeyModuleString *word);
double double_of(const ValkeyModuleString *word);
int register_of(const ValkeyModuleString *word);
const char *text_of(const ValkeyModuleString *word, size_t *length);

/* Puts a value into a register of strings, and frees the one before. */
void keep_string(Program *program, int index, ValkeyModuleString *string);
void free_string(Program *program, ValkeyModuleString *string);
/* Returns whether a program on this thread has opened this key, for writing or at all. */
int is_held(const Program *program, const ValkeyModuleString *name, int writes_only);
void close_handle(Handle *handle);

/* Runs operations until the words end. Returns the number of elements of the reply. */
long run_operations(Program *program, ValkeyModuleString **words, int count);
int run_program(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc);

/* The log of callbacks, which `program.log` shows. */
void add_to_log(const char *format, ...) WEFTMODULE_PRINTF(1, 2);
int show_log(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc);

int end_calls(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc);

int register_type(ValkeyModuleCtx *ctx);
int register_events(ValkeyModuleCtx *ctx);
int register_server(ValkeyModuleCtx *ctx);

#endif
