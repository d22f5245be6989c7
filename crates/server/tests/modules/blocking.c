/* Commands that block their clients: on a thread, on keys, on nothing; timers, watched descriptors, authentication. Each
 * callback checks that it runs on the home thread; blocking.counts shows how often they were called. */

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"

static long long replies, timeouts, disconnections, frees, gone, timers, events;
/* The clients that blocking.expire has blocked, on any thread. */
static atomic_llong expiring;
static pthread_t home;
static int pipe_ends[2];
static ValkeyModuleBlockedClient *held;
static ValkeyModuleTimerID pending;

/* Ends the process if the callback runs on another thread than the one that has loaded the module. */
static void check_home(void) {
    if (!pthread_equal(pthread_self(), home)) abort();
}

static int on_reply(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    VALKEYMODULE_NOT_USED(argc);
    check_home();
    replies++;
    if (!ValkeyModule_IsBlockedReplyRequest(ctx) || ValkeyModule_IsBlockedTimeoutRequest(ctx)) abort();
    ValkeyModule_ReplyWithArray(ctx, 2);
    ValkeyModule_ReplyWithString(ctx, argv[0]);
    return ValkeyModule_ReplyWithLongLong(ctx, (long long)(size_t)ValkeyModule_GetBlockedClientPrivateData(ctx));
}

static int on_timeout(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    check_home();
    timeouts++;
    if (!ValkeyModule_IsBlockedTimeoutRequest(ctx)) abort();
    return ValkeyModule_ReplyWithSimpleString(ctx, "late");
}

static void on_free(ValkeyModuleCtx *ctx, void *data) {
    VALKEYMODULE_NOT_USED(data);
    check_home();
    frees++;
    gone += ValkeyModule_BlockedClientDisconnected(ctx);
}

static void on_disconnect(ValkeyModuleCtx *ctx, ValkeyModuleBlockedClient *client) {
    VALKEYMODULE_NOT_USED(ctx);
    check_home();
    disconnections++;
    if (client == held) held = NULL;
    ValkeyModule_AbortBlock(client);
}

/* Unblocks a client after a moment, on a thread of the module. */
static void *unblock_later(void *client) {
    ValkeyModule_BlockedClientMeasureTimeStart(client);
    usleep(20000);
    ValkeyModuleCtx *ctx = ValkeyModule_GetThreadSafeContext(client);
    ValkeyModule_ThreadSafeContextLock(ctx);
    ValkeyModule_FreeCallReply(ValkeyModule_Call(ctx, "INCR", "!c", "blocking:count"));
    ValkeyModule_ThreadSafeContextUnlock(ctx);
    ValkeyModule_BlockedClientMeasureTimeEnd(client);
    ValkeyModule_UnblockClient(client, (void *)42);
    ValkeyModule_FreeThreadSafeContext(ctx);
    return NULL;
}

/* blocking.thread: replies after a thread has incremented blocking:count. */
static int on_thread(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    ValkeyModuleBlockedClient *client = ValkeyModule_BlockClient(ctx, on_reply, on_timeout, on_free, 0);
    CHECK(client);
    if (ValkeyModule_GetContextFlags(ctx) & VALKEYMODULE_CTX_FLAGS_MULTI) {
        return ValkeyModule_UnblockClient(client, NULL);
    }
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, unblock_later, client) == 0 && pthread_detach(thread) == 0);
    return VALKEYMODULE_OK;
}

/* The words of blocking.hold, where the server has put them. They stay there while the client is blocked. */
static ValkeyModuleString **held_words;

