/* The module API of Valkey 9.1, and what Weft adds to it, for authors of modules.
 *
 * Alone, this header declares the whole API under the names of Valkey, so that a module that includes it instead of
 * valkeymodule.h loads into both servers. After valkeymodule.h, it only adds Weft's functions; before it, it takes its
 * place. Functions of Weft are null in other servers.
 *
 *     int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
 *         if (ValkeyModule_Init(ctx, "name", 1, VALKEYMODULE_APIVER_1) == VALKEYMODULE_ERR) return VALKEYMODULE_ERR;
 *         WeftModule_Init(ctx);
 *         ...
 *     }
 *
 * The book of Weft explains the functions that Weft adds; the documentation of Valkey explains the others. */

#ifndef WEFTMODULE_H
#define WEFTMODULE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* A pointer to a function is one variable in all files of a module, and invisible outside. */
#ifndef WEFTMODULE_API
#define WEFTMODULE_API __attribute__((weak, visibility("hidden")))
#endif
#define WEFTMODULE_UNUSED __attribute__((unused))
#define WEFTMODULE_PRINTF(position, first) __attribute__((format(printf, position, first)))

#ifndef VALKEYMODULE_H
#define VALKEYMODULE_H

#include <stdlib.h>

/* Results. */
enum { VALKEYMODULE_OK = 0, VALKEYMODULE_ERR = 1 };
enum { VALKEYMODULE_AUTH_HANDLED = 0, VALKEYMODULE_AUTH_NOT_HANDLED = 1 };

/* Versions of the API, and of the methods of data types. */
enum { VALKEYMODULE_APIVER_1 = 1, VALKEYMODULE_TYPE_METHOD_VERSION = 5 };

/* Modes of OpenKey. */
enum {
    VALKEYMODULE_READ = 1 << 0, VALKEYMODULE_WRITE = 1 << 1, VALKEYMODULE_OPEN_KEY_NOTOUCH = 1 << 16,
    VALKEYMODULE_OPEN_KEY_NONOTIFY = 1 << 17, VALKEYMODULE_OPEN_KEY_NOSTATS = 1 << 18,
    VALKEYMODULE_OPEN_KEY_NOEXPIRE = 1 << 19, VALKEYMODULE_OPEN_KEY_NOEFFECTS = 1 << 20,
};

/* Ends of lists, and types of keys and of replies. */
enum { VALKEYMODULE_LIST_HEAD = 0, VALKEYMODULE_LIST_TAIL = 1 };
enum {
    VALKEYMODULE_KEYTYPE_EMPTY = 0, VALKEYMODULE_KEYTYPE_STRING = 1, VALKEYMODULE_KEYTYPE_LIST = 2,
    VALKEYMODULE_KEYTYPE_HASH = 3, VALKEYMODULE_KEYTYPE_SET = 4, VALKEYMODULE_KEYTYPE_ZSET = 5,
    VALKEYMODULE_KEYTYPE_MODULE = 6, VALKEYMODULE_KEYTYPE_STREAM = 7,
};
enum {
    VALKEYMODULE_REPLY_UNKNOWN = -1, VALKEYMODULE_REPLY_STRING = 0, VALKEYMODULE_REPLY_ERROR = 1,
    VALKEYMODULE_REPLY_INTEGER = 2, VALKEYMODULE_REPLY_ARRAY = 3, VALKEYMODULE_REPLY_NULL = 4,
    VALKEYMODULE_REPLY_MAP = 5, VALKEYMODULE_REPLY_SET = 6, VALKEYMODULE_REPLY_BOOL = 7,
    VALKEYMODULE_REPLY_DOUBLE = 8, VALKEYMODULE_REPLY_BIG_NUMBER = 9, VALKEYMODULE_REPLY_VERBATIM_STRING = 10,
    VALKEYMODULE_REPLY_ATTRIBUTE = 11, VALKEYMODULE_REPLY_PROMISE = 12, VALKEYMODULE_REPLY_SIMPLE_STRING = 13,
    VALKEYMODULE_REPLY_ARRAY_NULL = 14,
};

/* A length that is set later, and the expiry of a key that has none. */
enum { VALKEYMODULE_POSTPONED_ARRAY_LEN = -1, VALKEYMODULE_POSTPONED_LEN = -1 };
enum { VALKEYMODULE_NO_EXPIRE = -1 };

/* Flags of sorted sets, hashes and streams. */
enum {
    VALKEYMODULE_ZADD_XX = 1 << 0, VALKEYMODULE_ZADD_NX = 1 << 1, VALKEYMODULE_ZADD_ADDED = 1 << 2,
    VALKEYMODULE_ZADD_UPDATED = 1 << 3, VALKEYMODULE_ZADD_NOP = 1 << 4, VALKEYMODULE_ZADD_GT = 1 << 5,
    VALKEYMODULE_ZADD_LT = 1 << 6,
};
enum {
    VALKEYMODULE_HASH_NONE = 0, VALKEYMODULE_HASH_NX = 1 << 0, VALKEYMODULE_HASH_XX = 1 << 1,
    VALKEYMODULE_HASH_CFIELDS = 1 << 2, VALKEYMODULE_HASH_EXISTS = 1 << 3, VALKEYMODULE_HASH_COUNT_ALL = 1 << 4,
};
#define VALKEYMODULE_HASH_DELETE ((ValkeyModuleString *)(long)1)
enum {
    VALKEYMODULE_STREAM_ADD_AUTOID = 1 << 0, VALKEYMODULE_STREAM_ITERATOR_EXCLUSIVE = 1 << 0,
    VALKEYMODULE_STREAM_ITERATOR_REVERSE = 1 << 1, VALKEYMODULE_STREAM_TRIM_APPROX = 1 << 0,
};

/* Flags of configuration parameters. */
#define VALKEYMODULE_CONFIG_DEFAULT 0
#define VALKEYMODULE_CONFIG_IMMUTABLE (1ULL << 0)
#define VALKEYMODULE_CONFIG_SENSITIVE (1ULL << 1)
#define VALKEYMODULE_CONFIG_HIDDEN (1ULL << 4)
#define VALKEYMODULE_CONFIG_PROTECTED (1ULL << 5)
#define VALKEYMODULE_CONFIG_DENY_LOADING (1ULL << 6)
#define VALKEYMODULE_CONFIG_MEMORY (1ULL << 7)
#define VALKEYMODULE_CONFIG_BITFLAGS (1ULL << 8)
#define VALKEYMODULE_CONFIG_UNSIGNED (1ULL << 9)

/* What GetContextFlags returns. */
enum {
    VALKEYMODULE_CTX_FLAGS_LUA = 1 << 0, VALKEYMODULE_CTX_FLAGS_MULTI = 1 << 1,
    VALKEYMODULE_CTX_FLAGS_PRIMARY = 1 << 2, VALKEYMODULE_CTX_FLAGS_REPLICA = 1 << 3,
    VALKEYMODULE_CTX_FLAGS_READONLY = 1 << 4, VALKEYMODULE_CTX_FLAGS_CLUSTER = 1 << 5,
    VALKEYMODULE_CTX_FLAGS_AOF = 1 << 6, VALKEYMODULE_CTX_FLAGS_RDB = 1 << 7,
    VALKEYMODULE_CTX_FLAGS_MAXMEMORY = 1 << 8, VALKEYMODULE_CTX_FLAGS_EVICT = 1 << 9,
    VALKEYMODULE_CTX_FLAGS_OOM = 1 << 10, VALKEYMODULE_CTX_FLAGS_OOM_WARNING = 1 << 11,
    VALKEYMODULE_CTX_FLAGS_REPLICATED = 1 << 12, VALKEYMODULE_CTX_FLAGS_LOADING = 1 << 13,
    VALKEYMODULE_CTX_FLAGS_REPLICA_IS_STALE = 1 << 14, VALKEYMODULE_CTX_FLAGS_REPLICA_IS_CONNECTING = 1 << 15,
    VALKEYMODULE_CTX_FLAGS_REPLICA_IS_TRANSFERRING = 1 << 16,
    VALKEYMODULE_CTX_FLAGS_REPLICA_IS_ONLINE = 1 << 17, VALKEYMODULE_CTX_FLAGS_ACTIVE_CHILD = 1 << 18,
    VALKEYMODULE_CTX_FLAGS_MULTI_DIRTY = 1 << 19, VALKEYMODULE_CTX_FLAGS_IS_CHILD = 1 << 20,
    VALKEYMODULE_CTX_FLAGS_DENY_BLOCKING = 1 << 21, VALKEYMODULE_CTX_FLAGS_RESP3 = 1 << 22,
    VALKEYMODULE_CTX_FLAGS_ASYNC_LOADING = 1 << 23, VALKEYMODULE_CTX_FLAGS_SERVER_STARTUP = 1 << 24,
    VALKEYMODULE_CTX_FLAGS_SLOT_IMPORT_CLIENT = 1 << 25, VALKEYMODULE_CTX_FLAGS_SLOT_EXPORT_CLIENT = 1 << 26,
};

/* Classes of key events. */
enum {
    VALKEYMODULE_NOTIFY_KEYSPACE = 1 << 0, VALKEYMODULE_NOTIFY_KEYEVENT = 1 << 1,
    VALKEYMODULE_NOTIFY_GENERIC = 1 << 2, VALKEYMODULE_NOTIFY_STRING = 1 << 3,
    VALKEYMODULE_NOTIFY_LIST = 1 << 4, VALKEYMODULE_NOTIFY_SET = 1 << 5, VALKEYMODULE_NOTIFY_HASH = 1 << 6,
    VALKEYMODULE_NOTIFY_ZSET = 1 << 7, VALKEYMODULE_NOTIFY_EXPIRED = 1 << 8,
    VALKEYMODULE_NOTIFY_EVICTED = 1 << 9, VALKEYMODULE_NOTIFY_STREAM = 1 << 10,
    VALKEYMODULE_NOTIFY_KEY_MISS = 1 << 11, VALKEYMODULE_NOTIFY_LOADED = 1 << 12,
    VALKEYMODULE_NOTIFY_MODULE = 1 << 13, VALKEYMODULE_NOTIFY_NEW = 1 << 14,
    VALKEYMODULE_NOTIFY_ALL = VALKEYMODULE_NOTIFY_GENERIC | VALKEYMODULE_NOTIFY_STRING | VALKEYMODULE_NOTIFY_LIST |
        VALKEYMODULE_NOTIFY_SET | VALKEYMODULE_NOTIFY_HASH | VALKEYMODULE_NOTIFY_ZSET | VALKEYMODULE_NOTIFY_EXPIRED |
        VALKEYMODULE_NOTIFY_EVICTED | VALKEYMODULE_NOTIFY_STREAM | VALKEYMODULE_NOTIFY_MODULE,
};

/* Nodes of a cluster. */
enum {
    VALKEYMODULE_NODE_ID_LEN = 40, VALKEYMODULE_NODE_MYSELF = 1 << 0, VALKEYMODULE_NODE_PRIMARY = 1 << 1,
    VALKEYMODULE_NODE_REPLICA = 1 << 2, VALKEYMODULE_NODE_PFAIL = 1 << 3, VALKEYMODULE_NODE_FAIL = 1 << 4,
    VALKEYMODULE_NODE_NOFAILOVER = 1 << 5, VALKEYMODULE_CLUSTER_FLAG_NONE = 0,
    VALKEYMODULE_CLUSTER_FLAG_NO_FAILOVER = 1 << 1, VALKEYMODULE_CLUSTER_FLAG_NO_REDIRECTION = 1 << 2,
};

/* Levels of the log, and texts. */
#define VALKEYMODULE_LOGLEVEL_DEBUG "debug"
#define VALKEYMODULE_LOGLEVEL_VERBOSE "verbose"
#define VALKEYMODULE_LOGLEVEL_NOTICE "notice"
#define VALKEYMODULE_LOGLEVEL_WARNING "warning"
#define VALKEYMODULE_ERRORMSG_WRONGTYPE "WRONGTYPE Operation against a key holding the wrong kind of value"
#define VALKEYMODULE_POSITIVE_INFINITE (1.0 / 0.0)
#define VALKEYMODULE_NEGATIVE_INFINITE (-1.0 / 0.0)
#define VALKEYMODULE_NOT_USED(V) ((void)(V))

/* Flags of single functions. */
enum { VALKEYMODULE_AUX_BEFORE_RDB = 1 << 0, VALKEYMODULE_AUX_AFTER_RDB = 1 << 1 };
enum { VALKEYMODULE_YIELD_FLAG_NONE = 1 << 0, VALKEYMODULE_YIELD_FLAG_CLIENTS = 1 << 1 };
enum { VALKEYMODULE_BLOCK_UNBLOCK_DEFAULT = 0, VALKEYMODULE_BLOCK_UNBLOCK_DELETED = 1 << 0 };
enum { VALKEYMODULE_CMDFILTER_NOSELF = 1 << 0 };
enum { VALKEYMODULE_EVENTLOOP_READABLE = 1, VALKEYMODULE_EVENTLOOP_WRITABLE = 2 };

