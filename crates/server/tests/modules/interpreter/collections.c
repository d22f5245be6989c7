/* Operations on hashes, sorted sets and streams, and the walks over keys and elements. */

#include "program.h"

static Handle *open_handle_of(Program *program, const ValkeyModuleString *word) {
    Handle *handle = &program->handles[register_of(word)];
    if (handle->key) return handle;
    reply_refused(program, "no key");
    return NULL;
}

/* hash.set REGISTER FLAGS FIELD VALUE [FIELD VALUE]: the value `delete` deletes the field. */
static void hash_set(Program *program, ValkeyModuleString **words, int count) {
    Handle *handle = &program->handles[register_of(words[0])];
    int flags = (int)(number_of(words[1]) & 0x1f);
    void *fields[2], *values[2];
    for (int i = 0; i < 2; i++) {
        ValkeyModuleString *field = words[count > 5 ? 2 + 2 * i : 2], *value = words[count > 5 ? 3 + 2 * i : 3];
        fields[i] = flags & VALKEYMODULE_HASH_CFIELDS ? (void *)text_of(field, NULL) : (void *)field;
        values[i] = is_text(value, "delete") ? VALKEYMODULE_HASH_DELETE : value;
    }
    if (count <= 5) fields[1] = NULL;
    /* In Valkey, the key exists for a moment, also if nothing is set. */
    int is_new = handle->key && ValkeyModule_KeyType(handle->key) == VALKEYMODULE_KEYTYPE_EMPTY;
    if (is_new && (flags & VALKEYMODULE_HASH_XX || values[0] == VALKEYMODULE_HASH_DELETE))
        return reply_refused(program, "an empty hash");
    errno = 0;
    int changed = ValkeyModule_HashSet(handle->key, flags, fields[0], values[0], fields[1], values[1], NULL);
    reply_with_errno(program, changed, changed ? 0 : errno);
}

/* hash.get REGISTER FLAGS FIELD FIELD */
static void hash_get(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    Handle *handle = open_handle_of(program, words[0]);
    if (!handle) return;
    int flags = (int)number_of(words[1]) & (VALKEYMODULE_HASH_CFIELDS | VALKEYMODULE_HASH_EXISTS);
    void *fields[2];
    for (int i = 0; i < 2; i++)
        fields[i] = flags & VALKEYMODULE_HASH_CFIELDS ? (void *)text_of(words[2 + i], NULL) : (void *)words[2 + i];
    ValkeyModuleCtx *ctx = program->ctx;
    if (flags & VALKEYMODULE_HASH_EXISTS) {
        int first = -1, second = -1;
        int status = ValkeyModule_HashGet(handle->key, flags, fields[0], &first, fields[1], &second, NULL);
        ValkeyModule_ReplyWithArray(ctx, 3);
        reply_status(program, status);
        ValkeyModule_ReplyWithLongLong(ctx, first);
        ValkeyModule_ReplyWithLongLong(ctx, second);
        return;
    }
    ValkeyModuleString *first = NULL, *second = NULL;
    int status = ValkeyModule_HashGet(handle->key, flags, fields[0], &first, fields[1], &second, NULL);
    ValkeyModule_ReplyWithArray(ctx, 3);
    reply_status(program, status);
    reply_string(program, first);
    reply_string(program, second);
    free_string(program, first);
    free_string(program, second);
}

/* zset.add REGISTER add|incr FLAGS SCORE ELEMENT: the flag -1 stands for none. */
static void zset_add(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    Handle *handle = open_handle_of(program, words[0]);
    if (!handle) return;
    if (handle->has_range) return reply_refused(program, "a range is active");
    int flags = (int)number_of(words[2]), *place = flags < 0 ? NULL : &flags;
    double score = double_of(words[3]), new_score = 0;
    int is_incr = is_text(words[1], "incr");
    /* Valkey leaves an empty set, or one that exists for a moment. */
    int is_new = ValkeyModule_KeyType(handle->key) == VALKEYMODULE_KEYTYPE_EMPTY;
    if (is_new && ((flags >= 0 && flags & VALKEYMODULE_ZADD_XX) || score != score))
        return reply_refused(program, "an empty set");
    int status = is_incr ? ValkeyModule_ZsetIncrby(handle->key, score, words[4], place, &new_score)
                         : ValkeyModule_ZsetAdd(handle->key, score, words[4], place);
    ValkeyModule_ReplyWithArray(program->ctx, 3);
    reply_status(program, status);
    ValkeyModule_ReplyWithLongLong(program->ctx, flags);
    int is_set = status == VALKEYMODULE_OK && !(flags >= 0 && flags & VALKEYMODULE_ZADD_NOP);
    ValkeyModule_ReplyWithDouble(program->ctx, is_incr && is_set ? new_score : 0);
}