/* blocking.hold MILLISECONDS [NOTIMEOUT]: waits until blocking.release. */
static int hold(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc < 2) return ValkeyModule_WrongArity(ctx);
    long long timeout;
    CHECK(ValkeyModule_StringToLongLong(argv[1], &timeout) == VALKEYMODULE_OK);
    held = ValkeyModule_BlockClient(ctx, on_reply, argc > 2 ? NULL : on_timeout, on_free, timeout);
    CHECK(held);
    held_words = argv;
    ValkeyModule_SetDisconnectCallback(held, on_disconnect);
    ValkeyModule_BlockClientSetPrivateData(held, (void *)7);
    CHECK(ValkeyModule_BlockClientGetPrivateData(held) == (void *)7);
    if (ValkeyModule_GetContextFlags(ctx) & VALKEYMODULE_CTX_FLAGS_LUA) return VALKEYMODULE_OK;
    errno = 0;
    CHECK(!ValkeyModule_BlockClient(ctx, NULL, NULL, NULL, 0) && errno == ENOTSUP);
    return VALKEYMODULE_OK;
}

/* blocking.words: replies with the words of blocking.hold, whose client is blocked. */
static int words(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    CHECK(held);
    ValkeyModule_ReplyWithArray(ctx, 2);
    ValkeyModule_ReplyWithString(ctx, held_words[0]);
    return ValkeyModule_ReplyWithString(ctx, held_words[1]);
}

/* blocking.release: unblocks the client of blocking.hold. Returns the result of the call. */
static int release(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    CHECK(held);
    ValkeyModuleBlockedClient *client = held;
    held = NULL;
    return ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_UnblockClient(client, (void *)9));
}

static int serve(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    check_home();
    replies++;
    ValkeyModuleCallReply *reply =
        ValkeyModule_Call(ctx, "LPOP", "!sc", ValkeyModule_GetBlockedClientReadyKey(ctx), "2");
    int is_served = reply && ValkeyModule_CallReplyLength(reply) == 2;
    if (is_served) ValkeyModule_ReplyWithCallReply(ctx, reply);
    if (reply) ValkeyModule_FreeCallReply(reply);
    return is_served ? VALKEYMODULE_OK : VALKEYMODULE_ERR;
}

/* blocking.pop MILLISECONDS KEY...: waits for two elements of a list. */
static int pop(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    long long timeout;
    CHECK(ValkeyModule_StringToLongLong(argv[1], &timeout) == VALKEYMODULE_OK);
    CHECK(ValkeyModule_BlockClientOnKeysWithFlags(ctx, serve, on_timeout, on_free, timeout, argv + 2, argc - 2,
                                                  (void *)3, 0));
    return VALKEYMODULE_OK;
}

static int on_timeout_unblock(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    ValkeyModule_UnblockClient(ValkeyModule_GetBlockedClientHandle(ctx), (void *)5);
    return on_timeout(ctx, argv, argc);
}

static void on_disconnect_unblock(ValkeyModuleCtx *ctx, ValkeyModuleBlockedClient *client) {
    VALKEYMODULE_NOT_USED(ctx);
    check_home();
    disconnections++;
    ValkeyModule_UnblockClient(client, (void *)5);
}

static void count_disconnection(ValkeyModuleCtx *ctx, ValkeyModuleBlockedClient *client) {
    VALKEYMODULE_NOT_USED(ctx);
    VALKEYMODULE_NOT_USED(client);
    check_home();
    disconnections++;
}

static void *unblock_soon(void *client) {
    usleep(100000);
    ValkeyModule_UnblockClient(client, (void *)6);
    return NULL;
}

/* blocking.expire KEY MILLISECONDS keys|module|thread: waits for the key, for nothing, or for a thread that unblocks the
 * client. Slot-safe. */
static int expire(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 4) return ValkeyModule_WrongArity(ctx);
    long long timeout;
    CHECK(ValkeyModule_StringToLongLong(argv[2], &timeout) == VALKEYMODULE_OK);
    ValkeyModuleBlockedClient *client;
    if (is_text(argv[3], "keys")) {
        client = ValkeyModule_BlockClientOnKeys(ctx, serve, on_timeout, on_free, timeout, argv + 1, 1, (void *)3);
        CHECK(client);
        ValkeyModule_SetDisconnectCallback(client, count_disconnection);
    } else if (is_text(argv[3], "module")) {
        client = ValkeyModule_BlockClient(ctx, on_reply, on_timeout_unblock, on_free, timeout);
        CHECK(client);
        ValkeyModule_SetDisconnectCallback(client, on_disconnect_unblock);
    } else {
        client = ValkeyModule_BlockClient(ctx, on_reply, NULL, on_free, 0);
        CHECK(client);
        ValkeyModule_SetDisconnectCallback(client, count_disconnection);
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, unblock_soon, client) == 0 && pthread_detach(thread) == 0);
    }
    expiring++;
    return VALKEYMODULE_OK;
}