/* Flags of SetModuleOptions. */
enum {
    VALKEYMODULE_OPTIONS_HANDLE_IO_ERRORS = 1 << 0, VALKEYMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED = 1 << 1,
    VALKEYMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD = 1 << 2,
    VALKEYMODULE_OPTIONS_ALLOW_NESTED_KEYSPACE_NOTIFICATIONS = 1 << 3,
    VALKEYMODULE_OPTIONS_SKIP_COMMAND_VALIDATION = 1 << 4,
    VALKEYMODULE_OPTIONS_HANDLE_ATOMIC_SLOT_MIGRATION = 1 << 5,
};

/* Flags of arguments, keys and channels of commands. */
enum {
    VALKEYMODULE_CMD_ARG_NONE = 0, VALKEYMODULE_CMD_ARG_OPTIONAL = 1 << 0,
    VALKEYMODULE_CMD_ARG_MULTIPLE = 1 << 1, VALKEYMODULE_CMD_ARG_MULTIPLE_TOKEN = 1 << 2,
};
#define VALKEYMODULE_CMD_KEY_RO (1ULL << 0)
#define VALKEYMODULE_CMD_KEY_RW (1ULL << 1)
#define VALKEYMODULE_CMD_KEY_OW (1ULL << 2)
#define VALKEYMODULE_CMD_KEY_RM (1ULL << 3)
#define VALKEYMODULE_CMD_KEY_ACCESS (1ULL << 4)
#define VALKEYMODULE_CMD_KEY_UPDATE (1ULL << 5)
#define VALKEYMODULE_CMD_KEY_INSERT (1ULL << 6)
#define VALKEYMODULE_CMD_KEY_DELETE (1ULL << 7)
#define VALKEYMODULE_CMD_KEY_NOT_KEY (1ULL << 8)
#define VALKEYMODULE_CMD_KEY_INCOMPLETE (1ULL << 9)
#define VALKEYMODULE_CMD_KEY_VARIABLE_FLAGS (1ULL << 10)
#define VALKEYMODULE_CMD_CHANNEL_PATTERN (1ULL << 0)
#define VALKEYMODULE_CMD_CHANNEL_PUBLISH (1ULL << 1)
#define VALKEYMODULE_CMD_CHANNEL_SUBSCRIBE (1ULL << 2)
#define VALKEYMODULE_CMD_CHANNEL_UNSUBSCRIBE (1ULL << 3)

/* Server events, and what has happened in each. */
enum {
    VALKEYMODULE_EVENT_REPLROLECHANGED_NOW_PRIMARY = 0, VALKEYMODULE_EVENT_REPLROLECHANGED_NOW_REPLICA = 1,
};
enum {
    VALKEYMODULE_EVENT_REPLICATION_ROLE_CHANGED = 0, VALKEYMODULE_EVENT_PERSISTENCE = 1,
    VALKEYMODULE_EVENT_FLUSHDB = 2, VALKEYMODULE_EVENT_LOADING = 3, VALKEYMODULE_EVENT_CLIENT_CHANGE = 4,
    VALKEYMODULE_EVENT_SHUTDOWN = 5, VALKEYMODULE_EVENT_REPLICA_CHANGE = 6,
    VALKEYMODULE_EVENT_PRIMARY_LINK_CHANGE = 7, VALKEYMODULE_EVENT_CRON_LOOP = 8,
    VALKEYMODULE_EVENT_MODULE_CHANGE = 9, VALKEYMODULE_EVENT_LOADING_PROGRESS = 10,
    VALKEYMODULE_EVENT_SWAPDB = 11, VALKEYMODULE_EVENT_REPL_BACKUP = 12, VALKEYMODULE_EVENT_FORK_CHILD = 13,
    VALKEYMODULE_EVENT_REPL_ASYNC_LOAD = 14, VALKEYMODULE_EVENT_EVENTLOOP = 15, VALKEYMODULE_EVENT_CONFIG = 16,
    VALKEYMODULE_EVENT_KEY = 17, VALKEYMODULE_EVENT_AUTHENTICATION_ATTEMPT = 18,
    VALKEYMODULE_EVENT_ATOMIC_SLOT_MIGRATION = 19, VALKEYMODULE_EVENT_COMMAND_RESULT_SUCCESS = 20,
    VALKEYMODULE_EVENT_COMMAND_RESULT_FAILURE = 21, VALKEYMODULE_EVENT_COMMAND_RESULT_REJECTED = 22,
    VALKEYMODULE_EVENT_COMMAND_RESULT_ACL_REJECTED = 23,
};
enum {
    VALKEYMODULE_SUBEVENT_PERSISTENCE_RDB_START = 0, VALKEYMODULE_SUBEVENT_PERSISTENCE_AOF_START = 1,
    VALKEYMODULE_SUBEVENT_PERSISTENCE_SYNC_RDB_START = 2, VALKEYMODULE_SUBEVENT_PERSISTENCE_ENDED = 3,
    VALKEYMODULE_SUBEVENT_PERSISTENCE_FAILED = 4, VALKEYMODULE_SUBEVENT_PERSISTENCE_SYNC_AOF_START = 5,
};
enum { VALKEYMODULE_SUBEVENT_LOADING_PROGRESS_RDB = 0, VALKEYMODULE_SUBEVENT_LOADING_PROGRESS_AOF = 1 };
enum {
    VALKEYMODULE_SUBEVENT_LOADING_RDB_START = 0, VALKEYMODULE_SUBEVENT_LOADING_AOF_START = 1,
    VALKEYMODULE_SUBEVENT_LOADING_REPL_START = 2, VALKEYMODULE_SUBEVENT_LOADING_ENDED = 3,
    VALKEYMODULE_SUBEVENT_LOADING_FAILED = 4,
};
enum {
    VALKEYMODULE_SUBEVENT_CLIENT_CHANGE_CONNECTED = 0, VALKEYMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED = 1,
};
enum { VALKEYMODULE_SUBEVENT_PRIMARY_LINK_UP = 0, VALKEYMODULE_SUBEVENT_PRIMARY_LINK_DOWN = 1 };
enum { VALKEYMODULE_SUBEVENT_REPLICA_CHANGE_ONLINE = 0, VALKEYMODULE_SUBEVENT_REPLICA_CHANGE_OFFLINE = 1 };
enum { VALKEYMODULE_SUBEVENT_FLUSHDB_START = 0, VALKEYMODULE_SUBEVENT_FLUSHDB_END = 1 };
enum { VALKEYMODULE_SUBEVENT_MODULE_LOADED = 0, VALKEYMODULE_SUBEVENT_MODULE_UNLOADED = 1 };
enum { VALKEYMODULE_SUBEVENT_CONFIG_CHANGE = 0 };
enum {
    VALKEYMODULE_SUBEVENT_REPL_ASYNC_LOAD_STARTED = 0, VALKEYMODULE_SUBEVENT_REPL_ASYNC_LOAD_ABORTED = 1,
    VALKEYMODULE_SUBEVENT_REPL_ASYNC_LOAD_COMPLETED = 2,
};
enum { VALKEYMODULE_SUBEVENT_FORK_CHILD_BORN = 0, VALKEYMODULE_SUBEVENT_FORK_CHILD_DIED = 1 };
enum { VALKEYMODULE_SUBEVENT_EVENTLOOP_BEFORE_SLEEP = 0, VALKEYMODULE_SUBEVENT_EVENTLOOP_AFTER_SLEEP = 1 };
enum {
    VALKEYMODULE_SUBEVENT_KEY_DELETED = 0, VALKEYMODULE_SUBEVENT_KEY_EXPIRED = 1,
    VALKEYMODULE_SUBEVENT_KEY_EVICTED = 2, VALKEYMODULE_SUBEVENT_KEY_OVERWRITTEN = 3,
};
enum {
    VALKEYMODULE_SUBEVENT_ATOMIC_SLOT_MIGRATION_IMPORT_STARTED = 0,
    VALKEYMODULE_SUBEVENT_ATOMIC_SLOT_MIGRATION_EXPORT_STARTED = 1,
    VALKEYMODULE_SUBEVENT_ATOMIC_SLOT_MIGRATION_IMPORT_ABORTED = 2,
    VALKEYMODULE_SUBEVENT_ATOMIC_SLOT_MIGRATION_EXPORT_ABORTED = 3,
    VALKEYMODULE_SUBEVENT_ATOMIC_SLOT_MIGRATION_IMPORT_COMPLETED = 4,
    VALKEYMODULE_SUBEVENT_ATOMIC_SLOT_MIGRATION_EXPORT_COMPLETED = 5,
};

/* Flags of clients. */
enum {
    VALKEYMODULE_CLIENTINFO_FLAG_SSL = 1 << 0, VALKEYMODULE_CLIENTINFO_FLAG_PUBSUB = 1 << 1,
    VALKEYMODULE_CLIENTINFO_FLAG_BLOCKED = 1 << 2, VALKEYMODULE_CLIENTINFO_FLAG_TRACKING = 1 << 3,
    VALKEYMODULE_CLIENTINFO_FLAG_UNIXSOCKET = 1 << 4, VALKEYMODULE_CLIENTINFO_FLAG_MULTI = 1 << 5,
    VALKEYMODULE_CLIENTINFO_FLAG_READONLY = 1 << 6, VALKEYMODULE_CLIENTINFO_FLAG_PRIMARY = 1 << 7,
    VALKEYMODULE_CLIENTINFO_FLAG_REPLICA = 1 << 8, VALKEYMODULE_CLIENTINFO_FLAG_MONITOR = 1 << 9,
    VALKEYMODULE_CLIENTINFO_FLAG_MODULE = 1 << 10, VALKEYMODULE_CLIENTINFO_FLAG_AUTHENTICATED = 1 << 11,
    VALKEYMODULE_CLIENTINFO_FLAG_EVER_AUTHENTICATED = 1 << 12, VALKEYMODULE_CLIENTINFO_FLAG_FAKE = 1 << 13,
};

/* Flags of CallArgv, which modules cannot get, but whose handlers are below. */
enum {
    VALKEYMODULE_CALL_ARGV_REPLICATE = 1 << 0, VALKEYMODULE_CALL_ARGV_NO_AOF = 1 << 1,
    VALKEYMODULE_CALL_ARGV_NO_REPLICAS = 1 << 2, VALKEYMODULE_CALL_ARGV_RESP_3 = 1 << 3,
    VALKEYMODULE_CALL_ARGV_RESP_AUTO = 1 << 4, VALKEYMODULE_CALL_ARGV_RUN_AS_USER = 1 << 5,
    VALKEYMODULE_CALL_ARGV_SCRIPT_MODE = 1 << 6, VALKEYMODULE_CALL_ARGV_NO_WRITES = 1 << 7,
    VALKEYMODULE_CALL_ARGV_ERRORS_AS_REPLIES = 1 << 8, VALKEYMODULE_CALL_ARGV_RESPECT_DENY_OOM = 1 << 9,
    VALKEYMODULE_CALL_ARGV_DRY_RUN = 1 << 10, VALKEYMODULE_CALL_ARGV_ALLOW_BLOCK = 1 << 11,
    VALKEYMODULE_CALL_ARGV_REPLY_EXACT = 1 << 12,
};

/* Versions of structs. */
enum {
    VALKEYMODULE_CLIENTINFO_VERSION = 1, VALKEYMODULE_REPLICATIONINFO_VERSION = 1,
    VALKEYMODULE_FLUSHINFO_VERSION = 1, VALKEYMODULE_MODULE_CHANGE_VERSION = 1,
    VALKEYMODULE_CONFIGCHANGE_VERSION = 1, VALKEYMODULE_CRON_LOOP_VERSION = 1,
    VALKEYMODULE_LOADING_PROGRESS_VERSION = 1, VALKEYMODULE_SWAPDBINFO_VERSION = 1,
    VALKEYMODULE_KEYINFO_VERSION = 1, VALKEYMODULE_AUTHENTICATION_INFO_VERSION = 1,
    VALKEYMODULE_ATOMICSLOTMIGRATION_INFO_VERSION = 1, VALKEYMODULE_COMMANDRESULTINFO_VERSION = 1,
};
#define VALKEYMODULE_SCRIPTING_ENGINE_ABI_COMPILED_FUNCTION_VERSION 1UL
#define VALKEYMODULE_SCRIPTING_ENGINE_ABI_MEMORY_INFO_VERSION 1UL
#define VALKEYMODULE_SCRIPTING_ENGINE_ABI_DEBUGGER_COMMAND_VERSION 1UL
#define VALKEYMODULE_SCRIPTING_ENGINE_ABI_VERSION 4UL
#define VALKEYMODULE_REPLY_HANDLERS_VERSION 1UL

