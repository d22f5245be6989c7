/* A slot-safe subscription to keyspace events. Events of one key never come at the same time, except those of readers,
 * so a counter of a key needs no atomic operation. Ends the process if they do. */

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

#define KEYS 64

static long long of_key[KEYS];
static atomic_flag is_used[KEYS];
static atomic_llong changes, misses, expired, threads, violations, at_home;
static _Thread_local int is_known;
static pthread_t home;

static void on_job(ValkeyModuleCtx *ctx, void *data) {
    VALKEYMODULE_NOT_USED(ctx);
    VALKEYMODULE_NOT_USED(data);
    violations++;
}

static int on_event(ValkeyModuleCtx *ctx, int class, const char *event, ValkeyModuleString *key) {
    VALKEYMODULE_NOT_USED(event);
    if (!is_known) {
        is_known = 1;
        threads++;
    }
    /* It has no keys. */
    if (ValkeyModule_OpenKey(ctx, key, VALKEYMODULE_READ) || ValkeyModule_Call(ctx, "DBSIZE", "")) violations++;
    if (ValkeyModule_SubscribeToKeyspaceEvents(ctx, VALKEYMODULE_NOTIFY_ALL, on_event) == VALKEYMODULE_OK) violations++;
    if (ValkeyModule_AddPostNotificationJob(ctx, on_job, NULL, NULL) == VALKEYMODULE_OK) violations++;
    if (class == VALKEYMODULE_NOTIFY_KEY_MISS) {
        misses++;
        return VALKEYMODULE_OK;
    }
    if (class == VALKEYMODULE_NOTIFY_EXPIRED) expired++;
    changes++;
    size_t length;
    char name[32] = "";
    const char *text = ValkeyModule_StringPtrLen(key, &length);
    memcpy(name, text, length < sizeof(name) ? length : sizeof(name) - 1);
    int number;
    if (sscanf(name, "k:%d", &number) != 1 || number < 0 || number >= KEYS) return VALKEYMODULE_OK;
    if (atomic_flag_test_and_set(&is_used[number])) {
        fprintf(stderr, "parallel_events: two events of %s at the same time\n", name);
        abort();
    }
    long long before = *(volatile long long *)&of_key[number];
    for (volatile int step = 0; step < 100; step++) continue;
    *(volatile long long *)&of_key[number] = before + 1;
    atomic_flag_clear(&is_used[number]);
    return VALKEYMODULE_OK;
}

static int on_event_at_home(ValkeyModuleCtx *ctx, int class, const char *event, ValkeyModuleString *key) {
    VALKEYMODULE_NOT_USED(ctx);
    VALKEYMODULE_NOT_USED(class);
    VALKEYMODULE_NOT_USED(event);
    VALKEYMODULE_NOT_USED(key);
    if (!pthread_equal(pthread_self(), home)) abort();
    at_home++;
    return VALKEYMODULE_OK;
}

/* Replies with the changes, the sum of the counters of the keys, misses, expired keys, events at home, threads, and
 * what should have failed. */
static int counts(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    long long sum = 0;
    for (int key = 0; key < KEYS; key++) sum += of_key[key];
    ValkeyModule_ReplyWithArray(ctx, 7);
    ValkeyModule_ReplyWithLongLong(ctx, changes);
    ValkeyModule_ReplyWithLongLong(ctx, sum);
    ValkeyModule_ReplyWithLongLong(ctx, misses);
    ValkeyModule_ReplyWithLongLong(ctx, expired);
    ValkeyModule_ReplyWithLongLong(ctx, at_home);
    ValkeyModule_ReplyWithLongLong(ctx, threads);
    return ValkeyModule_ReplyWithLongLong(ctx, violations);
}

/* Causes an event of the key k:0, from the code of the module. */
static int notify(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    ValkeyModuleString *key = ValkeyModule_CreateString(ctx, "k:0", 3);
    int result = ValkeyModule_NotifyKeyspaceEvent(ctx, VALKEYMODULE_NOTIFY_GENERIC, "touched", key);
    ValkeyModule_FreeString(ctx, key);
    CHECK(result == VALKEYMODULE_OK);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    home = pthread_self();
    REQUIRE(ValkeyModule_Init(ctx, "parallel_events", 1, VALKEYMODULE_APIVER_1));
    WeftModule_Init(ctx);
    COMMAND("parallel.counts", counts);
    COMMAND("parallel.notify", notify);
    if (!WeftModule_SubscribeToKeyspaceEventsSlotSafe) return VALKEYMODULE_ERR;
    if (WeftModule_SubscribeToKeyspaceEventsSlotSafe(ctx, VALKEYMODULE_NOTIFY_LOADED, on_event) == VALKEYMODULE_OK) {
        return VALKEYMODULE_ERR;
    }
    if (argc == 1 && is_text(argv[0], "home")) {
        REQUIRE(ValkeyModule_SubscribeToKeyspaceEvents(ctx, VALKEYMODULE_NOTIFY_STRING, on_event_at_home));
    }
    int classes = VALKEYMODULE_NOTIFY_STRING | VALKEYMODULE_NOTIFY_LIST | VALKEYMODULE_NOTIFY_GENERIC |
                  VALKEYMODULE_NOTIFY_EXPIRED | VALKEYMODULE_NOTIFY_KEY_MISS;
    return WeftModule_SubscribeToKeyspaceEventsSlotSafe(ctx, classes, on_event);
}