/* blocking.ends: the numbers of clients of blocking.expire, of callbacks that have ended their waits, and of frees. */
static int ends(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    ValkeyModule_ReplyWithArray(ctx, 3);
    ValkeyModule_ReplyWithLongLong(ctx, expiring);
    ValkeyModule_ReplyWithLongLong(ctx, replies + timeouts + disconnections);
    return ValkeyModule_ReplyWithLongLong(ctx, frees);
}

/* blocking.busy MILLISECONDS: keeps the home worker busy. */
static int busy(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    long long milliseconds;
    CHECK(ValkeyModule_StringToLongLong(argv[1], &milliseconds) == VALKEYMODULE_OK);
    usleep((useconds_t)milliseconds * 1000);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

static int note_deletion(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    return ValkeyModule_ReplyWithString(ctx, ValkeyModule_GetBlockedClientReadyKey(ctx));
}

/* blocking.change KEY: waits until a key is created or deleted. */
static int change(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    int flags = VALKEYMODULE_BLOCK_UNBLOCK_DELETED;
    CHECK(ValkeyModule_BlockClientOnKeysWithFlags(ctx, note_deletion, NULL, NULL, 0, argv + 1, 1, NULL, flags));
    return VALKEYMODULE_OK;
}

/* blocking.signal KEY: lets the module examine the key for the clients that wait. */
static int signal_key(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    ValkeyModule_SignalKeyAsReady(ctx, argv[1]);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

static void on_timer(ValkeyModuleCtx *ctx, void *data) {
    check_home();
    timers += (long long)(size_t)data;
    errno = 0;
    if (ValkeyModule_BlockClient(ctx, NULL, NULL, NULL, 0) || errno != EINVAL) abort();
    ValkeyModule_FreeCallReply(ValkeyModule_Call(ctx, "INCR", "!c", "blocking:timers"));
}

/* blocking.timer MILLISECONDS: calls a function after this time. */
static int start_timer(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    long long period;
    CHECK(ValkeyModule_StringToLongLong(argv[1], &period) == VALKEYMODULE_OK);
    pending = ValkeyModule_CreateTimer(ctx, period, on_timer, (void *)1);
    uint64_t remaining;
    void *data;
    CHECK(ValkeyModule_GetTimerInfo(ctx, pending, &remaining, &data) == VALKEYMODULE_OK);
    CHECK(remaining <= (uint64_t)period && data == (void *)1);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

/* blocking.stop: stops the timer. */
static int stop_timer(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    void *data = NULL;
    return ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_StopTimer(ctx, pending, &data));
}

static void on_readable(int fd, void *data, int mask) {
    check_home();
    char byte;
    if (mask != VALKEYMODULE_EVENTLOOP_READABLE || read(fd, &byte, 1) != 1) abort();
    events += (long long)(size_t)data;
    if (byte == 'x' && ValkeyModule_EventLoopDel(fd, VALKEYMODULE_EVENTLOOP_READABLE) != VALKEYMODULE_OK) abort();
}

static void on_one_shot(void *data) {
    check_home();
    events += (long long)(size_t)data;
}

static void *call_from_thread(void *data) {
    ValkeyModule_EventLoopAddOneShot(on_one_shot, data);
    return NULL;
}

/* blocking.watch: watches the end of a pipe. */
static int watch(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    CHECK(pipe(pipe_ends) == 0);
    CHECK(ValkeyModule_EventLoopAdd(pipe_ends[0], VALKEYMODULE_EVENTLOOP_READABLE, on_readable, (void *)1) ==
          VALKEYMODULE_OK);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, call_from_thread, (void *)100) == 0 && pthread_join(thread, NULL) == 0);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

/* blocking.write TEXT: writes to the pipe; the letter x ends the watch. */
static int write_pipe(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    size_t length;
    const char *text = ValkeyModule_StringPtrLen(argv[1], &length);
    CHECK(write(pipe_ends[1], text, length) == (ssize_t)length);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

/* The password decides how the module authenticates: "now", "never", "later", "skip". */
static int on_login_resumed(ValkeyModuleCtx *ctx, ValkeyModuleString *user, ValkeyModuleString *password,
                            ValkeyModuleString **error) {
    VALKEYMODULE_NOT_USED(error);
    check_home();
    size_t length;
    const char *name = ValkeyModule_StringPtrLen(user, &length);
    if (!is_text(password, "later")) return VALKEYMODULE_AUTH_NOT_HANDLED;
    ValkeyModule_AuthenticateClientWithACLUser(ctx, name, length, NULL, NULL, NULL);
    return VALKEYMODULE_AUTH_HANDLED;
}

static void *resume_login(void *client) {
    usleep(10000);
    ValkeyModule_UnblockClient(client, NULL);
    return NULL;
}

static int on_login(ValkeyModuleCtx *ctx, ValkeyModuleString *user, ValkeyModuleString *password,
                    ValkeyModuleString **error) {
    check_home();
    size_t length;
    const char *name = ValkeyModule_StringPtrLen(user, &length);
    if (is_text(password, "now")) {
        ValkeyModule_AuthenticateClientWithACLUser(ctx, name, length, NULL, NULL, NULL);
        return VALKEYMODULE_AUTH_HANDLED;
    }
    if (is_text(password, "never")) {
        *error = ValkeyModule_CreateString(ctx, "not today", 9);
        return VALKEYMODULE_AUTH_HANDLED;
    }
    if (is_text(password, "later") || is_text(password, "skip")) {
        ValkeyModuleBlockedClient *client = ValkeyModule_BlockClientOnAuth(ctx, on_login_resumed, NULL);
        pthread_t thread;
        if (pthread_create(&thread, NULL, resume_login, client) != 0 || pthread_detach(thread) != 0) abort();
        return VALKEYMODULE_AUTH_HANDLED;
    }
    return VALKEYMODULE_AUTH_NOT_HANDLED;
}

/* blocking.authenticate: lets the module authenticate clients. */
static int authenticate(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    ValkeyModule_RegisterAuthCallback(ctx, on_login);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

/* blocking.counts: the numbers of calls of the callbacks. */
static int counts(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    long long all[] = {replies, timeouts, disconnections, frees, gone, timers, events};
    ValkeyModule_ReplyWithArray(ctx, 7);
    for (int i = 0; i < 7; i++) ValkeyModule_ReplyWithLongLong(ctx, all[i]);
    return VALKEYMODULE_OK;
}

int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    REQUIRE(ValkeyModule_Init(ctx, "blocking", 1, VALKEYMODULE_APIVER_1));
    WeftModule_Init(ctx);
    home = pthread_self();
    COMMAND("blocking.thread", on_thread);
    COMMAND("blocking.hold", hold);
    COMMAND("blocking.words", words);
    COMMAND("blocking.release", release);
    COMMAND("blocking.pop", pop);
    KEY_COMMAND("blocking.expire", expire, "write");
    REQUIRE(WeftModule_SetCommandConcurrency(ValkeyModule_GetCommand(ctx, "blocking.expire"), WEFTMODULE_SLOT_SAFE));
    COMMAND("blocking.ends", ends);
    COMMAND("blocking.busy", busy);
    KEY_COMMAND("blocking.change", change, "readonly");
    KEY_COMMAND("blocking.signal", signal_key, "readonly");
    COMMAND("blocking.timer", start_timer);
    COMMAND("blocking.stop", stop_timer);
    COMMAND("blocking.watch", watch);
    COMMAND("blocking.write", write_pipe);
    COMMAND("blocking.authenticate", authenticate);
    COMMAND("blocking.counts", counts);
    return VALKEYMODULE_OK;
}
