/* Starts scripts, and runs the commands that they call. Values pass directly between Lua's stack and the server.
 *
 * The functions `weft_host_*` are implemented in src/calls.rs. They use no function of Lua and never unwind, so an
 * error of Lua, which is a long jump, only skips frames of C. Rare cases are left to functions of Rust or Lua, which
 * are upvalues: errors, arguments that are neither strings nor numbers, types of replies that only RESP3 has.
 */
#include <stddef.h>

#include "lua.h"
#include "lauxlib.h"
#include "lgc.h"
#include "lmem.h"
#include "lobject.h"
#include "lopcodes.h"
#include "lstate.h"
#include "lstring.h"
#include "ltable.h"

/* A word of a command, or bytes of a reply. An argument without bytes is a number. */
struct weft_bytes {
  const char *bytes;
  size_t length;
};

struct weft_argument {
  struct weft_bytes text;
  double number;
};

/* The words that a script is started with: its keys, and then its arguments. */
struct weft_words {
  const struct weft_bytes *words;
  size_t keys;
  size_t arguments;
};

enum { WEFT_REPLY, WEFT_FAILURE, WEFT_WRITTEN };
enum { WEFT_TEXT, WEFT_NUMBER, WEFT_BOOLEAN, WEFT_STATUS, WEFT_NIL };

/* Runs a command. Returns WEFT_REPLY, with the reply in `reply`, or WEFT_FAILURE. Until weft_host_end_call is called,
 * the reply stays where it is and no other command can run. If the reply is the result of the script (`is_result`), the
 * host may also write it as the script's reply and return WEFT_WRITTEN; then there is nothing to end. */
int weft_host_call (const struct weft_argument *arguments, size_t count, int is_result, struct weft_bytes *reply);
void weft_host_end_call (void);
/* Ends a call that an error of Lua has left before weft_host_end_call, because memory for its reply was short. Returns 1
 * if there is such a call. */
int weft_host_end_script (void);
/* Writes the value that a script returned as its reply. */
void weft_host_write_result (int type, struct weft_bytes text, double number);

/* Makes a table read-only, or no longer. A patch of Lua adds it. */
void weft_set_readonly (lua_State *L, int index, int is_readonly);
/* Returns 1 if the value is a table that may be changed, with exactly as many places for elements and nothing else. A patch
 * of Lua adds it. */
int weft_is_plain_array (lua_State *L, int index, int size);
/* Push a function or a table that Lua keeps, by its address. Patches of Lua add them. */
void weft_push_function (lua_State *L, const void *function);
void weft_push_table (lua_State *L, const void *table);
/* Keeps the garbage collector, and thereby finalizers, from running. Returns what the other function needs to let it run
 * again. Patches of Lua add them. */
size_t weft_pause_collector (lua_State *L);
void weft_resume_collector (lua_State *L, size_t threshold);
/* Undoes what a script has changed by `collectgarbage`: the next one has the collector of a new state. */
void weft_reset_collector (lua_State *L);

/* ---- commands --------------------------------------------------------------------------------------------------- */

/* The upvalues of the function that runs commands. */
#define ON_FAILURE lua_upvalueindex(1)
#define ON_OTHER_ARGUMENTS lua_upvalueindex(2)
#define CONVERT_REPLY lua_upvalueindex(3)
#define NAME_OK lua_upvalueindex(4)

/* More arguments than these are kept in memory of Lua. */
#define FEW_ARGUMENTS 16
/* Deeper replies are converted by CONVERT_REPLY. */
#define DEPTH_MAX 16

/* Stands for a result that the host has written. No script sees it. */
static const char written_result = 0;

/* Reads the integer of a line, and skips its end. Returns the next position, or NULL if there is none. */
static const char *read_integer (const char *at, const char *end, unsigned long long *value, int *is_negative) {
  *is_negative = at < end && *at == '-';
  *value = 0;
  if (*is_negative) at++;
  for (; at < end && *at >= '0' && *at <= '9'; at++)
    *value = *value * 10 + (unsigned long long)(*at - '0');
  return end - at >= 2 && *at == '\r' ? at + 2 : NULL;
}

/* Pushes the value of the reply at `at`. Returns the position behind it, or NULL if it has a part that CONVERT_REPLY
 * must convert; then the stack may have further values. A function in C has LUA_MINSTACK places on the stack, which is
 * enough for all but nested replies. */
