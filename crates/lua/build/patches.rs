//! The changes to Lua 5.1.5, and their reasons.
/// A replacement of one piece of text in one file.
pub struct Patch {
    /// The name of the file among Lua's sources.
    pub file: &'static str,
    /// The text to replace.
    pub search: &'static str,
    /// The number of times that `find` must occur. Every occurrence is replaced.
    pub occurrences: usize,
    /// The replacement text.
    pub replace: &'static str,
}

/// The text of the error for a change of a read-only table, as Valkey has it.
macro_rules! readonly_error {
    () => {
        "#define READONLY_ERROR \"Attempt to modify a readonly table\"\n"
    };
}

/// All patches, in the order in which they are applied to a file.
pub const PATCHES: &[Patch] = &[
    // `unpack` counts its results in an `int`, which overflows for ranges such as (-2, 2147483647): it then writes past
    // the stack (CVE-2025-46817). The difference of two ints always fits in an unsigned int.
    Patch {
        file: "lbaselib.c",
        search: "n = e - i + 1;",
        occurrences: 1,
        replace: "if ((unsigned int)e - (unsigned int)i >= (unsigned int)LUAI_MAXCSTACK)\n    \
                  return luaL_error(L, \"too many results to unpack\");\n  n = e - i + 1;",
    },
    // `pcall` and `xpcall` push one more value above results that may fill the stack that was
    // asked for. The value went into the slots that Lua keeps for errors.
    Patch {
        file: "lbaselib.c",
        search: "  lua_pushboolean(L, (status == 0));",
        occurrences: 2,
        replace: "  if (!lua_checkstack(L, 1)) {\n    lua_settop(L, 0);\n    lua_pushboolean(L, 0);\n    \
                  lua_pushliteral(L, \"stack overflow\");\n    return 2;\n  }\n  lua_pushboolean(L, (status == 0));",
    },
    // The name of a chunk is only referenced by the parser's C stack, so a garbage collection while parsing frees it
    // (CVE-2025-49844). The patch keeps it on Lua's stack until the parser ends.
    Patch {
        file: "lparser.c",
        search: "luaX_setinput(L, &lexstate, z, luaS_new(L, name));",
        occurrences: 1,
        replace: "TString *source = luaS_new(L, name);\n  setsvalue2s(L, L->top, source);\n  incr_top(L);\n  \
                  luaX_setinput(L, &lexstate, z, source);",
    },
    Patch {
        file: "lparser.c",
        search: "lua_assert(funcstate.f->nups == 0);",
        occurrences: 1,
        replace: "L->top--;\n  lua_assert(funcstate.f->nups == 0);",
    },
    // The number of equals signs in a long bracket is an `int` and is doubled (CVE-2025-46819).
    Patch {
        file: "llex.c",
        search: "while (ls->current == '=') {",
        occurrences: 1,
        replace: "while (ls->current == '=') {\n    \
                  if (count >= MAX_INT / 4) luaX_lexerror(ls, \"lexical element too long\", 0);",
    },
    // An error before the first token would report an uninitialised token.
    Patch {
        file: "llex.c",
        search: "ls->decpoint = '.';",
        occurrences: 1,
        replace: "ls->t.token = 0;\n  ls->decpoint = '.';",
    },
    // Compiled code is not verified and can read and write any memory. It is parsed as text, which fails.
    Patch {
        file: "ldo.c",
        search: "((c == LUA_SIGNATURE[0]) ? luaU_undump : luaY_parser)",
        occurrences: 1,
        replace: "(luaY_parser)",
    },
    // Matching recurses for every quantifier and capture of a pattern, as deep as the pattern is long. Later versions
    // of Lua also stop at 200. Together with Lua's limit of 200 nested calls of C functions, this bounds the stack that
    // a script needs.
    Patch {
        file: "lstrlib.c",
        search: "typedef struct MatchState {",
        occurrences: 1,
        replace: "typedef struct MatchState {\n  int depth;",
    },
    Patch {
        file: "lstrlib.c",
        search: "ms.L = L;",
        occurrences: 3,
        replace: "ms.L = L;\n  ms.depth = 0;",
    },
    Patch {
        file: "lstrlib.c",
        search: "static const char *match (MatchState *ms, const char *s, const char *p) {",
        occurrences: 1,
        replace: "static const char *match_at (MatchState *ms, const char *s, const char *p);\n\n\
                  static const char *match (MatchState *ms, const char *s, const char *p) {\n  \
                  const char *end;\n  \
                  if (++ms->depth > 200) luaL_error(ms->L, \"pattern too complex\");\n  \
                  end = match_at(ms, s, p);\n  \
                  ms->depth--;\n  \
                  return end;\n}\n\n\
                  static const char *match_at (MatchState *ms, const char *s, const char *p) {",
    },
    // Only every n-th byte of a long string was hashed, so all strings that differ only in other bytes collide. The
    // patch uses MurmurHash3 (x86, 32 bits) with the length as its seed. Valkey does the same, so tables are also
    // iterated in Valkey's order.
    Patch {
        file: "lstring.c",
        search: "TString *luaS_newlstr (lua_State *L, const char *str, size_t l) {",
        occurrences: 1,
        replace: MURMUR_HASH_3,
    },
    Patch {
        file: "lstring.c",
        search: "unsigned int h = cast(unsigned int, l);",
        occurrences: 1,
        replace: "unsigned int h = hash_bytes(str, l);",
    },
    Patch {
        file: "lstring.c",
        search: "size_t step = (l>>5)+1;",
        occurrences: 1,
        replace: "",
    },
    Patch {
        file: "lstring.c",
        search: "size_t l1;\n",
        occurrences: 1,
        replace: "\n",
    },
    Patch {
        file: "lstring.c",
        search: "for (l1=l; l1>=step; l1-=step)",
        occurrences: 1,
        replace: "",
    },
    Patch {
        file: "lstring.c",
        search: "h = h ^ ((h<<5)+(h>>2)+cast(unsigned char, str[l1-1]));",
        occurrences: 1,
        replace: "",
    },
    // The strings of one chain often have the same length: those of keys do. Their hashes, which lie beside the
    // lengths, rarely are the same.
    Patch {
        file: "lstring.c",
        search: "if (ts->tsv.len == l && (memcmp(str, getstr(ts), l) == 0)) {",
        occurrences: 1,
        replace: "if (ts->tsv.hash == h && ts->tsv.len == l && (memcmp(str, getstr(ts), l) == 0)) {",
    },
    // A table may be read-only, which the sandbox needs: all that changes a table from outside of the interpreter's own
    // code goes through five places.
    Patch {
        file: "lobject.h",
        search: "  lu_byte lsizenode;",
        occurrences: 1,
        replace: "  lu_byte is_readonly;\n  lu_byte lsizenode;",
    },
    Patch {
        file: "ltable.c",
        search: "  t->flags = cast_byte(~0);",
        occurrences: 1,
        replace: "  t->flags = cast_byte(~0);\n  t->is_readonly = 0;",
    },
    Patch {
        file: "lvm.c",
        search: "      TValue *oldval = luaH_set(L, h, key);",
        occurrences: 1,
        replace: "      TValue *oldval;\n      if (h->is_readonly) luaG_runerror(L, READONLY_ERROR);\n      \
                  G(L)->stores++;\n      oldval = luaH_set(L, h, key);",
    },
    Patch {
        file: "lvm.c",
        search: "#define MAXTAGLOOP\t100",
        occurrences: 1,
        replace: concat!("#define MAXTAGLOOP\t100\n\n", readonly_error!()),
    },
    Patch {
        file: "lapi.c",
        search: "  setobj2t(L, luaH_set(L, hvalue(t), L->top-2), L->top-1);",
        occurrences: 1,
        replace: "  begin_store(L, hvalue(t));\n  setobj2t(L, luaH_set(L, hvalue(t), L->top-2), L->top-1);",
    },
    Patch {
        file: "lapi.c",
        search: "  setobj2t(L, luaH_setnum(L, hvalue(o), n), L->top-1);",
        occurrences: 1,
        replace: "  begin_store(L, hvalue(o));\n  setobj2t(L, luaH_setnum(L, hvalue(o), n), L->top-1);",
    },
    Patch {
        file: "lapi.c",
        search: "      hvalue(obj)->metatable = mt;",
        occurrences: 1,
        replace: "      begin_store(L, hvalue(obj));\n      hvalue(obj)->metatable = mt;",
    },
    Patch {
        file: "lapi.c",
        search: "LUA_API void lua_settable (lua_State *L, int idx) {",
        occurrences: 1,
        replace: concat!(
            readonly_error!(),
            r"
static void begin_store (lua_State *L, const Table *table) {
  if (table->is_readonly) luaG_runerror(L, READONLY_ERROR);
  G(L)->stores++;
}

LUA_API void weft_set_readonly (lua_State *L, int idx, int is_readonly) {
  StkId t = index2adr(L, idx);
  api_check(L, ttistable(t));
  hvalue(t)->is_readonly = cast_byte(is_readonly);
}

LUA_API void weft_push_function (lua_State *L, const void *function) {
  setclvalue(L, L->top, (Closure *)function);
  api_incr_top(L);
}

LUA_API void weft_push_table (lua_State *L, const void *table) {
  sethvalue(L, L->top, (Table *)table);
  api_incr_top(L);
}

LUA_API int weft_is_plain_array (lua_State *L, int idx, int size) {
  StkId t = index2adr(L, idx);
  return ttistable(t) && luaH_isplainarray(hvalue(t), size);
}

LUA_API size_t weft_pause_collector (lua_State *L) {
  size_t threshold = G(L)->GCthreshold;
  G(L)->GCthreshold = MAX_LUMEM;
  return threshold;
}

LUA_API void weft_resume_collector (lua_State *L, size_t threshold) {
  G(L)->GCthreshold = threshold;
}

LUA_API void weft_reset_collector (lua_State *L) {
  global_State *g = G(L);
  g->gcpause = LUAI_GCPAUSE;
  g->gcstepmul = LUAI_GCMUL;
  if (g->GCthreshold > 2 * g->estimate + (256u << 10)) g->GCthreshold = g->totalbytes;
}

LUA_API void lua_settable (lua_State *L, int idx) {"
        ),
    },
    // A script that has stored nothing, and created nothing but strings, has kept nothing of what it was started with.
    // So all stores of values in tables, functions, userdata and other threads are counted. Something new could have
    // the address of something that has been collected meanwhile, so the steps of the collector are counted, too.
    Patch {
        file: "lstate.h",
        search: "  lu_mem gcdept;  /* how much GC is `behind schedule' */",
        occurrences: 1,
        replace: "  lu_mem gcdept;  /* how much GC is `behind schedule' */\n  \
                  size_t stores;\n  size_t gc_steps;",
    },
    Patch {
        file: "lstate.c",
        search: "  g->gcdept = 0;",
        occurrences: 1,
        replace: "  g->gcdept = 0;\n  g->stores = 0;\n  g->gc_steps = 0;",
    },
    Patch {
        file: "lvm.c",
        search: "        setobj(L, uv->v, ra);",
        occurrences: 1,
        replace: "        G(L)->stores++;\n        setobj(L, uv->v, ra);",
    },
    Patch {
        file: "lvm.c",
        search: "        last = ((c-1)*LFIELDS_PER_FLUSH) + n;",
        occurrences: 1,
        replace: "        G(L)->stores++;\n        last = ((c-1)*LFIELDS_PER_FLUSH) + n;",
    },
    Patch {
        file: "lapi.c",
        search: "  /* explicit test for incompatible code */",
        occurrences: 1,
        replace: "  if (idx <= LUA_REGISTRYINDEX) G(L)->stores++;\n  /* explicit test for incompatible code */",
    },
    Patch {
        file: "lapi.c",
        search: "  from->top -= n;",
        occurrences: 1,
        replace: "  G(from)->stores++;\n  from->top -= n;",
    },
    Patch {
        file: "lapi.c",
        search: "      uvalue(obj)->metatable = mt;",
        occurrences: 1,
        replace: "      G(L)->stores++;\n      uvalue(obj)->metatable = mt;",
    },
    Patch {
        file: "lapi.c",
        search: "      G(L)->mt[ttype(obj)] = mt;",
        occurrences: 1,
        replace: "      G(L)->stores++;\n      G(L)->mt[ttype(obj)] = mt;",
    },
    Patch {
        file: "lapi.c",
        search: "  if (res) luaC_objbarrier(L, gcvalue(o), hvalue(L->top - 1));",
        occurrences: 1,
        replace: "  G(L)->stores++;\n  if (res) luaC_objbarrier(L, gcvalue(o), hvalue(L->top - 1));",
    },
    Patch {
        file: "lapi.c",
        search: "    setobj(L, val, L->top);",
        occurrences: 1,
        replace: "    G(L)->stores++;\n    setobj(L, val, L->top);",
    },
    Patch {
        file: "ldo.c",
        search: "  luai_userstateresume(L, nargs);",
        occurrences: 1,
        replace: "  G(L)->stores++;\n  luai_userstateresume(L, nargs);",
    },
    Patch {
        file: "lgc.c",
        search: "  l_mem lim = (GCSTEPSIZE/100) * g->gcstepmul;",
        occurrences: 1,
        replace: "  l_mem lim = (GCSTEPSIZE/100) * g->gcstepmul;\n  g->gc_steps++;",
    },
    Patch {
        file: "lgc.c",
        search: "void luaC_fullgc (lua_State *L) {\n  global_State *g = G(L);",
        occurrences: 1,
        replace: "void luaC_fullgc (lua_State *L) {\n  global_State *g = G(L);\n  g->gc_steps++;",
    },
    // The strings of a script that has kept nothing are freed at its end. So collections of garbage are rare, and the
    // next script uses the same memory. The main thread's latest strings are noted for that. A count above the maximum
    // says that there were others.
    Patch {
        file: "lstate.h",
        search: "  size_t gc_steps;",
        occurrences: 1,
        replace: "  size_t gc_steps;\n  TString *new_strings[NEW_STRINGS_MAX];\n  int new_string_count;",
    },
    Patch {
        file: "lstate.h",
        search: "/*\n** `global state', shared by all threads of this state\n*/",
        occurrences: 1,
        replace: "#define NEW_STRINGS_MAX 32\n\n\
                  /*\n** `global state', shared by all threads of this state\n*/",
    },
    Patch {
        file: "lstate.c",
        search: "  g->gc_steps = 0;",
        occurrences: 1,
        replace: "  g->gc_steps = 0;\n  g->new_string_count = 0;",
    },
    Patch {
        file: "lstring.c",
        search: "  tb->nuse++;",
        occurrences: 1,
        replace: "  tb->nuse++;\n  \
                  if (L == G(L)->mainthread && G(L)->new_string_count < NEW_STRINGS_MAX)\n    \
                  G(L)->new_strings[G(L)->new_string_count++] = ts;\n  \
                  else\n    G(L)->new_string_count = NEW_STRINGS_MAX + 1;",
    },
    // A cycle of the garbage collector visits all that the state keeps: some 80 KB of libraries. It would begin when
    // there is as much garbage as that, after some hundred short scripts. There may be 256 KB of garbage instead.
    Patch {
        file: "lgc.c",
        search: "(g->GCthreshold = (g->estimate/100) * g->gcpause)",
        occurrences: 1,
        replace: "(g->GCthreshold = later_threshold(g))\n\n\
                  static lu_mem later_threshold (global_State *g) {\n  \
                  lu_mem by_pause = (g->estimate/100) * g->gcpause, least = g->estimate + (256u << 10);\n  \
                  return g->gcpause > 100 && by_pause < least ? least : by_pause;\n}",
    },
    // KEYS and ARGV of the script before are used again if it has left them as they were created, apart from the
    // elements.
    Patch {
        file: "ltable.h",
        search: "LUAI_FUNC int luaH_getn (Table *t);",
        occurrences: 1,
        replace: "LUAI_FUNC int luaH_getn (Table *t);\nLUAI_FUNC int luaH_isplainarray (const Table *t, int size);",
    },
    Patch {
        file: "ltable.c",
        search: "int luaH_getn (Table *t) {",
        occurrences: 1,
        replace: "int luaH_isplainarray (const Table *t, int size) {\n  \
                  return t->sizearray == size && t->node == dummynode && t->metatable == NULL && !t->is_readonly;\n}\n\n\
                  int luaH_getn (Table *t) {",
    },
    // Short scripts make and leave small objects: tables for KEYS and ARGV, strings. A state keeps the blocks of some,
    // up to 256 KB, which is the garbage between two cycles, and so rarely goes through the allocator of the process.
    Patch {
        file: "lstate.h",
        search: "  lua_Alloc frealloc;  /* function to reallocate memory */",
        occurrences: 1,
        replace: "  lua_Alloc frealloc;  /* function to reallocate memory */\n  \
                  struct free_block *free_blocks[SMALL_CLASSES];\n  \
                  size_t free_bytes;",
    },
    Patch {
        file: "lstate.h",
        search: "typedef struct global_State {",
        occurrences: 1,
        replace: "#define SMALL_UNIT 16u\n\
                  #define SMALL_CLASSES 16\n\
                  #define SMALL_MAX (SMALL_CLASSES * SMALL_UNIT)\n\
                  #define FREE_BYTES_MAX (256u << 10)\n\n\
                  struct free_block {\n  struct free_block *next;\n};\n\n\
                  typedef struct global_State {",
    },
    Patch {
        file: "lstate.c",
        search: "  g->frealloc = f;",
        occurrences: 1,
        replace: "  for (i = 0; i < SMALL_CLASSES; i++) g->free_blocks[i] = NULL;\n  \
                  g->free_bytes = 0;\n  g->frealloc = f;",
    },
    Patch {
        file: "lstate.c",
        search: "  (*g->frealloc)(g->ud, fromstate(L), state_size(LG), 0);",
        occurrences: 1,
        replace: "  luaM_free_small_blocks(g);\n  (*g->frealloc)(g->ud, fromstate(L), state_size(LG), 0);",
    },
    Patch {
        file: "lmem.h",
        search: "LUAI_FUNC void *luaM_toobig (lua_State *L);",
        occurrences: 1,
        replace: "LUAI_FUNC void *luaM_toobig (lua_State *L);\n\
                  struct global_State;\n\
                  LUAI_FUNC void luaM_free_small_blocks (struct global_State *g);",
    },
    Patch {
        file: "lmem.c",
        search: "#include <stddef.h>",
        occurrences: 1,
        replace: "#include <stddef.h>\n#include <string.h>",
    },
    Patch {
        file: "lmem.c",
        search: "void *luaM_realloc_ (lua_State *L, void *block, size_t osize, size_t nsize) {",
        occurrences: 1,
        replace: SMALL_BLOCKS,
    },
    Patch {
        file: "lmem.c",
        search: "  block = (*g->frealloc)(g->ud, block, osize, nsize);",
        occurrences: 1,
        replace: "  block = reallocate(g, block, osize, nsize);",
    },
];

/// Blocks of up to `SMALL_MAX` bytes have the size of their class, also for the allocator of the process.
const SMALL_BLOCKS: &str = r"
static size_t small_class (size_t size) {
  return (size - 1) / SMALL_UNIT;
}

static size_t small_size (size_t size) {
  return (small_class(size) + 1) * SMALL_UNIT;
}

static void *allocate (global_State *g, size_t size) {
  struct free_block *block;
  if (size > SMALL_MAX) return (*g->frealloc)(g->ud, NULL, 0, size);
  block = g->free_blocks[small_class(size)];
  if (block == NULL) return (*g->frealloc)(g->ud, NULL, 0, small_size(size));
  g->free_blocks[small_class(size)] = block->next;
  g->free_bytes -= small_size(size);
  return block;
}

static void deallocate (global_State *g, void *at, size_t size) {
  struct free_block *block = (struct free_block *)at;
  if (size > SMALL_MAX) {
    (*g->frealloc)(g->ud, at, size, 0);
  } else if (g->free_bytes + small_size(size) > FREE_BYTES_MAX) {
    (*g->frealloc)(g->ud, at, small_size(size), 0);
  } else {
    block->next = g->free_blocks[small_class(size)];
    g->free_blocks[small_class(size)] = block;
    g->free_bytes += small_size(size);
  }
}

static void *reallocate (global_State *g, void *old, size_t osize, size_t nsize) {
  void *block;
  if (nsize == 0) {
    if (osize > 0) deallocate(g, old, osize);
    return NULL;
  }
  if (osize == 0) return allocate(g, nsize);
  if (osize > SMALL_MAX && nsize > SMALL_MAX) return (*g->frealloc)(g->ud, old, osize, nsize);
  if (osize <= SMALL_MAX && nsize <= SMALL_MAX && small_class(osize) == small_class(nsize)) return old;
  block = allocate(g, nsize);
  if (block != NULL) {
    memcpy(block, old, osize < nsize ? osize : nsize);
    deallocate(g, old, osize);
  }
  return block;
}

void luaM_free_small_blocks (global_State *g) {
  size_t class;
  for (class = 0; class < SMALL_CLASSES; class++) {
    struct free_block *block = g->free_blocks[class];
    while (block != NULL) {
      struct free_block *next = block->next;
      (*g->frealloc)(g->ud, block, (class + 1) * SMALL_UNIT, 0);
      block = next;
    }
    g->free_blocks[class] = NULL;
  }
  g->free_bytes = 0;
}

void *luaM_realloc_ (lua_State *L, void *block, size_t osize, size_t nsize) {";

const MURMUR_HASH_3: &str = r"
static unsigned int rotated (unsigned int x, int bits) {
  return (x << bits) | (x >> (32 - bits));
}

static unsigned int hash_bytes (const char *str, size_t l) {
  const unsigned char *at = (const unsigned char *)str;
  const unsigned char *words_end = at + (l & ~(size_t)3);
  unsigned int h = (unsigned int)l;
  unsigned int k;
  for (; at < words_end; at += 4) {
    memcpy(&k, at, 4);
    h ^= rotated(k * 0xcc9e2d51u, 15) * 0x1b873593u;
    h = rotated(h, 13) * 5 + 0xe6546b64u;
  }
  k = 0;
  if ((l & 3) >= 3) k ^= (unsigned int)at[2] << 16;
  if ((l & 3) >= 2) k ^= (unsigned int)at[1] << 8;
  if ((l & 3) >= 1) k ^= at[0];
  h ^= rotated(k * 0xcc9e2d51u, 15) * 0x1b873593u;
  h ^= (unsigned int)l;
  h = (h ^ (h >> 16)) * 0x85ebca6bu;
  h = (h ^ (h >> 13)) * 0xc2b2ae35u;
  return h ^ (h >> 16);
}

TString *luaS_newlstr (lua_State *L, const char *str, size_t l) {";
