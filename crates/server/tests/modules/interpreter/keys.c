/* Operations on keys, strings and lists. */

#include "program.h"

static Handle *handle_of(Program *program, const ValkeyModuleString *word) {
    return &program->handles[register_of(word)];
}

/* Returns the handle if it is open. Functions without a check of their own need that. */
static Handle *open_handle_of(Program *program, const ValkeyModuleString *word) {
    Handle *handle = handle_of(program, word);
    if (handle->key) return handle;
    reply_refused(program, "no key");
    return NULL;
}

/* An iterator holds the value. */
static int is_busy(Program *program, const Handle *handle) {
    if (!handle->has_range && !handle->has_list_iterator && !handle->has_stream_iterator) return 0;
    reply_refused(program, "an iterator is active");
    return 1;
}

/* key.open REGISTER KEY MODE: the key is one of the three of the command. */
static void open_key(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    Handle *handle = handle_of(program, words[0]);
    close_handle(handle);
    ValkeyModuleString *name = program->key_names[(unsigned long long)number_of(words[1]) % 3];
    static const int modes[] = {
        VALKEYMODULE_READ,
        VALKEYMODULE_READ | VALKEYMODULE_WRITE,
        VALKEYMODULE_WRITE,
        VALKEYMODULE_READ | VALKEYMODULE_OPEN_KEY_NOTOUCH,
        VALKEYMODULE_READ | VALKEYMODULE_OPEN_KEY_NONOTIFY,
        VALKEYMODULE_READ | VALKEYMODULE_OPEN_KEY_NOSTATS | VALKEYMODULE_OPEN_KEY_NOTOUCH,
        VALKEYMODULE_READ | VALKEYMODULE_OPEN_KEY_NOEFFECTS,
        VALKEYMODULE_READ | VALKEYMODULE_OPEN_KEY_NOEXPIRE,
        VALKEYMODULE_WRITE | VALKEYMODULE_OPEN_KEY_NOTOUCH,
    };
    int mode = modes[(unsigned long long)number_of(words[2]) % (sizeof(modes) / sizeof(*modes))];
    int is_write = mode & VALKEYMODULE_WRITE;
    if (is_held(program, name, !is_write)) return reply_refused(program, "the key is open");
    *handle = (Handle){.name = name, .mode = mode, .key = ValkeyModule_OpenKey(program->ctx, name, mode)};
    ValkeyModule_ReplyWithLongLong(program->ctx, ValkeyModule_KeyType(handle->key));
}

static void close_key(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    close_handle(handle_of(program, words[0]));
    reply_status(program, VALKEYMODULE_OK);
}

/* key.state REGISTER: the type, length, database and name. */
static void describe(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    ValkeyModuleCtx *ctx = program->ctx;
    ValkeyModuleKey *key = handle_of(program, words[0])->key;
    ValkeyModule_ReplyWithArray(ctx, 4);
    ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_KeyType(key));
    ValkeyModule_ReplyWithLongLong(ctx, (long long)ValkeyModule_ValueLength(key));
    ValkeyModule_ReplyWithLongLong(ctx, key ? ValkeyModule_GetDbIdFromModuleKey(key) : -1);
    const ValkeyModuleString *name = ValkeyModule_GetKeyNameFromModuleKey(key);
    reply_string(program, (ValkeyModuleString *)name);
}

/* key.remove REGISTER delete|unlink */
static void remove_key(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    Handle *handle = open_handle_of(program, words[0]);
    /* Valkey ends with a failed assertion when the key is closed. */
    if (!handle || is_busy(program, handle)) return;
    reply_status(program, is_text(words[1], "unlink") ? ValkeyModule_UnlinkKey(handle->key)
                                                      : ValkeyModule_DeleteKey(handle->key));
}

/* key.expire REGISTER for|at MILLISECONDS: a past time ends the use of the handle, as every access deletes the key. */
static void expire(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    Handle *handle = open_handle_of(program, words[0]);
    /* Valkey may move the object to which the iterator refers. */
    if (!handle || is_busy(program, handle)) return;
    long long time = number_of(words[2]);
    /* The sum with the present time must be in range. */
    if (time > (1LL << 60)) time = 1LL << 60;
    int is_absolute = is_text(words[1], "at");
    reply_status(program, is_absolute ? ValkeyModule_SetAbsExpire(handle->key, time)
                                      : ValkeyModule_SetExpire(handle->key, time));
    if (time >= 0 && (is_absolute ? time < ValkeyModule_Milliseconds() : time < 100000)) close_handle(handle);
}

