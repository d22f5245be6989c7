/* Operations on values of a data type, which consists of one field of each kind that can be saved. */

#include "program.h"

typedef struct {
    uint64_t natural;
    int64_t number;
    double score;
    float approximate;
    long double exact;
    ValkeyModuleString *string;
    char *bytes;
    size_t length;
} Record;

static ValkeyModuleType *type;

static void free_record(void *value) {
    Record *record = value;
    if (record->string) ValkeyModule_FreeString(NULL, record->string);
    ValkeyModule_Free(record->bytes);
    ValkeyModule_Free(record);
}

static Record *create_record(const ValkeyModuleString *word) {
    Record *record = ValkeyModule_Calloc(1, sizeof(*record));
    const char *text = text_of(word, &record->length);
    record->number = number_of(word);
    record->natural = (uint64_t)record->number;
    record->score = double_of(word);
    record->approximate = (float)record->score;
    ValkeyModule_StringToLongDouble(word, &record->exact);
    record->string = ValkeyModule_CreateStringFromString(NULL, word);
    record->bytes = ValkeyModule_Alloc(record->length + 1);
    memcpy(record->bytes, text, record->length);
    return record;
}

static void save(ValkeyModuleIO *io, void *value) {
    Record *record = value;
    ValkeyModule_SaveUnsigned(io, record->natural);
    ValkeyModule_SaveSigned(io, record->number);
    ValkeyModule_SaveDouble(io, record->score);
    ValkeyModule_SaveFloat(io, record->approximate);
    ValkeyModule_SaveLongDouble(io, record->exact);
    ValkeyModule_SaveString(io, record->string);
    ValkeyModule_SaveStringBuffer(io, record->bytes, record->length);
}

static void *load(ValkeyModuleIO *io, int version) {
    add_to_log("load version %d database %d", version, ValkeyModule_GetDbIdFromIO(io));
    Record *record = ValkeyModule_Calloc(1, sizeof(*record));
    record->natural = ValkeyModule_LoadUnsigned(io);
    record->number = ValkeyModule_LoadSigned(io);
    record->score = ValkeyModule_LoadDouble(io);
    record->approximate = ValkeyModule_LoadFloat(io);
    record->exact = ValkeyModule_LoadLongDouble(io);
    record->string = ValkeyModule_LoadString(io);
    record->bytes = ValkeyModule_LoadStringBuffer(io, &record->length);
    if (!ValkeyModule_IsIOError(io)) return record;
    add_to_log("failed load: %s string, %s bytes", record->string ? "a" : "no", record->bytes ? "some" : "no");
    free_record(record);
    return NULL;
}

static void digest(ValkeyModuleDigest *digest, void *value) {
    Record *record = value;
    ValkeyModule_DigestAddLongLong(digest, record->number);
    ValkeyModule_DigestAddStringBuffer(digest, record->bytes, record->length);
    ValkeyModule_DigestEndSequence(digest);
    /* Servers may ask for more digests than they show, so the log has none of them. */
    if (!ValkeyModule_GetKeyNameFromDigest(digest) || ValkeyModule_GetDbIdFromDigest(digest) < 0)
        add_to_log("a digest without a key");
}

static void *copy(ValkeyModuleKeyOptCtx *ctx, const void *value) {
    const Record *record = value;
    add_to_log("copy %s in %d to %s in %d", text_of(ValkeyModule_GetKeyNameFromOptCtx(ctx), NULL),
               ValkeyModule_GetDbIdFromOptCtx(ctx), text_of(ValkeyModule_GetToKeyNameFromOptCtx(ctx), NULL),
               ValkeyModule_GetToDbIdFromOptCtx(ctx));
    return record->length > 20 ? NULL : create_record(record->string);
}

static void on_unlink(ValkeyModuleKeyOptCtx *ctx, const void *value) {
    VALKEYMODULE_NOT_USED(value);
    /* The time at which it is called differs, so only what must never happen is in the log. */
    if (!ValkeyModule_GetKeyNameFromOptCtx(ctx) || ValkeyModule_GetDbIdFromOptCtx(ctx) < 0)
        add_to_log("a value without a key is unlinked");
}

static size_t usage(ValkeyModuleKeyOptCtx *ctx, const void *value, size_t samples) {
    return 100000 + (size_t)ValkeyModule_GetDbIdFromOptCtx(ctx) * 1000 + samples + ((const Record *)value)->length;
}