typedef long long mstime_t;
typedef long long ustime_t;
typedef uint64_t ValkeyModuleTimerID;

/* Objects of the server, of which modules have pointers only. */
typedef struct ValkeyModuleCtx ValkeyModuleCtx;
typedef struct ValkeyModuleString ValkeyModuleString;
typedef struct ValkeyModuleKey ValkeyModuleKey;
typedef struct ValkeyModuleIO ValkeyModuleIO;
typedef struct ValkeyModuleDigest ValkeyModuleDigest;
typedef struct ValkeyModuleInfoCtx ValkeyModuleInfoCtx;
typedef struct ValkeyModuleDefragCtx ValkeyModuleDefragCtx;
typedef struct ValkeyModuleAsyncRMCallPromise ValkeyModuleCallArgvBlockedHandle;
typedef struct ValkeyModuleCommand ValkeyModuleCommand;
typedef struct ValkeyModuleCallReply ValkeyModuleCallReply;
typedef struct ValkeyModuleType ValkeyModuleType;
typedef struct ValkeyModuleBlockedClient ValkeyModuleBlockedClient;
typedef struct ValkeyModuleClusterInfo ValkeyModuleClusterInfo;
typedef struct ValkeyModuleDict ValkeyModuleDict;
typedef struct ValkeyModuleDictIter ValkeyModuleDictIter;
typedef struct ValkeyModuleCommandFilterCtx ValkeyModuleCommandFilterCtx;
typedef struct ValkeyModuleCommandFilter ValkeyModuleCommandFilter;
typedef struct ValkeyModuleServerInfoData ValkeyModuleServerInfoData;
typedef struct ValkeyModuleScanCursor ValkeyModuleScanCursor;
typedef struct ValkeyModuleUser ValkeyModuleUser;
typedef struct ValkeyModuleKeyOptCtx ValkeyModuleKeyOptCtx;
typedef struct ValkeyModuleRdbStream ValkeyModuleRdbStream;
typedef void ValkeyModuleScriptingEngineCtx;
typedef void ValkeyModuleScriptingEngineServerRuntimeCtx;

/* The ID of an entry of a stream. */
typedef struct ValkeyModuleStreamID {
    uint64_t ms, seq;
} ValkeyModuleStreamID;

/* Documentation and keys of a command, for SetCommandInfo. */
typedef enum {
    VALKEYMODULE_ARG_TYPE_STRING, VALKEYMODULE_ARG_TYPE_INTEGER, VALKEYMODULE_ARG_TYPE_DOUBLE,
    VALKEYMODULE_ARG_TYPE_KEY, VALKEYMODULE_ARG_TYPE_PATTERN, VALKEYMODULE_ARG_TYPE_UNIX_TIME,
    VALKEYMODULE_ARG_TYPE_PURE_TOKEN, VALKEYMODULE_ARG_TYPE_ONEOF, VALKEYMODULE_ARG_TYPE_BLOCK,
} ValkeyModuleCommandArgType;

typedef enum {
    VALKEYMODULE_KSPEC_BS_INVALID, VALKEYMODULE_KSPEC_BS_UNKNOWN, VALKEYMODULE_KSPEC_BS_INDEX,
    VALKEYMODULE_KSPEC_BS_KEYWORD,
} ValkeyModuleKeySpecBeginSearchType;

typedef enum {
    VALKEYMODULE_KSPEC_FK_OMITTED, VALKEYMODULE_KSPEC_FK_UNKNOWN, VALKEYMODULE_KSPEC_FK_RANGE,
    VALKEYMODULE_KSPEC_FK_KEYNUM,
} ValkeyModuleKeySpecFindKeysType;

typedef struct ValkeyModuleCommandArg {
    const char *name;
    ValkeyModuleCommandArgType type;
    int key_spec_index;
    const char *token, *summary, *since;
    int flags;
    const char *deprecated_since;
    struct ValkeyModuleCommandArg *subargs;
    const char *display_text;
} ValkeyModuleCommandArg;

typedef struct {
    const char *since, *changes;
} ValkeyModuleCommandHistoryEntry;

typedef struct {
    const char *notes;
    uint64_t flags;
    ValkeyModuleKeySpecBeginSearchType begin_search_type;
    union {
        struct { int pos; } index;
        struct { const char *keyword; int startfrom; } keyword;
    } bs;
    ValkeyModuleKeySpecFindKeysType find_keys_type;
    union {
        struct { int lastkey, keystep, limit; } range;
        struct { int keynumidx, firstkey, keystep; } keynum;
    } fk;
} ValkeyModuleCommandKeySpec;

typedef struct {
    int version;
    size_t sizeof_historyentry, sizeof_keyspec, sizeof_arg;
} ValkeyModuleCommandInfoVersion;

static const ValkeyModuleCommandInfoVersion ValkeyModule_CurrentCommandInfoVersion WEFTMODULE_UNUSED = {
    1, sizeof(ValkeyModuleCommandHistoryEntry), sizeof(ValkeyModuleCommandKeySpec), sizeof(ValkeyModuleCommandArg)};
#define VALKEYMODULE_COMMAND_INFO_VERSION (&ValkeyModule_CurrentCommandInfoVersion)

typedef struct {
    const ValkeyModuleCommandInfoVersion *version;
    const char *summary, *complexity, *since;
    ValkeyModuleCommandHistoryEntry *history;
    const char *tips;
    int arity;
    ValkeyModuleCommandKeySpec *key_specs;
    ValkeyModuleCommandArg *args;
} ValkeyModuleCommandInfo;

/* Server events, and the version of the data that comes with each. */
typedef struct ValkeyModuleEvent {
    uint64_t id, dataver;
} ValkeyModuleEvent;

#define WEFTMODULE_EVENTS(X) \
    X(ReplicationRoleChanged, REPLICATION_ROLE_CHANGED) X(Persistence, PERSISTENCE) X(FlushDB, FLUSHDB) \
    X(Loading, LOADING) X(ClientChange, CLIENT_CHANGE) X(Shutdown, SHUTDOWN) X(ReplicaChange, REPLICA_CHANGE) \
    X(CronLoop, CRON_LOOP) X(PrimaryLinkChange, PRIMARY_LINK_CHANGE) X(ModuleChange, MODULE_CHANGE) \
    X(LoadingProgress, LOADING_PROGRESS) X(SwapDB, SWAPDB) X(ReplAsyncLoad, REPL_ASYNC_LOAD) \
    X(ForkChild, FORK_CHILD) X(EventLoop, EVENTLOOP) X(Config, CONFIG) X(Key, KEY) \
    X(AuthenticationAttempt, AUTHENTICATION_ATTEMPT) X(AtomicSlotMigration, ATOMIC_SLOT_MIGRATION) \
    X(CommandResultSuccess, COMMAND_RESULT_SUCCESS) X(CommandResultFailure, COMMAND_RESULT_FAILURE) \
    X(CommandResultRejected, COMMAND_RESULT_REJECTED) X(CommandResultACLRejected, COMMAND_RESULT_ACL_REJECTED)
#define WEFTMODULE_EVENT(name, id) \
    static const ValkeyModuleEvent ValkeyModuleEvent_##name WEFTMODULE_UNUSED = {VALKEYMODULE_EVENT_##id, 1};
WEFTMODULE_EVENTS(WEFTMODULE_EVENT)

typedef struct ValkeyModuleClientInfo {
    uint64_t version, flags, id;
    char addr[46];
    uint16_t port, db;
} ValkeyModuleClientInfo, ValkeyModuleClientInfoV1;

typedef struct ValkeyModuleReplicationInfo {
    uint64_t version;
    int primary;
    char *primary_host;
    int primary_port;
    char *replid1, *replid2;
    uint64_t repl1_offset, repl2_offset;
} ValkeyModuleReplicationInfo, ValkeyModuleReplicationInfoV1;

typedef struct ValkeyModuleFlushInfo {
    uint64_t version;
    int32_t sync, dbnum;
} ValkeyModuleFlushInfo, ValkeyModuleFlushInfoV1;

typedef struct ValkeyModuleModuleChange {
    uint64_t version;
    const char *module_name;
    int32_t module_version;
} ValkeyModuleModuleChange, ValkeyModuleModuleChangeV1;

typedef struct ValkeyModuleConfigChange {
    uint64_t version;
    uint32_t num_changes;
    const char **config_names;
} ValkeyModuleConfigChange, ValkeyModuleConfigChangeV1;

typedef struct ValkeyModuleCronLoopInfo {
    uint64_t version;
    int32_t hz;
} ValkeyModuleCronLoop, ValkeyModuleCronLoopV1;

typedef struct ValkeyModuleLoadingProgressInfo {
    uint64_t version;
    int32_t hz, progress;
} ValkeyModuleLoadingProgress, ValkeyModuleLoadingProgressV1;

typedef struct ValkeyModuleSwapDbInfo {
    uint64_t version;
    int32_t dbnum_first, dbnum_second;
} ValkeyModuleSwapDbInfo, ValkeyModuleSwapDbInfoV1;

typedef struct ValkeyModuleKeyInfo {
    uint64_t version;
    ValkeyModuleKey *key;
} ValkeyModuleKeyInfo, ValkeyModuleKeyInfoV1;

typedef enum { VALKEYMODULE_AUTH_RESULT_GRANTED, VALKEYMODULE_AUTH_RESULT_DENIED } ValkeyModuleAuthenticationResult;

typedef struct ValkeyModuleAuthenticationInfo {
    uint64_t version, client_id;
    const char *username, *module_name;
    ValkeyModuleAuthenticationResult result;
} ValkeyModuleAuthenticationInfo, ValkeyModuleAuthenticationInfoV1;

typedef struct ValkeyModuleSlotRange {
    int start, end;
} ValkeyModuleSlotRange;

typedef struct ValkeyModuleAtomicSlotMigrationInfo {
    uint64_t version;
    char job_name[VALKEYMODULE_NODE_ID_LEN + 1];
    ValkeyModuleSlotRange *slot_ranges;
    uint32_t num_slot_ranges;
} ValkeyModuleAtomicSlotMigrationInfo, ValkeyModuleAtomicSlotMigrationInfoV1;

typedef struct ValkeyModuleCommandResultInfo {
    uint64_t version;
    const char *command_name;
    long long duration_us, dirty;
    uint64_t client_id;
    int is_module_client, argc;
    ValkeyModuleString **argv;
    const char *rejection_context;
} ValkeyModuleCommandResultInfo, ValkeyModuleCommandResultInfoV1;

#define VALKEYMODULE_CLIENTINFO_INITIALIZER_V1 {.version = 1}
#define VALKEYMODULE_AUTHENTICATIONINFO_INITIALIZER_V1 {.version = 1}
#define VALKEYMODULE_ATOMICSLOTMIGRATIONINFO_INITIALIZER_V1 {.version = 1}

typedef enum {
    VALKEYMODULE_ACL_LOG_AUTH, VALKEYMODULE_ACL_LOG_CMD, VALKEYMODULE_ACL_LOG_KEY, VALKEYMODULE_ACL_LOG_CHANNEL,
    VALKEYMODULE_ACL_LOG_DB,
} ValkeyModuleACLLogEntryReason;

/* Functions of modules that the server calls. */
typedef void (*ValkeyModuleEventLoopFunc)(int fd, void *user_data, int mask);
typedef void (*ValkeyModuleEventLoopOneShotFunc)(void *user_data);
typedef void (*ValkeyModuleEventCallback)(ValkeyModuleCtx *ctx, ValkeyModuleEvent eid, uint64_t subevent, void *data);
typedef void (*ValkeyModuleInfoFunc)(ValkeyModuleInfoCtx *ctx, int for_crash_report);
typedef void (*ValkeyModuleDefragFunc)(ValkeyModuleDefragCtx *ctx);
typedef void (*ValkeyModuleUserChangedFunc)(uint64_t client_id, void *privdata);
typedef int (*ValkeyModuleCmdFunc)(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc);
typedef void (*ValkeyModuleDisconnectFunc)(ValkeyModuleCtx *ctx, ValkeyModuleBlockedClient *bc);
typedef int (*ValkeyModuleNotificationFunc)(
    ValkeyModuleCtx *ctx, int type, const char *event, ValkeyModuleString *key);