static const char *push_reply (lua_State *L, const char *at, const char *end, int depth) {
  unsigned long long number;
  int is_negative;
  char type;
  if (at >= end || depth > DEPTH_MAX || (depth > 0 && !lua_checkstack(L, 4))) return NULL;
  type = *at++;
  if (type == '+') {
    const char *start = at;
    while (at < end && *at != '\r') at++;
    if (end - at < 2) return NULL;
    lua_createtable(L, 0, 1);
    lua_pushvalue(L, NAME_OK);
    lua_pushlstring(L, start, (size_t)(at - start));
    lua_rawset(L, -3);
    return at + 2;
  }
  if (type != ':' && type != '$' && type != '*') return NULL;
  at = read_integer(at, end, &number, &is_negative);
  if (at == NULL) return NULL;
  if (type == ':') {
    lua_pushnumber(L, is_negative ? -(double)number : (double)number);
  } else if (is_negative) {
    lua_pushboolean(L, 0);
  } else if (type == '$') {
    size_t rest = (size_t)(end - at);
    if (rest < 2 || number > rest - 2) return NULL;
    lua_pushlstring(L, at, (size_t)number);
    at += (size_t)number + 2;
  } else {
    int count, index;
    if (number > (size_t)(end - at)) return NULL;
    count = (int)number;
    lua_createtable(L, count, 0);
    for (index = 1; index <= count; index++) {
      at = push_reply(L, at, end, depth + 1);
      if (at == NULL) return NULL;
      lua_rawseti(L, -2, index);
    }
  }
  return at;
}

/* Passes all arguments on to a function, and returns its results. */
static int call_instead (lua_State *L, int function) {
  lua_pushvalue(L, function);
  lua_insert(L, 1);
  lua_call(L, lua_gettop(L) - 1, LUA_MULTRET);
  return lua_gettop(L);
}

/* Reads the arguments of a call from Lua's stack. Returns 0 if one of them is neither a string nor a number. */
static int read_arguments (const TValue *value, int count, struct weft_argument *arguments) {
  const TValue *end = value + count;
  for (; value < end; value++, arguments++) {
    if (ttisstring(value)) {
      arguments->text.bytes = svalue(value);
      arguments->text.length = tsvalue(value)->len;
      arguments->number = 0;
    } else if (ttisnumber(value)) {
      arguments->text.bytes = NULL;
      arguments->text.length = 0;
      arguments->number = nvalue(value);
    } else {
      return 0;
    }
  }
  return 1;
}

static int run_eval (lua_State *L);
static int run_function (lua_State *L);

/* Returns 1 if the running function was called by the script itself as the last thing that it does, as in
 * `return redis.call(...)`. What the function returns is the result of the script then, and no code sees it. A
 * finalizer, which may run while the words of the script are created, is called for no result. */
static int is_last_call (lua_State *L) {
  const CallInfo *script, *starter;
  if (L->ci - L->base_ci < 2 || L->ci->nresults != LUA_MULTRET) return 0;
  script = L->ci - 1;
  starter = L->ci - 2;
  return isLua(script) && script->nresults == 1 && GET_OPCODE(script->savedpc[-1]) == OP_TAILCALL
    && ttisfunction(starter->func) && !f_isLua(starter)
    && (ci_func(starter)->c.f == run_eval || ci_func(starter)->c.f == run_function);
}

/* Takes the steps of the collector that are due for all that was created since the last one. Lua takes one step wherever
 * a script creates something. It takes none while a reply is converted, and one step is too little for a large reply. So
 * a script that only calls commands would leave all their replies as garbage. It ends with the cycle of the collector at
 * the latest: with a pause of 0, steps are always due. */
static void take_due_steps (lua_State *L) {
  const global_State *g = G(L);
  while (g->totalbytes >= g->GCthreshold) {
    luaC_step(L);
    if (g->gcstate == GCSpause) return;
  }
}

/* Runs a command whose words are the arguments, and returns its reply. */
static int run_command (lua_State *L) {
  struct weft_argument few[FEW_ARGUMENTS];
  struct weft_argument *arguments = few;
  struct weft_bytes reply;
  int count = lua_gettop(L), outcome;
  size_t threshold;
  /* Before the command: a finalizer may run, and throw or call a command. */
  take_due_steps(L);
  if (count > FEW_ARGUMENTS)
    arguments = (struct weft_argument *)lua_newuserdata(L, (size_t)count * sizeof *arguments);
  if (count == 0 || !read_arguments(L->base, count, arguments)) {
    lua_settop(L, count);
    return call_instead(L, ON_OTHER_ARGUMENTS);
  }
  outcome = weft_host_call(arguments, (size_t)count, is_last_call(L), &reply);
  if (outcome == WEFT_FAILURE) {
    lua_settop(L, 0);
    return call_instead(L, ON_FAILURE);
  }
  if (outcome == WEFT_WRITTEN) {
    lua_pushlightuserdata(L, (void *)&written_result);
    return 1;
  }
  if (L->ci->nresults == 0) {
    /* The script calls the command as a statement. */
    weft_host_end_call();
    return 0;
  }
  /* A finalizer could throw, or call a command, and the reply would be lost. */
  threshold = weft_pause_collector(L);
  if (push_reply(L, reply.bytes, reply.bytes + reply.length, 0) == NULL) {
    lua_settop(L, 0);
    lua_pushvalue(L, CONVERT_REPLY);
    lua_pushlstring(L, reply.bytes, reply.length);
    weft_host_end_call();
    weft_resume_collector(L, threshold);
    lua_call(L, 1, 1);
    return 1;
  }
  weft_host_end_call();
  weft_resume_collector(L, threshold);
  return 1;
}