static Record *record_of(const Handle *handle) {
    return ValkeyModule_ModuleTypeGetType(handle->key) == type ? ValkeyModule_ModuleTypeGetValue(handle->key) : NULL;
}

static void reply_record(Program *program, const Record *record) {
    ValkeyModuleCtx *ctx = program->ctx;
    if (!record) {
        ValkeyModule_ReplyWithNull(ctx);
        return;
    }
    ValkeyModule_ReplyWithArray(ctx, 7);
    ValkeyModule_ReplyWithLongLong(ctx, (long long)record->natural);
    ValkeyModule_ReplyWithLongLong(ctx, record->number);
    ValkeyModule_ReplyWithDouble(ctx, record->score);
    ValkeyModule_ReplyWithDouble(ctx, (double)record->approximate);
    ValkeyModule_ReplyWithLongDouble(ctx, record->exact);
    ValkeyModule_ReplyWithString(ctx, record->string);
    ValkeyModule_ReplyWithStringBuffer(ctx, record->bytes, record->length);
}

/* value.set REGISTER WORD */
static void set_value(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    Handle *handle = &program->handles[register_of(words[0])];
    if (!handle->key) return reply_refused(program, "no key");
    Record *record = create_record(words[1]);
    int status = ValkeyModule_ModuleTypeSetValue(handle->key, type, record);
    if (status == VALKEYMODULE_OK) handle->has_range = 0;
    else free_record(record);
    reply_status(program, status);
}

/* value.replace REGISTER WORD: replies with the old value. */
static void replace_value(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    Handle *handle = &program->handles[register_of(words[0])];
    if (!handle->key) return reply_refused(program, "no key");
    Record *record = create_record(words[1]);
    void *old = NULL;
    if (ValkeyModule_ModuleTypeReplaceValue(handle->key, type, record, &old) != VALKEYMODULE_OK) {
        free_record(record);
        return reply_status(program, VALKEYMODULE_ERR);
    }
    reply_record(program, old);
    free_record(old);
}

static void show_value(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    Handle *handle = &program->handles[register_of(words[0])];
    reply_record(program, handle->key ? record_of(handle) : NULL);
}

/* value.bytes REGISTER CUT: the value as bytes, without some at the end, and what is loaded of them. */
static void value_bytes(Program *program, ValkeyModuleString **words, int count) {
    VALKEYMODULE_NOT_USED(count);
    Handle *handle = &program->handles[register_of(words[0])];
    Record *record = handle->key ? record_of(handle) : NULL;
    if (!record) return reply_refused(program, "no value");
    ValkeyModuleString *bytes = ValkeyModule_SaveDataTypeToString(program->ctx, record, type);
    size_t length, cut = (size_t)(number_of(words[1]) & 127);
    const char *text = text_of(bytes, &length);
    if (cut > length) cut = length;
    ValkeyModuleString *shorter = ValkeyModule_CreateString(program->ctx, text, length - cut);
    Record *loaded = cut ? ValkeyModule_LoadDataTypeFromStringEncver(shorter, type, 3)
                         : ValkeyModule_LoadDataTypeFromString(shorter, type);
    ValkeyModule_ReplyWithArray(program->ctx, 2);
    ValkeyModule_ReplyWithString(program->ctx, bytes);
    reply_record(program, loaded);
    if (loaded) free_record(loaded);
    free_string(program, bytes);
    free_string(program, shorter);
}

int register_type(ValkeyModuleCtx *ctx) {
    ValkeyModuleTypeMethods methods = {
        .version = VALKEYMODULE_TYPE_METHOD_VERSION, .rdb_load = load, .rdb_save = save, .digest = digest,
        .free = free_record, .copy2 = copy, .unlink2 = on_unlink, .mem_usage2 = usage,
    };
    type = ValkeyModule_CreateDataType(ctx, "programty", 2, &methods);
    return type ? VALKEYMODULE_OK : VALKEYMODULE_ERR;
}

const Operation value_operations[] = {
    {"value.set", 2, set_value},     {"value.replace", 2, replace_value}, {"value.show", 1, show_value},
    {"value.bytes", 2, value_bytes}, {NULL, 0, NULL},
};