typedef void (*ValkeyModulePostNotificationJobFunc)(ValkeyModuleCtx *ctx, void *pd);
typedef void *(*ValkeyModuleTypeLoadFunc)(ValkeyModuleIO *rdb, int encver);
typedef void (*ValkeyModuleTypeSaveFunc)(ValkeyModuleIO *rdb, void *value);
typedef int (*ValkeyModuleTypeAuxLoadFunc)(ValkeyModuleIO *rdb, int encver, int when);
typedef void (*ValkeyModuleTypeAuxSaveFunc)(ValkeyModuleIO *rdb, int when);
typedef void (*ValkeyModuleTypeRewriteFunc)(ValkeyModuleIO *aof, ValkeyModuleString *key, void *value);
typedef size_t (*ValkeyModuleTypeMemUsageFunc)(const void *value);
typedef size_t (*ValkeyModuleTypeMemUsageFunc2)(ValkeyModuleKeyOptCtx *ctx, const void *value, size_t sample_size);
typedef void (*ValkeyModuleTypeDigestFunc)(ValkeyModuleDigest *digest, void *value);
typedef void (*ValkeyModuleTypeFreeFunc)(void *value);
typedef size_t (*ValkeyModuleTypeFreeEffortFunc)(ValkeyModuleString *key, const void *value);
typedef size_t (*ValkeyModuleTypeFreeEffortFunc2)(ValkeyModuleKeyOptCtx *ctx, const void *value);
typedef void (*ValkeyModuleTypeUnlinkFunc)(ValkeyModuleString *key, const void *value);
typedef void (*ValkeyModuleTypeUnlinkFunc2)(ValkeyModuleKeyOptCtx *ctx, const void *value);
typedef void *(*ValkeyModuleTypeCopyFunc)(ValkeyModuleString *fromkey, ValkeyModuleString *tokey, const void *value);
typedef void *(*ValkeyModuleTypeCopyFunc2)(ValkeyModuleKeyOptCtx *ctx, const void *value);
typedef int (*ValkeyModuleTypeDefragFunc)(ValkeyModuleDefragCtx *ctx, ValkeyModuleString *key, void **value);
typedef void (*ValkeyModuleClusterMessageReceiver)(
    ValkeyModuleCtx *ctx, const char *sender_id, uint8_t type, const unsigned char *payload, uint32_t len);
typedef void (*ValkeyModuleTimerProc)(ValkeyModuleCtx *ctx, void *data);
typedef void (*ValkeyModuleCommandFilterFunc)(ValkeyModuleCommandFilterCtx *filter);
typedef void (*ValkeyModuleForkDoneHandler)(int exitcode, int bysignal, void *user_data);
typedef void (*ValkeyModuleScanCB)(
    ValkeyModuleCtx *ctx, ValkeyModuleString *keyname, ValkeyModuleKey *key, void *privdata);
typedef void (*ValkeyModuleScanKeyCB)(
    ValkeyModuleKey *key, ValkeyModuleString *field, ValkeyModuleString *value, void *privdata);
typedef ValkeyModuleString *(*ValkeyModuleConfigGetStringFunc)(const char *name, void *privdata);
typedef long long (*ValkeyModuleConfigGetNumericFunc)(const char *name, void *privdata);
typedef unsigned long long (*ValkeyModuleConfigGetUnsignedNumericFunc)(const char *name, void *privdata);
typedef int (*ValkeyModuleConfigGetBoolFunc)(const char *name, void *privdata);
typedef int (*ValkeyModuleConfigGetEnumFunc)(const char *name, void *privdata);
typedef int (*ValkeyModuleConfigSetStringFunc)(
    const char *name, ValkeyModuleString *val, void *privdata, ValkeyModuleString **err);
typedef int (*ValkeyModuleConfigSetNumericFunc)(
    const char *name, long long val, void *privdata, ValkeyModuleString **err);
typedef int (*ValkeyModuleConfigSetUnsignedNumericFunc)(
    const char *name, unsigned long long val, void *privdata, ValkeyModuleString **err);
typedef int (*ValkeyModuleConfigSetBoolFunc)(const char *name, int val, void *privdata, ValkeyModuleString **err);
typedef int (*ValkeyModuleConfigSetEnumFunc)(const char *name, int val, void *privdata, ValkeyModuleString **err);
typedef int (*ValkeyModuleConfigApplyFunc)(ValkeyModuleCtx *ctx, void *privdata, ValkeyModuleString **err);
typedef void (*ValkeyModuleOnUnblocked)(ValkeyModuleCtx *ctx, ValkeyModuleCallReply *reply, void *private_data);
typedef int (*ValkeyModuleAuthCallback)(
    ValkeyModuleCtx *ctx, ValkeyModuleString *username, ValkeyModuleString *password, ValkeyModuleString **err);

/* The functions of a data type. */
typedef struct ValkeyModuleTypeMethods {
    uint64_t version;
    ValkeyModuleTypeLoadFunc rdb_load;
    ValkeyModuleTypeSaveFunc rdb_save;
    ValkeyModuleTypeRewriteFunc aof_rewrite;
    ValkeyModuleTypeMemUsageFunc mem_usage;
    ValkeyModuleTypeDigestFunc digest;
    ValkeyModuleTypeFreeFunc free;
    ValkeyModuleTypeAuxLoadFunc aux_load;
    ValkeyModuleTypeAuxSaveFunc aux_save;
    int aux_save_triggers;
    ValkeyModuleTypeFreeEffortFunc free_effort;
    ValkeyModuleTypeUnlinkFunc unlink;
    ValkeyModuleTypeCopyFunc copy;
    ValkeyModuleTypeDefragFunc defrag;
    ValkeyModuleTypeMemUsageFunc2 mem_usage2;
    ValkeyModuleTypeFreeEffortFunc2 free_effort2;
    ValkeyModuleTypeUnlinkFunc2 unlink2;
    ValkeyModuleTypeCopyFunc2 copy2;
    ValkeyModuleTypeAuxSaveFunc aux_save2;
} ValkeyModuleTypeMethods;

/* Scripting engines. */
typedef enum ValkeyModuleScriptingEngineSubsystemType {
    VMSE_EVAL, VMSE_FUNCTION, VMSE_ALL
} ValkeyModuleScriptingEngineSubsystemType;

typedef enum ValkeyModuleScriptingEngineExecutionState {
    VMSE_STATE_EXECUTING, VMSE_STATE_KILLED
} ValkeyModuleScriptingEngineExecutionState;

typedef enum ValkeyModuleScriptingEngineScriptFlag {
    VMSE_SCRIPT_FLAG_NO_WRITES = 1 << 0, VMSE_SCRIPT_FLAG_ALLOW_OOM = 1 << 1, VMSE_SCRIPT_FLAG_ALLOW_STALE = 1 << 2,
    VMSE_SCRIPT_FLAG_NO_CLUSTER = 1 << 3, VMSE_SCRIPT_FLAG_EVAL_COMPAT_MODE = 1 << 4,
    VMSE_SCRIPT_FLAG_ALLOW_CROSS_SLOT = 1 << 5,
} ValkeyModuleScriptingEngineScriptFlag;

typedef enum ValkeyModuleScriptingEngineDebuggerEnableRet {
    VMSE_DEBUG_NOT_SUPPORTED, VMSE_DEBUG_ENABLED, VMSE_DEBUG_ENABLE_FAIL
} ValkeyModuleScriptingEngineDebuggerEnableRet;

typedef struct ValkeyModuleScriptingEngineCompiledFunction {
    uint64_t version;
    ValkeyModuleString *name;
    void *function;
    ValkeyModuleString *desc;
    uint64_t f_flags;
} ValkeyModuleScriptingEngineCompiledFunction, ValkeyModuleScriptingEngineCompiledFunctionV1;

typedef struct ValkeyModuleScriptingEngineMemoryInfo {
    uint64_t version;
    size_t used_memory, engine_memory_overhead;
} ValkeyModuleScriptingEngineMemoryInfo, ValkeyModuleScriptingEngineMemoryInfoV1;

typedef struct ValkeyModuleScriptingEngineCallableLazyEnvReset {
    void *context;
    void (*engineLazyEnvResetCallback)(void *context);
} ValkeyModuleScriptingEngineCallableLazyEnvReset;

typedef int (*ValkeyModuleScriptingEngineDebuggerCommandHandlerFunc)(
    ValkeyModuleString **argv, size_t argc, void *context);

typedef struct ValkeyModuleScriptingEngineDebuggerCommandParam {
    const char *name;
    int optional, variadic;
} ValkeyModuleScriptingEngineDebuggerCommandParam;

typedef struct ValkeyModuleScriptingEngineDebuggerCommand {
    uint64_t version;
    const char *name;
    size_t prefix_len;
    const ValkeyModuleScriptingEngineDebuggerCommandParam *params;
    size_t params_len;
    const char *desc;
    int invisible;
    ValkeyModuleScriptingEngineDebuggerCommandHandlerFunc handler;
    void *context;
} ValkeyModuleScriptingEngineDebuggerCommand, ValkeyModuleScriptingEngineDebuggerCommandV1;

#define VALKEYMODULE_SCRIPTING_ENGINE_DEBUGGER_COMMAND_WITH_CTX( \
    name, prefix, params, params_len, desc, invisible, handler, context) \
    {VALKEYMODULE_SCRIPTING_ENGINE_ABI_DEBUGGER_COMMAND_VERSION, name, prefix, params, params_len, desc, invisible, \
     handler, context}
#define VALKEYMODULE_SCRIPTING_ENGINE_DEBUGGER_COMMAND(name, prefix, params, params_len, desc, invisible, handler) \
    VALKEYMODULE_SCRIPTING_ENGINE_DEBUGGER_COMMAND_WITH_CTX( \
        name, prefix, params, params_len, desc, invisible, handler, NULL)

typedef ValkeyModuleScriptingEngineCompiledFunction **(*ValkeyModuleScriptingEngineCompileCodeFunc)(
    ValkeyModuleCtx *module_ctx, ValkeyModuleScriptingEngineCtx *engine_ctx,
    ValkeyModuleScriptingEngineSubsystemType type, const char *code, size_t code_len, size_t timeout,
    size_t *out_num_compiled_functions, ValkeyModuleString **err);
typedef ValkeyModuleScriptingEngineCompiledFunctionV1 **(*ValkeyModuleScriptingEngineCompileCodeFuncV1)(
    ValkeyModuleCtx *module_ctx, ValkeyModuleScriptingEngineCtx *engine_ctx,
    ValkeyModuleScriptingEngineSubsystemType type, const char *code, size_t timeout,
    size_t *out_num_compiled_functions, ValkeyModuleString **err);
typedef void (*ValkeyModuleScriptingEngineFreeFunctionFunc)(
    ValkeyModuleCtx *module_ctx, ValkeyModuleScriptingEngineCtx *engine_ctx,
    ValkeyModuleScriptingEngineSubsystemType type, ValkeyModuleScriptingEngineCompiledFunction *compiled_function);
typedef void (*ValkeyModuleScriptingEngineCallFunctionFunc)(
    ValkeyModuleCtx *module_ctx, ValkeyModuleScriptingEngineCtx *engine_ctx,
    ValkeyModuleScriptingEngineServerRuntimeCtx *server_ctx,
    ValkeyModuleScriptingEngineCompiledFunction *compiled_function, ValkeyModuleScriptingEngineSubsystemType type,
    ValkeyModuleString **keys, size_t nkeys, ValkeyModuleString **args, size_t nargs);
typedef size_t (*ValkeyModuleScriptingEngineGetFunctionMemoryOverheadFunc)(
    ValkeyModuleCtx *module_ctx, ValkeyModuleScriptingEngineCompiledFunction *compiled_function);
typedef ValkeyModuleScriptingEngineCallableLazyEnvReset *(*ValkeyModuleScriptingEngineResetEvalFuncV2)(
    ValkeyModuleCtx *module_ctx, ValkeyModuleScriptingEngineCtx *engine_ctx, int async);
typedef ValkeyModuleScriptingEngineCallableLazyEnvReset *(*ValkeyModuleScriptingEngineResetEnvFunc)(
    ValkeyModuleCtx *module_ctx, ValkeyModuleScriptingEngineCtx *engine_ctx,
    ValkeyModuleScriptingEngineSubsystemType type, int async);
typedef ValkeyModuleScriptingEngineMemoryInfo (*ValkeyModuleScriptingEngineGetMemoryInfoFunc)(
    ValkeyModuleCtx *module_ctx, ValkeyModuleScriptingEngineCtx *engine_ctx,
    ValkeyModuleScriptingEngineSubsystemType type);
