/* Keyspace events: what a module writes when it gets one, jobs after it, and clients that it blocks. The first letters of
 * a key say what happens:
 *
 *   count:   INCR <key>:seen, within the event
 *   job:     INCR <key>:jobs, in a post-notification job, after which another job does INCR jobs
 *   add:     Replicate INCR <key>:added
 *   block:   blocks the client for a moment
 *   hold:    blocks the client until it has gone
 *   again:   SET <rest of the key> 1, which is an event again
 *   flags:   INCR <key>:multi in a transaction, INCR <key>:lua in a script
 *
 * Keys that end with one of the words above do nothing. Without an argument the module subscribes to all events. */

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"

static pthread_t home;
static long long events, nulls, disconnections;
/* Set while a thread of the module holds the lock: the events and jobs of its calls come on that thread. */
static volatile int locked;

static int begins(const char *text, size_t length, const char *start) {
    return length >= strlen(start) && memcmp(text, start, strlen(start)) == 0;
}

static int ends(const char *text, size_t length, const char *end) {
    return length >= strlen(end) && memcmp(text + length - strlen(end), end, strlen(end)) == 0;
}

static void increment(ValkeyModuleCtx *ctx, const char *key, size_t length, const char *suffix) {
    ValkeyModuleString *name = ValkeyModule_CreateStringPrintf(ctx, "%.*s%s", (int)length, key, suffix);
    ValkeyModule_FreeCallReply(ValkeyModule_Call(ctx, "INCR", "!s", name));
    ValkeyModule_FreeString(ctx, name);
}

static void last_job(ValkeyModuleCtx *ctx, void *data) {
    VALKEYMODULE_NOT_USED(data);
    increment(ctx, "", 0, "jobs");
}

static void job(ValkeyModuleCtx *ctx, void *data) {
    size_t length;
    const char *key = ValkeyModule_StringPtrLen(data, &length);
    increment(ctx, key, length, ":jobs");
    ValkeyModule_AddPostNotificationJob(ctx, last_job, NULL, NULL);
}

static void free_job(void *data) {
    ValkeyModule_FreeString(NULL, data);
}

static void *unblock(void *client) {
    usleep(20000);
    ValkeyModule_UnblockClient(client, NULL);
    return NULL;
}

static void on_disconnect(ValkeyModuleCtx *ctx, ValkeyModuleBlockedClient *client) {
    VALKEYMODULE_NOT_USED(ctx);
    disconnections++;
    ValkeyModule_AbortBlock(client);
}

static void block(ValkeyModuleCtx *ctx, int is_held) {
    ValkeyModuleBlockedClient *client = ValkeyModule_BlockClient(ctx, NULL, NULL, NULL, 0);
    if (!client) {
        nulls++;
        return;
    }
    if (is_held) {
        ValkeyModule_SetDisconnectCallback(client, on_disconnect);
        return;
    }
    pthread_t thread;
    if (pthread_create(&thread, NULL, unblock, client) || pthread_detach(thread)) abort();
}

static int on_event(ValkeyModuleCtx *ctx, int class, const char *name, ValkeyModuleString *key) {
    VALKEYMODULE_NOT_USED(class);
    VALKEYMODULE_NOT_USED(name);
    if (!locked && !pthread_equal(pthread_self(), home)) abort();
    events++;
    size_t length;
    const char *text = ValkeyModule_StringPtrLen(key, &length);
    static const char *own[] = {":seen", "jobs", ":added", ":multi", ":lua"};
    for (size_t index = 0; index < sizeof(own) / sizeof(*own); index++) {
        if (ends(text, length, own[index])) return VALKEYMODULE_OK;
    }
    if (begins(text, length, "count:")) increment(ctx, text, length, ":seen");
    if (begins(text, length, "add:")) {
        ValkeyModuleString *added = ValkeyModule_CreateStringPrintf(ctx, "%s:added", text);
        ValkeyModule_Replicate(ctx, "INCR", "s", added);
        ValkeyModule_FreeString(ctx, added);
    }
    if (begins(text, length, "job:")) {
        ValkeyModule_RetainString(ctx, key);
        if (ValkeyModule_AddPostNotificationJob(ctx, job, key, free_job) != VALKEYMODULE_OK) free_job(key);
    }
    if (begins(text, length, "block:")) block(ctx, 0);
    if (begins(text, length, "hold:")) block(ctx, 1);
    if (begins(text, length, "again:")) {
        ValkeyModule_FreeCallReply(ValkeyModule_Call(ctx, "SET", "!bc", text + 6, length - 6, "1"));
    }
    if (begins(text, length, "flags:")) {
        int flags = ValkeyModule_GetContextFlags(ctx);
        if (flags & VALKEYMODULE_CTX_FLAGS_MULTI) increment(ctx, text, length, ":multi");
        if (flags & VALKEYMODULE_CTX_FLAGS_LUA) increment(ctx, text, length, ":lua");
    }
    return VALKEYMODULE_OK;
}

/* Sets count:thread, on a thread of the module that holds the lock. */
static void *set_on_thread(void *client) {
    ValkeyModuleCtx *ctx = ValkeyModule_GetThreadSafeContext(client);
    ValkeyModule_ThreadSafeContextLock(ctx);
    locked = 1;
    ValkeyModule_FreeCallReply(ValkeyModule_Call(ctx, "SET", "!cc", "count:thread", "1"));
    ValkeyModule_FreeCallReply(ValkeyModule_Call(ctx, "SET", "!cc", "job:thread", "1"));
    ValkeyModule_ThreadSafeContextUnlock(ctx);
    locked = 0;
    ValkeyModule_ReplyWithSimpleString(ctx, "OK");
    ValkeyModule_FreeThreadSafeContext(ctx);
    ValkeyModule_UnblockClient(client, NULL);
    return NULL;
}

static int on_thread(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    ValkeyModuleBlockedClient *client = ValkeyModule_BlockClient(ctx, NULL, NULL, NULL, 0);
    CHECK(client);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, set_on_thread, client) == 0 && pthread_detach(thread) == 0);
    return VALKEYMODULE_OK;
}

/* Replies with the number of events, of clients that could not be blocked, and of those that have gone. */
static int counts(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    ValkeyModule_ReplyWithArray(ctx, 3);
    ValkeyModule_ReplyWithLongLong(ctx, events);
    ValkeyModule_ReplyWithLongLong(ctx, nulls);
    return ValkeyModule_ReplyWithLongLong(ctx, disconnections);
}

int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    home = pthread_self();
    REQUIRE(ValkeyModule_Init(ctx, "key_events", 1, VALKEYMODULE_APIVER_1));
    int classes = VALKEYMODULE_NOTIFY_ALL;
    if (argc == 1 && is_text(argv[0], "misses")) classes = VALKEYMODULE_NOTIFY_KEY_MISS;
    if (argc == 1 && is_text(argv[0], "nested")) {
        ValkeyModule_SetModuleOptions(ctx, VALKEYMODULE_OPTIONS_ALLOW_NESTED_KEYSPACE_NOTIFICATIONS);
    }
    COMMAND("key_events.counts", counts);
    COMMAND("key_events.thread", on_thread);
    return ValkeyModule_SubscribeToKeyspaceEvents(ctx, classes, on_event);
}
