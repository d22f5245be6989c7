/* Functions of a cluster node that no test module of Valkey calls. */

#include "check.h"

static int self(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    const char *id = ValkeyModule_GetMyClusterID();
    if (!id) return ValkeyModule_ReplyWithNull(ctx);
    return ValkeyModule_ReplyWithStringBuffer(ctx, id, VALKEYMODULE_NODE_ID_LEN);
}

/* Replies with the nodes: id, address, id of the primary, port, flags. */
static int nodes(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    size_t count;
    char **ids = ValkeyModule_GetClusterNodesList(ctx, &count);
    if (!ids) return ValkeyModule_ReplyWithNull(ctx);
    ValkeyModule_ReplyWithArray(ctx, count);
    for (size_t i = 0; i < count; i++) {
        char ip[46] = "", primary[VALKEYMODULE_NODE_ID_LEN] = {0}, client_ip[46] = "";
        int port = 0, flags = 0, client_port = 0;
        int known = ValkeyModule_GetClusterNodeInfo(ctx, ids[i], ip, primary, &port, &flags);
        int same = ValkeyModule_GetClusterNodeInfoForClient(ctx, ValkeyModule_GetClientId(ctx), ids[i], client_ip, NULL,
                                                            &client_port, NULL);
        ValkeyModule_ReplyWithArray(ctx, 5);
        ValkeyModule_ReplyWithStringBuffer(ctx, ids[i], VALKEYMODULE_NODE_ID_LEN);
        ValkeyModule_ReplyWithCString(ctx, ip);
        ValkeyModule_ReplyWithLongLong(ctx, port);
        ValkeyModule_ReplyWithLongLong(ctx, flags);
        ValkeyModule_ReplyWithBool(ctx, known == VALKEYMODULE_OK && same == VALKEYMODULE_OK && port == client_port);
    }
    ValkeyModule_FreeClusterNodesList(ids);
    char *unknown = "0123456789012345678901234567890123456789";
    if (ValkeyModule_GetClusterNodeInfo(ctx, unknown, NULL, NULL, NULL, NULL) == VALKEYMODULE_OK)
        ValkeyModule_Log(ctx, "warning", "a node that does not exist was found");
    return VALKEYMODULE_OK;
}

static int size(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    return ValkeyModule_ReplyWithLongLong(ctx, (long long)ValkeyModule_GetClusterSize());
}

/* FLAGS number: sets the flags of the cluster. */
static int flags(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    long long number;
    if (argc != 2) return ValkeyModule_WrongArity(ctx);
    CHECK(ValkeyModule_StringToLongLong(argv[1], &number) == VALKEYMODULE_OK);
    ValkeyModule_SetClusterFlags(ctx, (uint64_t)number);
    return ValkeyModule_ReplyWithSimpleString(ctx, "OK");
}

static void on_message(ValkeyModuleCtx *ctx, const char *sender, uint8_t kind, const unsigned char *text, uint32_t length) {
    VALKEYMODULE_NOT_USED(ctx);
    VALKEYMODULE_NOT_USED(sender);
    VALKEYMODULE_NOT_USED(kind);
    VALKEYMODULE_NOT_USED(text);
    VALKEYMODULE_NOT_USED(length);
}

/* Sends a message to all nodes; replies with the result. */
static int send(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    ValkeyModule_RegisterClusterMessageReceiver(ctx, 1, on_message);
    return ValkeyModule_ReplyWithLongLong(ctx, ValkeyModule_SendClusterMessage(ctx, NULL, 1, "text", 4));
}

int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    REQUIRE(ValkeyModule_Init(ctx, "clusterfunctions", 1, VALKEYMODULE_APIVER_1));
    COMMAND("clusterfunctions.self", self);
    COMMAND("clusterfunctions.nodes", nodes);
    COMMAND("clusterfunctions.size", size);
    COMMAND("clusterfunctions.flags", flags);
    COMMAND("clusterfunctions.send", send);
    return VALKEYMODULE_OK;
}