typedef ValkeyModuleScriptingEngineDebuggerEnableRet (*ValkeyModuleScriptingEngineDebuggerEnableFunc)(
    ValkeyModuleCtx *module_ctx, ValkeyModuleScriptingEngineCtx *engine_ctx,
    ValkeyModuleScriptingEngineSubsystemType type, const ValkeyModuleScriptingEngineDebuggerCommand **commands,
    size_t *commands_length);
typedef void (*ValkeyModuleScriptingEngineDebuggerDisableFunc)(
    ValkeyModuleCtx *module_ctx, ValkeyModuleScriptingEngineCtx *engine_ctx,
    ValkeyModuleScriptingEngineSubsystemType type);
typedef void (*ValkeyModuleScriptingEngineDebuggerStartFunc)(
    ValkeyModuleCtx *module_ctx, ValkeyModuleScriptingEngineCtx *engine_ctx,
    ValkeyModuleScriptingEngineSubsystemType type, ValkeyModuleString *source);
typedef void (*ValkeyModuleScriptingEngineDebuggerEndFunc)(
    ValkeyModuleCtx *module_ctx, ValkeyModuleScriptingEngineCtx *engine_ctx,
    ValkeyModuleScriptingEngineSubsystemType type);

/* The functions of an engine. Version 4 adds those of the debugger to version 3. */
#define WEFTMODULE_ENGINE_METHODS \
    uint64_t version; \
    union { \
        ValkeyModuleScriptingEngineCompileCodeFuncV1 compile_code_v1; \
        ValkeyModuleScriptingEngineCompileCodeFunc compile_code; \
    }; \
    ValkeyModuleScriptingEngineFreeFunctionFunc free_function; \
    ValkeyModuleScriptingEngineCallFunctionFunc call_function; \
    ValkeyModuleScriptingEngineGetFunctionMemoryOverheadFunc get_function_memory_overhead; \
    union { \
        ValkeyModuleScriptingEngineResetEvalFuncV2 reset_eval_env_v2; \
        ValkeyModuleScriptingEngineResetEnvFunc reset_env; \
    }; \
    ValkeyModuleScriptingEngineGetMemoryInfoFunc get_memory_info;

typedef struct ValkeyModuleScriptingEngineMethodsV3 {
    WEFTMODULE_ENGINE_METHODS
} ValkeyModuleScriptingEngineMethodsV3;

typedef struct ValkeyModuleScriptingEngineMethodsV4 {
    WEFTMODULE_ENGINE_METHODS
    ValkeyModuleScriptingEngineDebuggerEnableFunc debugger_enable;
    ValkeyModuleScriptingEngineDebuggerDisableFunc debugger_disable;
    ValkeyModuleScriptingEngineDebuggerStartFunc debugger_start;
    ValkeyModuleScriptingEngineDebuggerEndFunc debugger_end;
} ValkeyModuleScriptingEngineMethods, ValkeyModuleScriptingEngineMethodsV4;

/* Receivers of the parts of a reply. */
typedef struct ValkeyModuleReplyHandlersV1 {
    uint64_t version;
    void (*null)(void *ctx);
    void (*nullBulkString)(void *ctx);
    void (*nullArray)(void *ctx);
    void (*bulkString)(void *ctx, const char *str, size_t len);
    void (*simpleString)(void *ctx, const char *str, size_t len);
    void (*verbatimString)(void *ctx, const char *str, size_t len, const char *fmt);
    void (*error)(void *ctx, const char *msg, size_t len);
    void (*integer)(void *ctx, long long val);
    void (*doubleVal)(void *ctx, double val);
    void (*bigNumber)(void *ctx, const char *str, size_t len);
    void (*boolVal)(void *ctx, int val);
    void (*attributeStart)(void *ctx, size_t len);
    void (*attributeEnd)(void *ctx);
    void (*arrayStart)(void *ctx, size_t len);
    void (*arrayEnd)(void *ctx);
    void (*mapStart)(void *ctx, size_t len);
    void (*mapEnd)(void *ctx);
    void (*setStart)(void *ctx, size_t len);
    void (*setEnd)(void *ctx);
    void (*replyParsingError)(void *ctx);
    void (*onBlocked)(void *ctx, ValkeyModuleCtx *module_ctx, ValkeyModuleCallArgvBlockedHandle *handle);
    int (*onRespAvailable)(void *ctx, ValkeyModuleCtx *module_ctx, const char *proto, size_t proto_len);
} ValkeyModuleReplyHandlers, ValkeyModuleReplyHandlersV1;