static void zset_score(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    Handle *handle = open_handle_of(program, words[0]);
    if (!handle) return;
    double score;
    if (ValkeyModule_ZsetScore(handle->key, words[1], &score) == VALKEYMODULE_OK)
        ValkeyModule_ReplyWithDouble(program->ctx, score);
    else ValkeyModule_ReplyWithNull(program->ctx);
}

static void zset_remove(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    Handle *handle = open_handle_of(program, words[0]);
    if (!handle) return;
    if (handle->has_range) return reply_refused(program, "a range is active");
    int deleted = -1;
    int status = ValkeyModule_ZsetRem(handle->key, words[1], &deleted);
    ValkeyModule_ReplyWithArray(program->ctx, 2);
    reply_status(program, status);
    ValkeyModule_ReplyWithLongLong(program->ctx, deleted);
}

/* zset.range REGISTER score|lex first|last MIN MAX EXCLUSIVE: seeks the beginning of a range. */
static void zset_range(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    Handle *handle = open_handle_of(program, words[0]);
    if (!handle) return;
    int is_first = is_text(words[2], "first"), status;
    if (is_text(words[1], "lex")) {
        status = is_first ? ValkeyModule_ZsetFirstInLexRange(handle->key, words[3], words[4])
                          : ValkeyModule_ZsetLastInLexRange(handle->key, words[3], words[4]);
    } else {
        double min = double_of(words[3]), max = double_of(words[4]);
        int min_excluded = (int)number_of(words[5]) & 1, max_excluded = (int)number_of(words[5]) & 2;
        status = is_first ? ValkeyModule_ZsetFirstInScoreRange(handle->key, min, max, min_excluded, max_excluded)
                          : ValkeyModule_ZsetLastInScoreRange(handle->key, min, max, min_excluded, max_excluded);
    }
    handle->has_range = status == VALKEYMODULE_OK;
    ValkeyModule_ReplyWithArray(program->ctx, 2);
    reply_status(program, status);
    /* Valkey says that a range goes on that has not begun. */
    int is_over = status != VALKEYMODULE_OK || ValkeyModule_ZsetRangeEndReached(handle->key);
    if (status != VALKEYMODULE_OK) ValkeyModule_ZsetRangeStop(handle->key);
    ValkeyModule_ReplyWithLongLong(program->ctx, is_over);
}

/* zset.walk REGISTER next|prev STEPS: each step with its result, the end, and the current element. */
static void zset_walk(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    Handle *handle = open_handle_of(program, words[0]);
    if (!handle) return;
    ValkeyModuleCtx *ctx = program->ctx;
    long steps = (long)(number_of(words[2]) & 7);
    ValkeyModule_ReplyWithArray(ctx, steps * 4);
    for (long step = 0; step < steps; step++) {
        double score = -77;
        ValkeyModuleString *element = ValkeyModule_ZsetRangeCurrentElement(handle->key, &score);
        reply_string(program, element);
        ValkeyModule_ReplyWithDouble(ctx, score);
        free_string(program, element);
        int moved = is_text(words[1], "next") ? ValkeyModule_ZsetRangeNext(handle->key)
                                              : ValkeyModule_ZsetRangePrev(handle->key);
        ValkeyModule_ReplyWithLongLong(ctx, moved);
        ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_ZsetRangeEndReached(handle->key));
    }
}

static void zset_stop(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    Handle *handle = open_handle_of(program, words[0]);
    if (!handle) return;
    ValkeyModule_ZsetRangeStop(handle->key);
    handle->has_range = 0;
    ValkeyModule_ReplyWithLongLong(program->ctx, ValkeyModule_ZsetRangeEndReached(handle->key));
}

static ValkeyModuleStreamID id_of(const ValkeyModuleString *word) {
    ValkeyModuleStreamID id = {0, 0};
    ValkeyModule_StringToStreamID(word, &id);
    return id;
}

/* stream.add REGISTER auto|ID FIELD VALUE ... */
static void stream_add(Program *program, ValkeyModuleString **words, int count) {
    Handle *handle = &program->handles[register_of(words[0])];
    int is_auto = is_text(words[1], "auto");
    if (handle->has_stream_iterator) return reply_refused(program, "an iterator is active");
    /* Otherwise the identifier would depend on the time. */
    if (is_auto && !handle->is_far) return reply_refused(program, "no identifier in the future");
    ValkeyModuleStreamID id = id_of(words[1]);
    errno = 0;
    int flags = is_auto ? VALKEYMODULE_STREAM_ADD_AUTOID : 0;
    if (is_text(words[1], "8-8")) flags = 64;
    int status = ValkeyModule_StreamAdd(handle->key, flags, is_text(words[1], "none") ? NULL : &id, words + 2,
                                        (count - 2) / 2);
    if (status != VALKEYMODULE_OK) return reply_with_errno(program, status, errno);
    if (id.ms > 9000000000000ULL) handle->is_far = 1;
    reply_id(program, id);
}