/* Takes the functions ON_FAILURE, ON_OTHER_ARGUMENTS and CONVERT_REPLY from the stack, and pushes the function that
 * runs commands. */
void weft_push_command_function (lua_State *L) {
  lua_pushliteral(L, "ok");
  lua_pushcclosure(L, run_command, 4);
}

/* ---- scripts ---------------------------------------------------------------------------------------------------- */

/* The upvalues of the functions that start scripts. */
#define RESULT_ERR lua_upvalueindex(1)
#define RESULT_OK lua_upvalueindex(2)
/* Those of run_eval. */
#define GLOBALS lua_upvalueindex(3)
#define NAME_KEYS lua_upvalueindex(4)
#define NAME_ARGV lua_upvalueindex(5)
#define MAY_SHARE_WORDS lua_upvalueindex(6)
/* Those of run_function, as positions in its array of upvalues: the tables of the function before, if they may be used
 * again. */
enum { LAST_KEYS = 2, LAST_ARGUMENTS = 3 };
/* Tables of more words are not left for the next function. */
#define LEFT_WORDS_MAX 32

enum { RUN_FAILED, RUN_RETURNED, RUN_REPLIED, RUN_WITHOUT_MEMORY };

/* What a Lua state has done up to a point: its counts of stores and of steps of the collector, and its latest objects. Patches
 * of Lua add the counts. */
struct weft_past {
  size_t stores;
  size_t gc_steps;
  const GCObject *object;
  const GCObject *userdata;
};

static void note_past (lua_State *L, struct weft_past *past) {
  const global_State *g = G(L);
  past->stores = g->stores;
  past->gc_steps = g->gc_steps;
  past->object = g->rootgc;
  past->userdata = g->mainthread->next;
}

/* Returns 1 if nothing but strings has been created since then, nothing was collected, and no value was stored anywhere but on
 * the stack of the thread. Whatever a function that has ended meanwhile has got or created, nothing refers to it any more. */
static int has_kept_nothing (lua_State *L, const struct weft_past *past) {
  const global_State *g = G(L);
  return g->stores == past->stores && g->gc_steps == past->gc_steps && g->rootgc == past->object
    && g->mainthread->next == past->userdata;
}

/* The start of a script. */
struct weft_start {
  const struct weft_words *words;
  /* The steps of the collector before its words are created: a finalizer that runs meanwhile may keep some of them. */
  size_t gc_steps;
  /* The state as of the time at which the script is called, and the tables that contain its words. */
  struct weft_past past;
  Table *keys;
  Table *arguments;
  /* 1 if nobody can see these tables once the script has ended. */
  int may_clear_words;
};

/* Sets the elements of the table on the top of the stack. */
static void set_words (lua_State *L, const struct weft_bytes *words, size_t count) {
  size_t index;
  for (index = 0; index < count; index++) {
    lua_pushlstring(L, words[index].bytes, words[index].length);
    lua_rawseti(L, -2, (int)index + 1);
  }
}

static void push_words (lua_State *L, const struct weft_bytes *words, size_t count) {
  lua_createtable(L, (int)count, 0);
  set_words(L, words, count);
}