/* The functions: the type of the result, the name, the parameters. */
#define WEFTMODULE_FUNCTIONS(X) \
    X(void, _Assert, (const char *estr, const char *file, int line)) \
    X(int, AbortBlock, (ValkeyModuleBlockedClient *bc)) \
    X(void, ACLAddLogEntry, \
      (ValkeyModuleCtx *ctx, ValkeyModuleUser *user, ValkeyModuleString *object, \
       ValkeyModuleACLLogEntryReason reason)) \
    X(void, ACLAddLogEntryByUserName, \
      (ValkeyModuleCtx *ctx, ValkeyModuleString *user, ValkeyModuleString *object, \
       ValkeyModuleACLLogEntryReason reason)) \
    X(int, ACLCheckChannelPermissions, (ValkeyModuleUser *user, ValkeyModuleString *ch, int literal)) \
    X(int, ACLCheckCommandPermissions, (ValkeyModuleUser *user, ValkeyModuleString **argv, int argc)) \
    X(int, ACLCheckKeyPermissions, (ValkeyModuleUser *user, ValkeyModuleString *key, int flags)) \
    X(int, ACLCheckKeyPrefixPermissions, (ValkeyModuleUser *user, const char *key, size_t len, unsigned int flags)) \
    X(int, ACLCheckPermissions, \
      (ValkeyModuleUser *user, ValkeyModuleString **argv, int argc, int dbid, \
       ValkeyModuleACLLogEntryReason *denial_reason)) \
    X(int, AddACLCategory, (ValkeyModuleCtx *ctx, const char *name)) \
    X(int, AddPostNotificationJob, \
      (ValkeyModuleCtx *ctx, ValkeyModulePostNotificationJobFunc callback, void *pd, void (*free_pd)(void *))) \
    X(void *, Alloc, (size_t bytes)) \
    X(int, AuthenticateClientWithACLUser, \
      (ValkeyModuleCtx *ctx, const char *name, size_t len, ValkeyModuleUserChangedFunc callback, void *privdata, \
       uint64_t *client_id)) \
    X(int, AuthenticateClientWithUser, \
      (ValkeyModuleCtx *ctx, ValkeyModuleUser *user, ValkeyModuleUserChangedFunc callback, void *privdata, \
       uint64_t *client_id)) \
    X(void, AutoMemory, (ValkeyModuleCtx *ctx)) \
    X(int, AvoidReplicaTraffic, (void)) \
    X(ValkeyModuleBlockedClient *, BlockClient, \
      (ValkeyModuleCtx *ctx, ValkeyModuleCmdFunc reply_callback, ValkeyModuleCmdFunc timeout_callback, \
       void (*free_privdata)(ValkeyModuleCtx *, void *), long long timeout_ms)) \
    X(void *, BlockClientGetPrivateData, (ValkeyModuleBlockedClient *blocked_client)) \
    X(ValkeyModuleBlockedClient *, BlockClientOnAuth, \
      (ValkeyModuleCtx *ctx, ValkeyModuleAuthCallback reply_callback, void (*free_privdata)(ValkeyModuleCtx *, \
       void *))) \
    X(ValkeyModuleBlockedClient *, BlockClientOnKeys, \
      (ValkeyModuleCtx *ctx, ValkeyModuleCmdFunc reply_callback, ValkeyModuleCmdFunc timeout_callback, \
       void (*free_privdata)(ValkeyModuleCtx *, void *), long long timeout_ms, ValkeyModuleString **keys, \
       int numkeys, void *privdata)) \
    X(ValkeyModuleBlockedClient *, BlockClientOnKeysWithFlags, \
      (ValkeyModuleCtx *ctx, ValkeyModuleCmdFunc reply_callback, ValkeyModuleCmdFunc timeout_callback, \
       void (*free_privdata)(ValkeyModuleCtx *, void *), long long timeout_ms, ValkeyModuleString **keys, \
       int numkeys, void *privdata, int flags)) \
    X(void, BlockClientSetPrivateData, (ValkeyModuleBlockedClient *blocked_client, void *private_data)) \
    X(int, BlockedClientDisconnected, (ValkeyModuleCtx *ctx)) \
    X(int, BlockedClientMeasureTimeEnd, (ValkeyModuleBlockedClient *bc)) \
    X(int, BlockedClientMeasureTimeStart, (ValkeyModuleBlockedClient *bc)) \
    X(ustime_t, CachedMicroseconds, (void)) \
    X(ValkeyModuleCallReply *, Call, (ValkeyModuleCtx *ctx, const char *cmdname, const char *fmt, ...)) \
    X(void *, Calloc, (size_t nmemb, size_t size)) \
    X(ValkeyModuleCallReply *, CallReplyArrayElement, (ValkeyModuleCallReply *reply, size_t idx)) \
    X(ValkeyModuleCallReply *, CallReplyAttribute, (ValkeyModuleCallReply *reply)) \
    X(int, CallReplyAttributeElement, \
      (ValkeyModuleCallReply *reply, size_t idx, ValkeyModuleCallReply **key, ValkeyModuleCallReply **val)) \
    X(const char *, CallReplyBigNumber, (ValkeyModuleCallReply *reply, size_t *len)) \
    X(int, CallReplyBool, (ValkeyModuleCallReply *reply)) \
    X(double, CallReplyDouble, (ValkeyModuleCallReply *reply)) \
    X(long long, CallReplyInteger, (ValkeyModuleCallReply *reply)) \
    X(size_t, CallReplyLength, (ValkeyModuleCallReply *reply)) \
    X(int, CallReplyMapElement, \
      (ValkeyModuleCallReply *reply, size_t idx, ValkeyModuleCallReply **key, ValkeyModuleCallReply **val)) \
    X(int, CallReplyPromiseAbort, (ValkeyModuleCallReply *reply, void **private_data)) \
    X(void, CallReplyPromiseSetUnblockHandler, \
      (ValkeyModuleCallReply *reply, ValkeyModuleOnUnblocked on_unblock, void *private_data)) \
    X(const char *, CallReplyProto, (ValkeyModuleCallReply *reply, size_t *len)) \
    X(ValkeyModuleCallReply *, CallReplySetElement, (ValkeyModuleCallReply *reply, size_t idx)) \
    X(const char *, CallReplyStringPtr, (ValkeyModuleCallReply *reply, size_t *len)) \
    X(int, CallReplyType, (ValkeyModuleCallReply *reply)) \
    X(const char *, CallReplyVerbatim, (ValkeyModuleCallReply *reply, size_t *len, const char **format)) \
    X(void, ChannelAtPosWithFlags, (ValkeyModuleCtx *ctx, int pos, int flags)) \
    X(void, CloseKey, (ValkeyModuleKey *kp)) \
    X(const char *, ClusterCanonicalKeyNameInSlot, (unsigned int slot)) \
    X(unsigned int, ClusterKeySlot, (ValkeyModuleString *key)) \
    X(unsigned int, ClusterKeySlotC, (const char *key, size_t keylen)) \
    X(int, CommandFilterArgDelete, (ValkeyModuleCommandFilterCtx *fctx, int pos)) \
    X(ValkeyModuleString *, CommandFilterArgGet, (ValkeyModuleCommandFilterCtx *fctx, int pos)) \
    X(int, CommandFilterArgInsert, (ValkeyModuleCommandFilterCtx *fctx, int pos, ValkeyModuleString *arg)) \
    X(int, CommandFilterArgReplace, (ValkeyModuleCommandFilterCtx *fctx, int pos, ValkeyModuleString *arg)) \
    X(int, CommandFilterArgsCount, (ValkeyModuleCommandFilterCtx *fctx)) \
    X(unsigned long long, CommandFilterGetClientId, (ValkeyModuleCommandFilterCtx *fctx)) \
    X(int, CreateCommand, \
      (ValkeyModuleCtx *ctx, const char *name, ValkeyModuleCmdFunc cmdfunc, const char *strflags, int firstkey, \
       int lastkey, int keystep)) \
    X(ValkeyModuleType *, CreateDataType, \
      (ValkeyModuleCtx *ctx, const char *name, int encver, ValkeyModuleTypeMethods *typemethods)) \
    X(ValkeyModuleDict *, CreateDict, (ValkeyModuleCtx *ctx)) \
    X(ValkeyModuleUser *, CreateModuleUser, (const char *name)) \
    X(ValkeyModuleString *, CreateString, (ValkeyModuleCtx *ctx, const char *ptr, size_t len)) \
    X(ValkeyModuleString *, CreateStringFromCallReply, (ValkeyModuleCallReply *reply)) \
    X(ValkeyModuleString *, CreateStringFromDouble, (ValkeyModuleCtx *ctx, double d)) \
    X(ValkeyModuleString *, CreateStringFromLongDouble, (ValkeyModuleCtx *ctx, long double ld, int humanfriendly)) \
    X(ValkeyModuleString *, CreateStringFromLongLong, (ValkeyModuleCtx *ctx, long long ll)) \
    X(ValkeyModuleString *, CreateStringFromStreamID, (ValkeyModuleCtx *ctx, const ValkeyModuleStreamID *id)) \
    X(ValkeyModuleString *, CreateStringFromString, (ValkeyModuleCtx *ctx, const ValkeyModuleString *str)) \
    X(ValkeyModuleString *, CreateStringFromULongLong, (ValkeyModuleCtx *ctx, unsigned long long ull)) \
    X(ValkeyModuleString *, CreateStringPrintf, (ValkeyModuleCtx *ctx, const char *fmt, ...) WEFTMODULE_PRINTF(2, 3)) \
    X(int, CreateSubcommand, \
      (ValkeyModuleCommand *parent, const char *name, ValkeyModuleCmdFunc cmdfunc, const char *strflags, \
       int firstkey, int lastkey, int keystep)) \
    X(ValkeyModuleTimerID, CreateTimer, \
      (ValkeyModuleCtx *ctx, mstime_t period, ValkeyModuleTimerProc callback, void *data)) \
    X(unsigned long long, DbSize, (ValkeyModuleCtx *ctx)) \
    X(int, DeauthenticateAndCloseClient, (ValkeyModuleCtx *ctx, uint64_t client_id)) \
    X(void *, DefragAlloc, (ValkeyModuleDefragCtx *ctx, void *ptr)) \
    X(int, DefragCursorGet, (ValkeyModuleDefragCtx *ctx, unsigned long *cursor)) \
    X(int, DefragCursorSet, (ValkeyModuleDefragCtx *ctx, unsigned long cursor)) \
    X(int, DefragShouldStop, (ValkeyModuleDefragCtx *ctx)) \
    X(ValkeyModuleString *, DefragValkeyModuleString, (ValkeyModuleDefragCtx *ctx, ValkeyModuleString *str)) \
    X(int, DeleteKey, (ValkeyModuleKey *key)) \
    X(int, DictCompare, (ValkeyModuleDictIter *di, const char *op, ValkeyModuleString *key)) \
    X(int, DictCompareC, (ValkeyModuleDictIter *di, const char *op, void *key, size_t keylen)) \
    X(int, DictDel, (ValkeyModuleDict *d, ValkeyModuleString *key, void *oldval)) \
    X(int, DictDelC, (ValkeyModuleDict *d, void *key, size_t keylen, void *oldval)) \
    X(void *, DictGet, (ValkeyModuleDict *d, ValkeyModuleString *key, int *nokey)) \
    X(void *, DictGetC, (ValkeyModuleDict *d, void *key, size_t keylen, int *nokey)) \
    X(int, DictIteratorReseek, (ValkeyModuleDictIter *di, const char *op, ValkeyModuleString *key)) \
    X(int, DictIteratorReseekC, (ValkeyModuleDictIter *di, const char *op, void *key, size_t keylen)) \
    X(ValkeyModuleDictIter *, DictIteratorStart, (ValkeyModuleDict *d, const char *op, ValkeyModuleString *key)) \
    X(ValkeyModuleDictIter *, DictIteratorStartC, (ValkeyModuleDict *d, const char *op, void *key, size_t keylen)) \
    X(void, DictIteratorStop, (ValkeyModuleDictIter *di)) \
    X(ValkeyModuleString *, DictNext, (ValkeyModuleCtx *ctx, ValkeyModuleDictIter *di, void **dataptr)) \
    X(void *, DictNextC, (ValkeyModuleDictIter *di, size_t *keylen, void **dataptr)) \
    X(ValkeyModuleString *, DictPrev, (ValkeyModuleCtx *ctx, ValkeyModuleDictIter *di, void **dataptr)) \
    X(void *, DictPrevC, (ValkeyModuleDictIter *di, size_t *keylen, void **dataptr)) \
    X(int, DictReplace, (ValkeyModuleDict *d, ValkeyModuleString *key, void *ptr)) \
    X(int, DictReplaceC, (ValkeyModuleDict *d, void *key, size_t keylen, void *ptr)) \
    X(int, DictSet, (ValkeyModuleDict *d, ValkeyModuleString *key, void *ptr)) \
    X(int, DictSetC, (ValkeyModuleDict *d, void *key, size_t keylen, void *ptr)) \
    X(uint64_t, DictSize, (ValkeyModuleDict *d)) \
    X(void, DigestAddLongLong, (ValkeyModuleDigest *md, long long ele)) \
    X(void, DigestAddStringBuffer, (ValkeyModuleDigest *md, const char *ele, size_t len)) \
    X(void, DigestEndSequence, (ValkeyModuleDigest *md)) \
    X(void, EmitAOF, (ValkeyModuleIO *io, const char *cmdname, const char *fmt, ...)) \
    X(int, EventLoopAdd, (int fd, int mask, ValkeyModuleEventLoopFunc func, void *user_data)) \
    X(int, EventLoopAddOneShot, (ValkeyModuleEventLoopOneShotFunc func, void *user_data)) \
    X(int, EventLoopDel, (int fd, int mask)) \
    X(int, ExitFromChild, (int retcode)) \
    X(int, ExportSharedAPI, (ValkeyModuleCtx *ctx, const char *apiname, void *func)) \
    X(int, Fork, (ValkeyModuleForkDoneHandler cb, void *user_data)) \
    X(void, Free, (void *ptr)) \
    X(void, FreeCallReply, (ValkeyModuleCallReply *reply)) \
    X(void, FreeClusterNodesList, (char **ids)) \
    X(void, FreeDict, (ValkeyModuleCtx *ctx, ValkeyModuleDict *d)) \
    X(void, FreeModuleUser, (ValkeyModuleUser *user)) \
    X(void, FreeServerInfo, (ValkeyModuleCtx *ctx, ValkeyModuleServerInfoData *data)) \
    X(void, FreeString, (ValkeyModuleCtx *ctx, ValkeyModuleString *str)) \
    X(void, FreeThreadSafeContext, (ValkeyModuleCtx *ctx)) \
    X(mstime_t, GetAbsExpire, (ValkeyModuleKey *key)) \
    X(ValkeyModuleBlockedClient *, GetBlockedClientHandle, (ValkeyModuleCtx *ctx)) \
    X(void *, GetBlockedClientPrivateData, (ValkeyModuleCtx *ctx)) \
    X(ValkeyModuleString *, GetBlockedClientReadyKey, (ValkeyModuleCtx *ctx)) \
    X(ValkeyModuleString *, GetClientCertificate, (ValkeyModuleCtx *ctx, uint64_t id)) \
    X(unsigned long long, GetClientId, (ValkeyModuleCtx *ctx)) \
    X(int, GetClientInfoById, (void *ci, uint64_t id)) \
    X(ValkeyModuleString *, GetClientNameById, (ValkeyModuleCtx *ctx, uint64_t id)) \
    X(ValkeyModuleString *, GetClientUserNameById, (ValkeyModuleCtx *ctx, uint64_t id)) \
    X(int, GetClusterNodeInfo, \
      (ValkeyModuleCtx *ctx, const char *id, char *ip, char *primary_id, int *port, int *flags)) \
    X(int, GetClusterNodeInfoForClient, \
      (ValkeyModuleCtx *ctx, uint64_t client_id, const char *node_id, char *ip, char *primary_id, int *port, \
       int *flags)) \
    X(char **, GetClusterNodesList, (ValkeyModuleCtx *ctx, size_t *numnodes)) \
    X(size_t, GetClusterSize, (void)) \
    X(ValkeyModuleCommand *, GetCommand, (ValkeyModuleCtx *ctx, const char *name)) \
    X(int *, GetCommandKeys, (ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc, int *num_keys)) \
    X(int *, GetCommandKeysWithFlags, \
      (ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc, int *num_keys, int **out_flags)) \
    X(int, GetContextFlags, (ValkeyModuleCtx *ctx)) \
    X(int, GetContextFlagsAll, (void)) \
    X(ValkeyModuleCtx *, GetContextFromIO, (ValkeyModuleIO *io)) \
    X(const char *, GetCurrentCommandName, (ValkeyModuleCtx *ctx)) \
    X(ValkeyModuleString *, GetCurrentUserName, (ValkeyModuleCtx *ctx)) \
    X(int, GetDbIdFromDefragCtx, (ValkeyModuleDefragCtx *ctx)) \
    X(int, GetDbIdFromDigest, (ValkeyModuleDigest *dig)) \
    X(int, GetDbIdFromIO, (ValkeyModuleIO *io)) \
    X(int, GetDbIdFromModuleKey, (ValkeyModuleKey *key)) \
    X(int, GetDbIdFromOptCtx, (ValkeyModuleKeyOptCtx *ctx)) \
    X(ValkeyModuleCtx *, GetDetachedThreadSafeContext, (ValkeyModuleCtx *ctx)) \
    X(mstime_t, GetExpire, (ValkeyModuleKey *key)) \
    X(ValkeyModuleScriptingEngineExecutionState, GetFunctionExecutionState, \
      (ValkeyModuleScriptingEngineServerRuntimeCtx *server_ctx)) \
    X(const ValkeyModuleString *, GetKeyNameFromDefragCtx, (ValkeyModuleDefragCtx *ctx)) \
    X(const ValkeyModuleString *, GetKeyNameFromDigest, (ValkeyModuleDigest *dig)) \
    X(const ValkeyModuleString *, GetKeyNameFromIO, (ValkeyModuleIO *io)) \
    X(const ValkeyModuleString *, GetKeyNameFromModuleKey, (ValkeyModuleKey *key)) \
    X(const ValkeyModuleString *, GetKeyNameFromOptCtx, (ValkeyModuleKeyOptCtx *ctx)) \
    X(int, GetKeyspaceNotificationFlagsAll, (void)) \
    X(int, GetLFU, (ValkeyModuleKey *key, long long *lfu_freq)) \
    X(int, GetLRU, (ValkeyModuleKey *key, mstime_t *lru_idle)) \
    X(int, GetModuleOptionsAll, (void)) \
    X(ValkeyModuleString *, GetModuleUserACLString, (ValkeyModuleUser *user)) \
    X(ValkeyModuleUser *, GetModuleUserFromUserName, (ValkeyModuleString *name)) \
    X(const char *, GetMyClusterID, (void)) \
    X(int, GetNotifyKeyspaceEvents, (void)) \
    X(int, GetOpenKeyModesAll, (void)) \
    X(void, GetRandomBytes, (unsigned char *dst, size_t len)) \
    X(void, GetRandomHexChars, (char *dst, size_t len)) \
    X(int, GetSelectedDb, (ValkeyModuleCtx *ctx)) \
    X(ValkeyModuleServerInfoData *, GetServerInfo, (ValkeyModuleCtx *ctx, const char *section)) \
    X(int, GetServerVersion, (void)) \
    X(void *, GetSharedAPI, (ValkeyModuleCtx *ctx, const char *apiname)) \
    X(ValkeyModuleCtx *, GetThreadSafeContext, (ValkeyModuleBlockedClient *bc)) \
    X(int, GetTimerInfo, (ValkeyModuleCtx *ctx, ValkeyModuleTimerID id, uint64_t *remaining, void **data)) \
    X(int, GetToDbIdFromOptCtx, (ValkeyModuleKeyOptCtx *ctx)) \
    X(const ValkeyModuleString *, GetToKeyNameFromOptCtx, (ValkeyModuleKeyOptCtx *ctx)) \
    X(int, GetTypeMethodVersion, (void)) \
    X(float, GetUsedMemoryRatio, (void)) \
    X(int, HashGet, (ValkeyModuleKey *key, int flags, ...)) \
    X(int, HashHasStringRef, (ValkeyModuleKey *key, ValkeyModuleString *field)) \
    X(int, HashSet, (ValkeyModuleKey *key, int flags, ...)) \
    X(int, HashSetStringRef, (ValkeyModuleKey *key, ValkeyModuleString *field, const char *buf, size_t len)) \
    X(ValkeyModuleString *, HoldString, (ValkeyModuleCtx *ctx, ValkeyModuleString *str)) \
    X(int, InfoAddFieldCString, (ValkeyModuleInfoCtx *ctx, const char *field, const char *value)) \
    X(int, InfoAddFieldDouble, (ValkeyModuleInfoCtx *ctx, const char *field, double value)) \
    X(int, InfoAddFieldLongLong, (ValkeyModuleInfoCtx *ctx, const char *field, long long value)) \
    X(int, InfoAddFieldString, (ValkeyModuleInfoCtx *ctx, const char *field, ValkeyModuleString *value)) \
    X(int, InfoAddFieldULongLong, (ValkeyModuleInfoCtx *ctx, const char *field, unsigned long long value)) \
    X(int, InfoAddSection, (ValkeyModuleInfoCtx *ctx, const char *name)) \
    X(int, InfoBeginDictField, (ValkeyModuleInfoCtx *ctx, const char *name)) \
    X(int, InfoEndDictField, (ValkeyModuleInfoCtx *ctx)) \
    X(int, IsBlockedReplyRequest, (ValkeyModuleCtx *ctx)) \
    X(int, IsBlockedTimeoutRequest, (ValkeyModuleCtx *ctx)) \
    X(int, IsChannelsPositionRequest, (ValkeyModuleCtx *ctx)) \
    X(int, IsIOError, (ValkeyModuleIO *io)) \
    X(int, IsKeysPositionRequest, (ValkeyModuleCtx *ctx)) \
    X(int, IsModuleNameBusy, (const char *name)) \
    X(int, IsSubEventSupported, (ValkeyModuleEvent event, uint64_t subevent)) \
    X(void, KeyAtPos, (ValkeyModuleCtx *ctx, int pos)) \
    X(void, KeyAtPosWithFlags, (ValkeyModuleCtx *ctx, int pos, int flags)) \
    X(int, KeyExists, (ValkeyModuleCtx *ctx, ValkeyModuleString *keyname)) \
    X(int, KeyType, (ValkeyModuleKey *kp)) \
    X(int, KillForkChild, (int child_pid)) \
    X(void, LatencyAddSample, (const char *event, mstime_t latency)) \
    X(int, ListDelete, (ValkeyModuleKey *key, long index)) \
    X(ValkeyModuleString *, ListGet, (ValkeyModuleKey *key, long index)) \
    X(int, ListInsert, (ValkeyModuleKey *key, long index, ValkeyModuleString *value)) \
    X(ValkeyModuleString *, ListPop, (ValkeyModuleKey *key, int where)) \
    X(int, ListPush, (ValkeyModuleKey *kp, int where, ValkeyModuleString *ele)) \
    X(int, ListSet, (ValkeyModuleKey *key, long index, ValkeyModuleString *value)) \
    X(int, LoadConfigs, (ValkeyModuleCtx *ctx)) \
    X(void *, LoadDataTypeFromString, (const ValkeyModuleString *str, const ValkeyModuleType *mt)) \
    X(void *, LoadDataTypeFromStringEncver, (const ValkeyModuleString *str, const ValkeyModuleType *mt, int encver)) \
    X(double, LoadDouble, (ValkeyModuleIO *io)) \
    X(float, LoadFloat, (ValkeyModuleIO *io)) \
    X(long double, LoadLongDouble, (ValkeyModuleIO *io)) \
    X(int64_t, LoadSigned, (ValkeyModuleIO *io)) \
    X(ValkeyModuleString *, LoadString, (ValkeyModuleIO *io)) \
    X(char *, LoadStringBuffer, (ValkeyModuleIO *io, size_t *lenptr)) \
    X(uint64_t, LoadUnsigned, (ValkeyModuleIO *io)) \
    X(void, Log, (ValkeyModuleCtx *ctx, const char *level, const char *fmt, ...) WEFTMODULE_PRINTF(3, 4)) \
    X(void, LogIOError, (ValkeyModuleIO *io, const char *levelstr, const char *fmt, ...) WEFTMODULE_PRINTF(3, 4)) \
    X(size_t, MallocSize, (void *ptr)) \
    X(size_t, MallocSizeDict, (ValkeyModuleDict *dict)) \
    X(size_t, MallocSizeString, (ValkeyModuleString *str)) \
    X(size_t, MallocUsableSize, (void *ptr)) \
    X(ustime_t, Microseconds, (void)) \
    X(mstime_t, Milliseconds, (void)) \
    X(ValkeyModuleType *, ModuleTypeGetType, (ValkeyModuleKey *key)) \
    X(void *, ModuleTypeGetValue, (ValkeyModuleKey *key)) \
    X(int, ModuleTypeReplaceValue, (ValkeyModuleKey *key, ValkeyModuleType *mt, void *new_value, void **old_value)) \
    X(int, ModuleTypeSetValue, (ValkeyModuleKey *key, ValkeyModuleType *mt, void *value)) \
    X(uint64_t, MonotonicMicroseconds, (void)) \
    X(int, MustObeyClient, (ValkeyModuleCtx *ctx)) \
    X(int, NotifyKeyspaceEvent, (ValkeyModuleCtx *ctx, int type, const char *event, ValkeyModuleString *key)) \
    X(ValkeyModuleKey *, OpenKey, (ValkeyModuleCtx *ctx, ValkeyModuleString *keyname, int mode)) \
    X(void *, PoolAlloc, (ValkeyModuleCtx *ctx, size_t bytes)) \
    X(int, PublishMessage, (ValkeyModuleCtx *ctx, ValkeyModuleString *channel, ValkeyModuleString *message)) \
    X(int, PublishMessageShard, (ValkeyModuleCtx *ctx, ValkeyModuleString *channel, ValkeyModuleString *message)) \
    X(ValkeyModuleString *, RandomKey, (ValkeyModuleCtx *ctx)) \
    X(int, RdbLoad, (ValkeyModuleCtx *ctx, ValkeyModuleRdbStream *stream, int flags)) \
    X(int, RdbSave, (ValkeyModuleCtx *ctx, ValkeyModuleRdbStream *stream, int flags)) \
    X(ValkeyModuleRdbStream *, RdbStreamCreateFromFile, (const char *filename)) \
    X(void, RdbStreamFree, (ValkeyModuleRdbStream *stream)) \
    X(void *, Realloc, (void *ptr, size_t bytes)) \
    X(int, RedactClientCommandArgument, (ValkeyModuleCtx *ctx, int pos)) \
    X(void, RegisterAuthCallback, (ValkeyModuleCtx *ctx, ValkeyModuleAuthCallback cb)) \
    X(int, RegisterBoolConfig, \
      (ValkeyModuleCtx *ctx, const char *name, int default_val, unsigned int flags, \
       ValkeyModuleConfigGetBoolFunc getfn, ValkeyModuleConfigSetBoolFunc setfn, ValkeyModuleConfigApplyFunc applyfn, \
       void *privdata)) \
    X(void, RegisterClusterMessageReceiver, \
      (ValkeyModuleCtx *ctx, uint8_t type, ValkeyModuleClusterMessageReceiver callback)) \
    X(ValkeyModuleCommandFilter *, RegisterCommandFilter, \
      (ValkeyModuleCtx *ctx, ValkeyModuleCommandFilterFunc cb, int flags)) \
    X(int, RegisterDefragFunc, (ValkeyModuleCtx *ctx, ValkeyModuleDefragFunc func)) \
    X(int, RegisterEnumConfig, \
      (ValkeyModuleCtx *ctx, const char *name, int default_val, unsigned int flags, const char **enum_values, \
       const int *int_values, int num_enum_vals, ValkeyModuleConfigGetEnumFunc getfn, \
       ValkeyModuleConfigSetEnumFunc setfn, ValkeyModuleConfigApplyFunc applyfn, void *privdata)) \
    X(int, RegisterInfoFunc, (ValkeyModuleCtx *ctx, ValkeyModuleInfoFunc cb)) \
    X(int, RegisterNumericConfig, \
      (ValkeyModuleCtx *ctx, const char *name, long long default_val, unsigned int flags, long long min, \
       long long max, ValkeyModuleConfigGetNumericFunc getfn, ValkeyModuleConfigSetNumericFunc setfn, \
       ValkeyModuleConfigApplyFunc applyfn, void *privdata)) \
    X(int, RegisterScriptingEngine, \
      (ValkeyModuleCtx *module_ctx, const char *engine_name, ValkeyModuleScriptingEngineCtx *engine_ctx, \
       ValkeyModuleScriptingEngineMethodsV4 *engine_methods)) \
    X(int, RegisterStringConfig, \
      (ValkeyModuleCtx *ctx, const char *name, const char *default_val, unsigned int flags, \
       ValkeyModuleConfigGetStringFunc getfn, ValkeyModuleConfigSetStringFunc setfn, \
       ValkeyModuleConfigApplyFunc applyfn, void *privdata)) \
    X(int, RegisterUnsignedNumericConfig, \
      (ValkeyModuleCtx *ctx, const char *name, unsigned long long default_val, unsigned int flags, \
       unsigned long long min, unsigned long long max, ValkeyModuleConfigGetUnsignedNumericFunc getfn, \
       ValkeyModuleConfigSetUnsignedNumericFunc setfn, ValkeyModuleConfigApplyFunc applyfn, void *privdata)) \
    X(int, Replicate, (ValkeyModuleCtx *ctx, const char *cmdname, const char *fmt, ...)) \
    X(int, ReplicateVerbatim, (ValkeyModuleCtx *ctx)) \
    X(void, ReplySetArrayLength, (ValkeyModuleCtx *ctx, long len)) \
    X(void, ReplySetAttributeLength, (ValkeyModuleCtx *ctx, long len)) \
    X(void, ReplySetMapLength, (ValkeyModuleCtx *ctx, long len)) \
    X(void, ReplySetSetLength, (ValkeyModuleCtx *ctx, long len)) \
    X(int, ReplyWithArray, (ValkeyModuleCtx *ctx, long len)) \
    X(int, ReplyWithAttribute, (ValkeyModuleCtx *ctx, long len)) \
    X(int, ReplyWithBigNumber, (ValkeyModuleCtx *ctx, const char *bignum, size_t len)) \
    X(int, ReplyWithBool, (ValkeyModuleCtx *ctx, int b)) \
    X(int, ReplyWithCallReply, (ValkeyModuleCtx *ctx, ValkeyModuleCallReply *reply)) \
    X(int, ReplyWithCString, (ValkeyModuleCtx *ctx, const char *buf)) \
    X(int, ReplyWithCustomErrorFormat, \
      (ValkeyModuleCtx *ctx, int update_error_stats, const char *fmt, ...) WEFTMODULE_PRINTF(3, 4)) \
    X(int, ReplyWithDouble, (ValkeyModuleCtx *ctx, double d)) \
    X(int, ReplyWithEmptyArray, (ValkeyModuleCtx *ctx)) \
    X(int, ReplyWithEmptyString, (ValkeyModuleCtx *ctx)) \
    X(int, ReplyWithError, (ValkeyModuleCtx *ctx, const char *err)) \
    X(int, ReplyWithErrorFormat, (ValkeyModuleCtx *ctx, const char *fmt, ...) WEFTMODULE_PRINTF(2, 3)) \
    X(int, ReplyWithLongDouble, (ValkeyModuleCtx *ctx, long double d)) \
    X(int, ReplyWithLongLong, (ValkeyModuleCtx *ctx, long long ll)) \
    X(int, ReplyWithMap, (ValkeyModuleCtx *ctx, long len)) \
    X(int, ReplyWithNull, (ValkeyModuleCtx *ctx)) \
    X(int, ReplyWithNullArray, (ValkeyModuleCtx *ctx)) \
    X(int, ReplyWithSet, (ValkeyModuleCtx *ctx, long len)) \
    X(int, ReplyWithSimpleString, (ValkeyModuleCtx *ctx, const char *msg)) \
    X(int, ReplyWithString, (ValkeyModuleCtx *ctx, ValkeyModuleString *str)) \
    X(int, ReplyWithStringBuffer, (ValkeyModuleCtx *ctx, const char *buf, size_t len)) \
    X(int, ReplyWithVerbatimString, (ValkeyModuleCtx *ctx, const char *buf, size_t len)) \
    X(int, ReplyWithVerbatimStringType, (ValkeyModuleCtx *ctx, const char *buf, size_t len, const char *ext)) \
    X(void, ResetDataset, (int restart_aof, int async)) \
    X(void, RetainString, (ValkeyModuleCtx *ctx, ValkeyModuleString *str)) \
    X(ValkeyModuleString *, SaveDataTypeToString, (ValkeyModuleCtx *ctx, void *data, const ValkeyModuleType *mt)) \
    X(void, SaveDouble, (ValkeyModuleIO *io, double value)) \
    X(void, SaveFloat, (ValkeyModuleIO *io, float value)) \
    X(void, SaveLongDouble, (ValkeyModuleIO *io, long double value)) \
    X(void, SaveSigned, (ValkeyModuleIO *io, int64_t value)) \
    X(void, SaveString, (ValkeyModuleIO *io, ValkeyModuleString *s)) \
    X(void, SaveStringBuffer, (ValkeyModuleIO *io, const char *str, size_t len)) \
    X(void, SaveUnsigned, (ValkeyModuleIO *io, uint64_t value)) \
    X(int, Scan, (ValkeyModuleCtx *ctx, ValkeyModuleScanCursor *cursor, ValkeyModuleScanCB fn, void *privdata)) \
    X(ValkeyModuleScanCursor *, ScanCursorCreate, (void)) \
    X(void, ScanCursorDestroy, (ValkeyModuleScanCursor *cursor)) \
    X(void, ScanCursorRestart, (ValkeyModuleScanCursor *cursor)) \
    X(int, ScanKey, (ValkeyModuleKey *key, ValkeyModuleScanCursor *cursor, ValkeyModuleScanKeyCB fn, void *privdata)) \
    X(void, ScriptingEngineDebuggerFlushLogs, (void)) \
    X(void, ScriptingEngineDebuggerLog, (ValkeyModuleString *msg, int truncate)) \
    X(void, ScriptingEngineDebuggerLogRespReply, (ValkeyModuleCallReply *reply)) \
    X(void, ScriptingEngineDebuggerLogRespReplyStr, (const char *reply)) \
    X(void, ScriptingEngineDebuggerProcessCommands, (int *client_disconnected, ValkeyModuleString **err)) \
    X(int, SelectDb, (ValkeyModuleCtx *ctx, int newid)) \
    X(void, SendChildHeartbeat, (double progress)) \
    X(int, SendClusterMessage, \
      (ValkeyModuleCtx *ctx, const char *target_id, uint8_t type, const char *msg, uint32_t len)) \
    X(ValkeyModuleString *, ServerInfoGetField, \
      (ValkeyModuleCtx *ctx, ValkeyModuleServerInfoData *data, const char *field)) \
    X(const char *, ServerInfoGetFieldC, (ValkeyModuleServerInfoData *data, const char *field)) \
    X(double, ServerInfoGetFieldDouble, (ValkeyModuleServerInfoData *data, const char *field, int *out_err)) \
    X(long long, ServerInfoGetFieldSigned, (ValkeyModuleServerInfoData *data, const char *field, int *out_err)) \
    X(unsigned long long, ServerInfoGetFieldUnsigned, \
      (ValkeyModuleServerInfoData *data, const char *field, int *out_err)) \
    X(int, SetAbsExpire, (ValkeyModuleKey *key, mstime_t expire)) \
    X(int, SetClientNameById, (uint64_t id, ValkeyModuleString *name)) \
    X(void, SetClusterFlags, (ValkeyModuleCtx *ctx, uint64_t flags)) \
    X(int, SetCommandACLCategories, (ValkeyModuleCommand *command, const char *ctgrsflags)) \
    X(int, SetCommandInfo, (ValkeyModuleCommand *command, const ValkeyModuleCommandInfo *info)) \
    X(void, SetContextUser, (ValkeyModuleCtx *ctx, const ValkeyModuleUser *user)) \
    X(void, SetDisconnectCallback, (ValkeyModuleBlockedClient *bc, ValkeyModuleDisconnectFunc callback)) \
    X(int, SetExpire, (ValkeyModuleKey *key, mstime_t expire)) \
    X(int, SetLFU, (ValkeyModuleKey *key, long long lfu_freq)) \
    X(int, SetLRU, (ValkeyModuleKey *key, mstime_t lru_idle)) \
    X(void, SetModuleAttribs, (ValkeyModuleCtx *ctx, const char *name, int ver, int apiver)) \
    X(void, SetModuleOptions, (ValkeyModuleCtx *ctx, int options)) \
    X(int, SetModuleUserACL, (ValkeyModuleUser *user, const char *acl)) \
    X(int, SetModuleUserACLString, \
      (ValkeyModuleCtx *ctx, ValkeyModuleUser *user, const char *acl, ValkeyModuleString **error)) \
    X(void, SignalKeyAsReady, (ValkeyModuleCtx *ctx, ValkeyModuleString *key)) \
    X(int, SignalModifiedKey, (ValkeyModuleCtx *ctx, ValkeyModuleString *keyname)) \
    X(int, StopTimer, (ValkeyModuleCtx *ctx, ValkeyModuleTimerID id, void **data)) \
    X(char *, Strdup, (const char *str)) \
    X(int, StreamAdd, \
      (ValkeyModuleKey *key, int flags, ValkeyModuleStreamID *id, ValkeyModuleString **argv, int64_t numfields)) \
    X(int, StreamDelete, (ValkeyModuleKey *key, ValkeyModuleStreamID *id)) \
    X(int, StreamIteratorDelete, (ValkeyModuleKey *key)) \
    X(int, StreamIteratorNextField, \
      (ValkeyModuleKey *key, ValkeyModuleString **field_ptr, ValkeyModuleString **value_ptr)) \
    X(int, StreamIteratorNextID, (ValkeyModuleKey *key, ValkeyModuleStreamID *id, long *numfields)) \
    X(int, StreamIteratorStart, \
      (ValkeyModuleKey *key, int flags, ValkeyModuleStreamID *startid, ValkeyModuleStreamID *endid)) \
    X(int, StreamIteratorStop, (ValkeyModuleKey *key)) \
    X(long long, StreamTrimByID, (ValkeyModuleKey *key, int flags, ValkeyModuleStreamID *id)) \
    X(long long, StreamTrimByLength, (ValkeyModuleKey *key, int flags, long long length)) \
    X(int, StringAppendBuffer, (ValkeyModuleCtx *ctx, ValkeyModuleString *str, const char *buf, size_t len)) \
    X(int, StringCompare, (const ValkeyModuleString *a, const ValkeyModuleString *b)) \
    X(char *, StringDMA, (ValkeyModuleKey *key, size_t *len, int mode)) \
    X(const char *, StringPtrLen, (const ValkeyModuleString *str, size_t *len)) \
    X(int, StringSet, (ValkeyModuleKey *key, ValkeyModuleString *str)) \
    X(int, StringToDouble, (const ValkeyModuleString *str, double *d)) \
    X(int, StringToLongDouble, (const ValkeyModuleString *str, long double *d)) \
    X(int, StringToLongLong, (const ValkeyModuleString *str, long long *ll)) \
    X(int, StringToStreamID, (const ValkeyModuleString *str, ValkeyModuleStreamID *id)) \
    X(int, StringToULongLong, (const ValkeyModuleString *str, unsigned long long *ull)) \
    X(int, StringTruncate, (ValkeyModuleKey *key, size_t newlen)) \
    X(int, SubscribeToKeyspaceEvents, (ValkeyModuleCtx *ctx, int types, ValkeyModuleNotificationFunc cb)) \
    X(int, SubscribeToServerEvent, \
      (ValkeyModuleCtx *ctx, ValkeyModuleEvent event, ValkeyModuleEventCallback callback)) \
    X(void, ThreadSafeContextLock, (ValkeyModuleCtx *ctx)) \
    X(int, ThreadSafeContextTryLock, (ValkeyModuleCtx *ctx)) \
    X(void, ThreadSafeContextUnlock, (ValkeyModuleCtx *ctx)) \
    X(void, TrimStringAllocation, (ValkeyModuleString *str)) \
    X(void *, TryAlloc, (size_t bytes)) \
    X(void *, TryCalloc, (size_t nmemb, size_t size)) \
    X(void *, TryRealloc, (void *ptr, size_t bytes)) \
    X(int, UnblockClient, (ValkeyModuleBlockedClient *bc, void *privdata)) \
    X(int, UnlinkKey, (ValkeyModuleKey *key)) \
    X(int, UnregisterCommandFilter, (ValkeyModuleCtx *ctx, ValkeyModuleCommandFilter *filter)) \
    X(int, UnregisterScriptingEngine, (ValkeyModuleCtx *module_ctx, const char *engine_name)) \
    X(int, UpdateRuntimeArgs, (ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc)) \
    X(size_t, ValueLength, (ValkeyModuleKey *kp)) \
    X(int, WrongArity, (ValkeyModuleCtx *ctx)) \
    X(void, Yield, (ValkeyModuleCtx *ctx, int flags, const char *busy_reply)) \
    X(int, ZsetAdd, (ValkeyModuleKey *key, double score, ValkeyModuleString *ele, int *flagsptr)) \
    X(int, ZsetFirstInLexRange, (ValkeyModuleKey *key, ValkeyModuleString *min, ValkeyModuleString *max)) \
    X(int, ZsetFirstInScoreRange, (ValkeyModuleKey *key, double min, double max, int minex, int maxex)) \
    X(int, ZsetIncrby, (ValkeyModuleKey *key, double score, ValkeyModuleString *ele, int *flagsptr, double *newscore)) \
    X(int, ZsetLastInLexRange, (ValkeyModuleKey *key, ValkeyModuleString *min, ValkeyModuleString *max)) \
    X(int, ZsetLastInScoreRange, (ValkeyModuleKey *key, double min, double max, int minex, int maxex)) \
    X(ValkeyModuleString *, ZsetRangeCurrentElement, (ValkeyModuleKey *key, double *score)) \
    X(int, ZsetRangeEndReached, (ValkeyModuleKey *key)) \
    X(int, ZsetRangeNext, (ValkeyModuleKey *key)) \
    X(int, ZsetRangePrev, (ValkeyModuleKey *key)) \
    X(void, ZsetRangeStop, (ValkeyModuleKey *key)) \
    X(int, ZsetRem, (ValkeyModuleKey *key, ValkeyModuleString *ele, int *deleted)) \
    X(int, ZsetScore, (ValkeyModuleKey *key, ValkeyModuleString *ele, double *score))