static void stream_delete(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    Handle *handle = &program->handles[register_of(words[0])];
    ValkeyModuleStreamID id = id_of(words[1]);
    errno = 0;
    int status = ValkeyModule_StreamDelete(handle->key, is_text(words[1], "none") ? NULL : &id);
    reply_with_errno(program, status, status == VALKEYMODULE_OK ? 0 : errno);
}

/* stream.seek REGISTER FLAGS START END: `none` is an open end. */
static void stream_seek(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    Handle *handle = &program->handles[register_of(words[0])];
    ValkeyModuleStreamID start = id_of(words[2]), end = id_of(words[3]);
    errno = 0;
    int status = ValkeyModule_StreamIteratorStart(handle->key, (int)number_of(words[1]) & 7,
                                                  is_text(words[2], "none") ? NULL : &start,
                                                  is_text(words[3], "none") ? NULL : &end);
    reply_with_errno(program, status, status == VALKEYMODULE_OK ? 0 : errno);
    if (status == VALKEYMODULE_OK) handle->has_stream_iterator = 1;
}

/* Valkey relies on a module to read all fields of an entry. */
static long reply_stream_fields(Program *program, ValkeyModuleKey *key) {
    ValkeyModuleString *field, *value;
    long elements = 0;
    while (ValkeyModule_StreamIteratorNextField(key, &field, &value) == VALKEYMODULE_OK) {
        ValkeyModule_ReplyWithString(program->ctx, field);
        ValkeyModule_ReplyWithString(program->ctx, value);
        free_string(program, field);
        free_string(program, value);
        elements += 2;
    }
    return elements;
}

/* stream.walk REGISTER STEPS keep|delete: the next entries, which are deleted or not. */
static void stream_walk(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    ValkeyModuleKey *key = program->handles[register_of(words[0])].key;
    ValkeyModuleCtx *ctx = program->ctx;
    long elements = 0, steps = (long)(number_of(words[1]) & 7);
    ValkeyModule_ReplyWithArray(ctx, VALKEYMODULE_POSTPONED_LEN);
    for (long step = 0; step < steps; step++) {
        ValkeyModuleStreamID id = {1, 1};
        long fields = -1;
        errno = 0;
        int status = ValkeyModule_StreamIteratorNextID(key, &id, &fields);
        elements++;
        if (status != VALKEYMODULE_OK) {
            reply_with_errno(program, status, errno);
            /* Another step behind the end reads freed memory in Valkey. */
            if (program->handles[register_of(words[0])].has_stream_iterator) ValkeyModule_StreamIteratorStop(key);
            program->handles[register_of(words[0])].has_stream_iterator = 0;
            break;
        }
        reply_id(program, id);
        ValkeyModule_ReplyWithLongLong(ctx, fields);
        elements += 1 + reply_stream_fields(program, key);
        if (is_text(words[2], "delete")) {
            ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_StreamIteratorDelete(key));
            elements++;
        }
    }
    ValkeyModule_ReplySetArrayLength(ctx, elements);
}

static void stream_stop(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    Handle *handle = &program->handles[register_of(words[0])];
    errno = 0;
    int status = ValkeyModule_StreamIteratorStop(handle->key);
    reply_with_errno(program, status, status == VALKEYMODULE_OK ? 0 : errno);
    if (status == VALKEYMODULE_OK) handle->has_stream_iterator = 0;
}

/* stream.trim REGISTER length|id FLAGS LIMIT */
static void stream_trim(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    Handle *handle = &program->handles[register_of(words[0])];
    if (handle->has_stream_iterator) return reply_refused(program, "an iterator is active");
    int flags = (int)number_of(words[2]) & 3;
    ValkeyModuleStreamID id = id_of(words[3]);
    errno = 0;
    long long trimmed = is_text(words[1], "id")
                            ? ValkeyModule_StreamTrimByID(handle->key, flags, is_text(words[3], "none") ? NULL : &id)
                            : ValkeyModule_StreamTrimByLength(handle->key, flags, number_of(words[3]));
    reply_with_errno(program, trimmed, trimmed < 0 ? errno : 0);
}

/* Lines of a walk. Their order is that of a hash table, which differs between servers. */
typedef struct {
    char *lines[512];
    size_t length;
} Walk;