/* Writes the value on the top of the stack as a reply, if it is one of the simple ones. Returns 1 if it was. */
static int write_simple_result (lua_State *L) {
  struct weft_bytes text = {NULL, 0};
  switch (lua_type(L, -1)) {
    case LUA_TSTRING:
      text.bytes = lua_tolstring(L, -1, &text.length);
      weft_host_write_result(WEFT_TEXT, text, 0);
      return 1;
    case LUA_TNUMBER:
      weft_host_write_result(WEFT_NUMBER, text, lua_tonumber(L, -1));
      return 1;
    case LUA_TBOOLEAN:
      weft_host_write_result(WEFT_BOOLEAN, text, lua_toboolean(L, -1));
      return 1;
    case LUA_TNIL:
      weft_host_write_result(WEFT_NIL, text, 0);
      return 1;
    case LUA_TTABLE:
      lua_pushvalue(L, RESULT_ERR);
      lua_rawget(L, -2);
      lua_pushvalue(L, RESULT_OK);
      lua_rawget(L, -3);
      if (lua_type(L, -2) == LUA_TSTRING || lua_type(L, -1) != LUA_TSTRING) {
        lua_pop(L, 2);
        return 0;
      }
      text.bytes = lua_tolstring(L, -1, &text.length);
      weft_host_write_result(WEFT_STATUS, text, 0);
      return 1;
    case LUA_TLIGHTUSERDATA:
      return lua_touserdata(L, -1) == (const void *)&written_result;
    default:
      return 0;
  }
}

/* Ends a call that an error has left early. */
static void end_left_call (lua_State *L) {
  if (weft_host_end_script()) lua_gc(L, LUA_GCRESTART, 0);
}

/* Calls the script, which is below its `count` arguments. Returns how it ended. The value that it returned is on the top of
 * the stack if it was not written as a reply. */
static int call_script (lua_State *L, int count) {
  lua_call(L, count, 1);
  end_left_call(L);
  return write_simple_result(L) ? RUN_REPLIED : RUN_RETURNED;
}

/* Ends a function that starts scripts. It returns how the script ended, and what is on the top of the stack. */
static int return_end (lua_State *L, int end) {
  lua_pushinteger(L, end);
  lua_insert(L, -2);
  return 2;
}

/* Sets a global variable, although the table of global variables is read-only. The variable exists, so no error can
 * leave the table changeable.
 *
 * With MAY_SHARE_WORDS, the table of the script before is used again if it is as a new one would be: that script has ended,
 * and it had no place in which to keep a reference. Returns the table. */
static Table *set_global_words (lua_State *L, int name, const struct weft_bytes *words, size_t count) {
  Table *table;
  lua_pushvalue(L, name);
  lua_rawget(L, GLOBALS);
  if (lua_toboolean(L, MAY_SHARE_WORDS) && weft_is_plain_array(L, -1, (int)count)) {
    set_words(L, words, count);
    table = hvalue(L->top - 1);
    lua_pop(L, 1);
    return table;
  }
  lua_pop(L, 1);
  lua_pushvalue(L, name);
  push_words(L, words, count);
  table = hvalue(L->top - 1);
  weft_set_readonly(L, GLOBALS, 0);
  lua_rawset(L, GLOBALS);
  weft_set_readonly(L, GLOBALS, 1);
  return table;
}

/* The functions that start scripts. They take the address of the start and the script, and return what return_end
 * returns. */
static int run_eval (lua_State *L) {
  struct weft_start *start = (struct weft_start *)lua_touserdata(L, 1);
  const struct weft_words *words = start->words;
  start->keys = set_global_words(L, NAME_KEYS, words->words, words->keys);
  start->arguments = set_global_words(L, NAME_ARGV, words->words + words->keys, words->arguments);
  start->may_clear_words = lua_toboolean(L, MAY_SHARE_WORDS);
  note_past(L, &start->past);
  return return_end(L, call_script(L, 0));
}

/* Pushes a table with these words. It is the one at `place` if that can be used again, which is removed from there. */
static void take_last_words (lua_State *L, int place, const struct weft_bytes *words, size_t count) {
  TValue *last = &curr_func(L)->c.upvalue[place];
  if (!ttistable(last) || !luaH_isplainarray(hvalue(last), (int)count)) {
    push_words(L, words, count);
    return;
  }
  weft_push_table(L, hvalue(last));
  setnilvalue(last);
  set_words(L, words, count);
}

static void clear_elements (Table *words) {
  int index;
  for (index = 0; index < words->sizearray; index++) setnilvalue(&words->array[index]);
}

/* Leaves the table at `index` of the stack for the next function, if it is small. Its elements are removed: they may be
 * large, and nothing else would let the collector free them if there is no next function. */
static void leave_last_words (lua_State *L, int place, int index) {
  Closure *starter = curr_func(L);
  const TValue *table = L->base + index - 1;
  if (hvalue(table)->sizearray > LEFT_WORDS_MAX) return;
  clear_elements(hvalue(table));
  setobj(L, &starter->c.upvalue[place], table);
  luaC_barrier(L, starter, table);
}

/* A function may keep a table of words, since its library has tables and variables that last. The next function gets the same
 * tables if this one has kept nothing. */