#define WEFTMODULE_DECLARE(result, name, parameters) WEFTMODULE_API result (*ValkeyModule_##name) parameters;
WEFTMODULE_FUNCTIONS(WEFTMODULE_DECLARE)
WEFTMODULE_API int (*ValkeyModule_GetApi)(const char *name, void *target);

/* Gets all functions and gives the module its name. Functions that a server does not have stay null. */
WEFTMODULE_UNUSED static int ValkeyModule_Init(ValkeyModuleCtx *ctx, const char *name, int ver, int apiver) {
    ValkeyModule_GetApi = *(int (**)(const char *, void *))(void *)ctx;
#define WEFTMODULE_GET(result, name, parameters) \
    ValkeyModule_GetApi("ValkeyModule_" #name, (void *)&ValkeyModule_##name);
    WEFTMODULE_FUNCTIONS(WEFTMODULE_GET)
    if (ValkeyModule_IsModuleNameBusy && ValkeyModule_IsModuleNameBusy(name)) return VALKEYMODULE_ERR;
    ValkeyModule_SetModuleAttribs(ctx, name, ver, apiver);
    return VALKEYMODULE_OK;
}

#define ValkeyModule_Assert(condition) \
    ((condition) ? (void)0 : (ValkeyModule__Assert(#condition, __FILE__, __LINE__), exit(1)))
#define RMAPI_FUNC_SUPPORTED(function) ((function) != NULL)

#endif /* VALKEYMODULE_H */

/* What Weft adds. */

/* Where the commands of a module run, and with what. */
enum { WEFTMODULE_HOME = 0, WEFTMODULE_SERIAL = 1, WEFTMODULE_SLOT_SAFE = 2 };

#define WEFTMODULE_EXTRA_FUNCTIONS(X) \
    X(int, SetCommandConcurrency, (ValkeyModuleCommand *command, int concurrency)) \
    X(int, SubscribeToKeyspaceEventsSlotSafe, (ValkeyModuleCtx *ctx, int types, ValkeyModuleNotificationFunc cb))

#define WEFTMODULE_DECLARE_EXTRA(result, name, parameters) WEFTMODULE_API result (*WeftModule_##name) parameters;
WEFTMODULE_EXTRA_FUNCTIONS(WEFTMODULE_DECLARE_EXTRA)

/* Gets Weft's functions. They stay null in other servers. */
WEFTMODULE_UNUSED static void WeftModule_Init(ValkeyModuleCtx *ctx) {
    int (*get)(const char *, void *) = *(int (**)(const char *, void *))(void *)ctx;
#define WEFTMODULE_GET_EXTRA(result, name, parameters) get("WeftModule_" #name, (void *)&WeftModule_##name);
    WEFTMODULE_EXTRA_FUNCTIONS(WEFTMODULE_GET_EXTRA)
}

#endif /* WEFTMODULE_H */
