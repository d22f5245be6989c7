/* What the modules of the tests share. */

#ifndef CHECK_H
#define CHECK_H

#include <string.h>

#include "weftmodule.h"

/* Ends a command with an error unless the condition holds. */
#define CHECK(condition) \
    do { \
        if (!(condition)) \
            return ValkeyModule_ReplyWithErrorFormat(ctx, "ERR %s:%d: not %s", __FILE__, __LINE__, #condition); \
    } while (0)

/* Ends the load of the module unless the call succeeds. */
#define REQUIRE(call) \
    do { \
        if ((call) != VALKEYMODULE_OK) return VALKEYMODULE_ERR; \
    } while (0)

/* Registers a command without keys. */
#define COMMAND(name, function) REQUIRE(ValkeyModule_CreateCommand(ctx, name, function, "", 0, 0, 0))

/* Registers a command with one key, its first argument. */
#define KEY_COMMAND(name, function, flags) REQUIRE(ValkeyModule_CreateCommand(ctx, name, function, flags, 1, 1, 1))

#define UNUSED_ARGUMENTS \
    VALKEYMODULE_NOT_USED(argv); \
    VALKEYMODULE_NOT_USED(argc)

/* Returns whether a string has this text. */
WEFTMODULE_UNUSED static int is_text(const ValkeyModuleString *string, const char *text) {
    size_t length;
    const char *bytes = ValkeyModule_StringPtrLen(string, &length);
    return length == strlen(text) && memcmp(bytes, text, length) == 0;
}

#endif