static char *copy_text(const ValkeyModuleString *string) {
    size_t length;
    const char *text = string ? text_of(string, &length) : "(none)";
    if (!string) length = 6;
    char *copy = malloc(2 * length + 1), *at = copy;
    for (size_t i = 0; i < length; i++) at += sprintf(at, "%02x", (unsigned char)text[i]);
    *at = 0;
    return copy;
}

static void add_line(Walk *walk, const ValkeyModuleString *first, const ValkeyModuleString *second) {
    if (walk->length == 512) return;
    char *left = copy_text(first), *right = copy_text(second);
    if (asprintf(&walk->lines[walk->length], "%s=%s", left, right) >= 0) walk->length++;
    free(left);
    free(right);
}

static int compare_lines(const void *left, const void *right) {
    return strcmp(*(char *const *)left, *(char *const *)right);
}

static void reply_walk(Program *program, Walk *walk) {
    qsort(walk->lines, walk->length, sizeof(char *), compare_lines);
    long different = 0;
    ValkeyModule_ReplyWithArray(program->ctx, VALKEYMODULE_POSTPONED_LEN);
    for (size_t i = 0; i < walk->length; i++) {
        /* A walk may see an element twice while the table is resized. */
        if (i > 0 && strcmp(walk->lines[i], walk->lines[i - 1]) == 0) continue;
        ValkeyModule_ReplyWithCString(program->ctx, walk->lines[i]);
        different++;
    }
    ValkeyModule_ReplySetArrayLength(program->ctx, different);
    for (size_t i = 0; i < walk->length; i++) free(walk->lines[i]);
}

static void on_element(ValkeyModuleKey *key, ValkeyModuleString *field, ValkeyModuleString *value, void *data) {
    VALKEYMODULE_NOT_USED(key);
    add_line(data, field, value);
}

static void scan_key(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    ValkeyModuleKey *key = program->handles[register_of(words[0])].key;
    ValkeyModuleScanCursor *cursor = ValkeyModule_ScanCursorCreate();
    Walk walk = {.length = 0};
    errno = 0;
    while (ValkeyModule_ScanKey(key, cursor, on_element, &walk)) {}
    int error = errno;
    errno = 0;
    int again = ValkeyModule_ScanKey(key, cursor, on_element, &walk), last_error = errno;
    ValkeyModule_ScanCursorDestroy(cursor);
    ValkeyModule_ReplyWithArray(program->ctx, 4);
    ValkeyModule_ReplyWithLongLong(program->ctx, error);
    ValkeyModule_ReplyWithLongLong(program->ctx, again);
    ValkeyModule_ReplyWithLongLong(program->ctx, last_error);
    reply_walk(program, &walk);
}

static void on_key(ValkeyModuleCtx *ctx, ValkeyModuleString *name, ValkeyModuleKey *key, void *data) {
    VALKEYMODULE_NOT_USED(ctx);
    char text[16];
    /* Valkey may leave it to the module to open the key. */
    ValkeyModuleKey *opened = key ? key : ValkeyModule_OpenKey(ctx, name, VALKEYMODULE_READ);
    int length = snprintf(text, sizeof(text), "%d", ValkeyModule_KeyType(opened));
    if (!key) ValkeyModule_CloseKey(opened);
    ValkeyModuleString *type = ValkeyModule_CreateString(NULL, text, (size_t)length);
    add_line(data, name, type);
    ValkeyModule_FreeString(NULL, type);
}

static void scan(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(words);
    VALKEYMODULE_NOT_USED(count);
    ValkeyModuleScanCursor *cursor = ValkeyModule_ScanCursorCreate();
    Walk walk = {.length = 0};
    while (ValkeyModule_Scan(program->ctx, cursor, on_key, &walk)) {}
    ValkeyModule_ScanCursorDestroy(cursor);
    reply_walk(program, &walk);
}

const Operation collection_operations[] = {
    {"hash.set", 4, hash_set},       {"hash.get", 4, hash_get},           {"zset.add", 5, zset_add},
    {"zset.score", 2, zset_score},   {"zset.remove", 2, zset_remove},     {"zset.range", 6, zset_range},
    {"zset.walk", 3, zset_walk},     {"zset.stop", 1, zset_stop},         {"stream.add", 2, stream_add},
    {"stream.delete", 2, stream_delete}, {"stream.seek", 4, stream_seek}, {"stream.walk", 3, stream_walk},
    {"stream.stop", 1, stream_stop}, {"stream.trim", 4, stream_trim},     {"scan.key", 1, scan_key},
    {"scan.all", 0, scan},           {NULL, 0, NULL},
};