static int run_function (lua_State *L) {
  struct weft_start *start = (struct weft_start *)lua_touserdata(L, 1);
  const struct weft_words *words = start->words;
  int end;
  take_last_words(L, LAST_KEYS, words->words, words->keys);
  take_last_words(L, LAST_ARGUMENTS, words->words + words->keys, words->arguments);
  lua_pushvalue(L, 2);
  lua_pushvalue(L, 3);
  lua_pushvalue(L, 4);
  start->keys = hvalue(L->base + 2);
  start->arguments = hvalue(L->base + 3);
  start->may_clear_words = 1;
  note_past(L, &start->past);
  end = call_script(L, 2);
  if (end == RUN_REPLIED && has_kept_nothing(L, &start->past)) {
    leave_last_words(L, LAST_KEYS, 3);
    leave_last_words(L, LAST_ARGUMENTS, 4);
  }
  return return_end(L, end);
}

/* Takes the table of global variables and MAY_SHARE_WORDS from the stack, and pushes the function that runs scripts: it sets
 * KEYS and ARGV. */
void weft_push_eval_function (lua_State *L) {
  int globals = lua_gettop(L) - 1;
  lua_pushliteral(L, "err");
  lua_insert(L, globals);
  lua_pushliteral(L, "ok");
  lua_insert(L, globals + 1);
  lua_pushliteral(L, "KEYS");
  lua_insert(L, globals + 3);
  lua_pushliteral(L, "ARGV");
  lua_insert(L, globals + 4);
  lua_pushcclosure(L, run_eval, 6);
}

/* Pushes the function that runs functions of libraries: they get their keys and arguments as parameters. */
void weft_push_function_function (lua_State *L) {
  lua_pushliteral(L, "err");
  lua_pushliteral(L, "ok");
  lua_pushnil(L);
  lua_pushnil(L);
  lua_pushcclosure(L, run_function, 4);
}

/* Frees a string that nothing refers to. */
static void free_string (lua_State *L, TString *string) {
  stringtable *strings = &G(L)->strt;
  GCObject **link = &strings->hash[lmod(string->tsv.hash, strings->size)];
  while (*link != obj2gco(string)) link = &(*link)->gch.next;
  *link = string->tsv.next;
  strings->nuse--;
  luaM_freemem(L, string, sizestring(&string->tsv));
}

/* Frees the strings that were created for a script, and by it, if all of them are known and nothing has freed or kept some of
 * them. Only the tables of words refer to them then. */
static void free_new_strings (lua_State *L, const struct weft_start *start) {
  global_State *g = G(L);
  int index;
  if (g->gc_steps != start->gc_steps || !has_kept_nothing(L, &start->past)) return;
  if (g->new_string_count > NEW_STRINGS_MAX || !start->may_clear_words) return;
  clear_elements(start->keys);
  clear_elements(start->arguments);
  for (index = 0; index < g->new_string_count; index++) free_string(L, g->new_strings[index]);
  g->new_string_count = 0;
}

/* Runs a script with these words by one of these functions. Errors go to `handler`. Returns how the script ended. The value
 * that it returned or threw, unless it was written as a reply, becomes the first element of the table `result`, which has a
 * place for it. Nothing here throws: only the protected call uses memory. */
int weft_run_script (lua_State *L, const void *handler, const void *start, const void *script, const void *result,
                     const struct weft_words *words) {
  struct weft_start started;
  int top = lua_gettop(L), end;
  if (!lua_checkstack(L, 4)) return RUN_WITHOUT_MEMORY;
  started.words = words;
  started.gc_steps = G(L)->gc_steps;
  G(L)->new_string_count = 0;
  weft_push_function(L, handler);
  weft_push_function(L, start);
  lua_pushlightuserdata(L, &started);
  weft_push_function(L, script);
  if (lua_pcall(L, 2, 2, top + 1) == 0) {
    end = (int)lua_tointeger(L, -2);
  } else {
    end = RUN_FAILED;
    end_left_call(L);
  }
  weft_reset_collector(L);
  if (end != RUN_REPLIED) {
    weft_push_table(L, result);
    lua_insert(L, -2);
    lua_rawseti(L, -2, 1);
  }
  lua_settop(L, top);
  if (end == RUN_REPLIED) free_new_strings(L, &started);
  return end;
}

/* ---- read-only tables ------------------------------------------------------------------------------------------- */

/* Makes its first argument read-only if the second is true, and no longer read-only otherwise. Returns the table. */
static int set_readonly (lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  weft_set_readonly(L, 1, lua_toboolean(L, 2));
  lua_settop(L, 1);
  return 1;
}

void weft_push_readonly_function (lua_State *L) {
  lua_pushcfunction(L, set_readonly);
}