/* key.expiry REGISTER: the times are rounded, since both servers run at different times. */
static void expiry(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    Handle *handle = open_handle_of(program, words[0]);
    if (!handle) return;
    long long left = ValkeyModule_GetExpire(handle->key), at = ValkeyModule_GetAbsExpire(handle->key);
    ValkeyModule_ReplyWithArray(program->ctx, 2);
    ValkeyModule_ReplyWithLongLong(program->ctx, left < 0 ? left : (left + 500000) / 1000000);
    ValkeyModule_ReplyWithLongLong(program->ctx, at < 0 || (at > 4000000000000 && at < 6000000000000) ? at : 1);
}

/* key.age REGISTER lru|lfu VALUE: sets one of them, and shows both. */
static void age(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    ValkeyModuleKey *key = handle_of(program, words[0])->key;
    mstime_t idle = -7;
    long long frequency = -7, value = number_of(words[2]);
    ValkeyModule_ReplyWithArray(program->ctx, 5);
    reply_status(program, is_text(words[1], "lru") ? ValkeyModule_SetLRU(key, (value & 0xffff) * 1000)
                                                   : ValkeyModule_SetLFU(key, value & 0xff));
    reply_status(program, ValkeyModule_GetLRU(key, &idle));
    /* The idle time of Valkey is wrong if it would begin before the server, and stays so until it is set again. */
    int is_known = is_text(words[1], "lru") && value == 0;
    ValkeyModule_ReplyWithLongLong(program->ctx, idle < 0 || !is_known ? idle >= 0 : (idle + 50000) / 100000);
    reply_status(program, ValkeyModule_GetLFU(key, &frequency));
    ValkeyModule_ReplyWithLongLong(program->ctx, frequency);
}

static void exists(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    ValkeyModuleString *name = program->key_names[(unsigned long long)number_of(words[0]) % 3];
    ValkeyModule_ReplyWithLongLong(program->ctx, ValkeyModule_KeyExists(program->ctx, name));
}

static void string_set(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    Handle *handle = open_handle_of(program, words[0]);
    if (!handle) return;
    /* The error of Valkey for a key with an iterator. Its end finds no list or stream then, if there is a range. */
    ValkeyModuleString *value = program->strings[register_of(words[1])];
    int status = ValkeyModule_StringSet(handle->key, value && count < 3 ? value : words[1]);
    if (status == VALKEYMODULE_OK) handle->has_range = 0;
    reply_status(program, status);
}

/* Returns 1 if several registers hold a key. */
static int is_held_twice(const Program *program, const ValkeyModuleString *name) {
    int count = 0;
    for (; program; program = program->outer)
        for (int i = 0; i < REGISTERS; i++) {
            const Handle *handle = &program->handles[i];
            count += handle->key && ValkeyModule_StringCompare(handle->name, name) == 0;
        }
    return count > 1;
}

/* string.access REGISTER read|write OFFSET BYTES: reads the bytes, or writes some of them in place. */
static void string_access(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    Handle *handle = open_handle_of(program, words[0]);
    if (!handle) return;
    int writes = is_text(words[1], "write");
    if (writes && !(handle->mode & VALKEYMODULE_WRITE)) return reply_refused(program, "the key is open for reading");
    /* Valkey replaces a short string for a reader as well, and the other handle would still lead to the former one. */
    if (is_held_twice(program, handle->name)) return reply_refused(program, "the key is open twice");
    size_t length = 0, added;
    char *bytes = ValkeyModule_StringDMA(handle->key, &length, writes ? VALKEYMODULE_WRITE : VALKEYMODULE_READ);
    if (!bytes) {
        ValkeyModule_ReplyWithNull(program->ctx);
        return;
    }
    const char *text = text_of(words[3], &added);
    size_t offset = (size_t)(number_of(words[2]) & 63);
    /* The bytes of a missing key are constant. */
    if (writes && length && offset + added <= length) memcpy(bytes + offset, text, added);
    ValkeyModule_ReplyWithStringBuffer(program->ctx, bytes, length);
}

static void string_truncate(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    Handle *handle = open_handle_of(program, words[0]);
    if (!handle) return;
    long long length = number_of(words[1]);
    int is_too_long = length < 0 || length > 512 * 1024 * 1024;
    reply_status(program,
                 ValkeyModule_StringTruncate(handle->key, is_too_long ? 1UL << 40 : (size_t)length & 0xfff));
}

/* list.push REGISTER head|tail ELEMENT */
static void list_push(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    Handle *handle = handle_of(program, words[0]);
    errno = 0;
    int where = is_text(words[1], "head") ? VALKEYMODULE_LIST_HEAD : VALKEYMODULE_LIST_TAIL;
    int status = ValkeyModule_ListPush(handle->key, where, is_text(words[2], "none") ? NULL : words[2]);
    reply_with_errno(program, status, status == VALKEYMODULE_OK ? 0 : errno);
    if (status == VALKEYMODULE_OK) handle->has_list_iterator = 0;
}

static void list_pop(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    Handle *handle = handle_of(program, words[0]);
    errno = 0;
    ValkeyModuleString *element = ValkeyModule_ListPop(
        handle->key, is_text(words[1], "head") ? VALKEYMODULE_LIST_HEAD : VALKEYMODULE_LIST_TAIL);
    if (!element) return reply_with_errno(program, -1, errno);
    handle->has_list_iterator = 0;
    reply_string(program, element);
    free_string(program, element);
}

static void list_get(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    Handle *handle = handle_of(program, words[0]);
    errno = 0;
    ValkeyModuleString *element = ValkeyModule_ListGet(handle->key, (long)number_of(words[1]));
    if (!element) return reply_with_errno(program, -1, errno);
    handle->has_list_iterator = 1;
    reply_string(program, element);
    free_string(program, element);
}

/* Returns whether Valkey does not mistake the value for a list. */
static int may_change_list(Program *program, const Handle *handle, int is_at_end) {
    int type = ValkeyModule_KeyType(handle->key);
    if (type == VALKEYMODULE_KEYTYPE_LIST || (type == VALKEYMODULE_KEYTYPE_EMPTY && is_at_end)) return 1;
    reply_refused(program, "no list");
    return 0;
}

static void list_set(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    Handle *handle = open_handle_of(program, words[0]);
    if (!handle) return;
    errno = 0;
    int status = ValkeyModule_ListSet(handle->key, (long)number_of(words[1]),
                                      is_text(words[2], "none") ? NULL : words[2]);
    reply_with_errno(program, status, status == VALKEYMODULE_OK ? 0 : errno);
    if (status == VALKEYMODULE_OK) handle->has_list_iterator = 0;
}

static void list_insert(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    Handle *handle = open_handle_of(program, words[0]);
    long index = (long)number_of(words[1]);
    if (!handle || !may_change_list(program, handle, index == 0 || index == -1)) return;
    errno = 0;
    int status = ValkeyModule_ListInsert(handle->key, index, is_text(words[2], "none") ? NULL : words[2]);
    reply_with_errno(program, status, status == VALKEYMODULE_OK ? 0 : errno);
    if (status == VALKEYMODULE_OK) handle->has_list_iterator = 0;
}

static void list_delete(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    Handle *handle = handle_of(program, words[0]);
    errno = 0;
    int status = ValkeyModule_ListDelete(handle->key, (long)number_of(words[1]));
    reply_with_errno(program, status, status == VALKEYMODULE_OK ? 0 : errno);
    /* The iterator of Valkey may be at another element than it believes. */
    if (status == VALKEYMODULE_OK) close_handle(handle);
}

const Operation key_operations[] = {
    {"key.open", 3, open_key},           {"key.close", 1, close_key},
    {"key.state", 1, describe},          {"key.remove", 2, remove_key},
    {"key.expire", 3, expire},           {"key.expiry", 1, expiry},
    {"key.age", 3, age},                 {"key.exists", 1, exists},
    {"string.set", 2, string_set},       {"string.access", 4, string_access},
    {"string.truncate", 2, string_truncate}, {"list.push", 3, list_push},
    {"list.pop", 2, list_pop},           {"list.get", 2, list_get},
    {"list.set", 3, list_set},           {"list.insert", 3, list_insert},
    {"list.delete", 2, list_delete},     {NULL, 0, NULL},
};
