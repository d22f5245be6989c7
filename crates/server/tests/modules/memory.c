/* Memory, clocks, random bytes. */

#include "check.h"

static int memory(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    char *bytes = ValkeyModule_Alloc(10);
    memcpy(bytes, "123456789", 10);
    bytes = ValkeyModule_Realloc(bytes, 100000);
    CHECK(strcmp(bytes, "123456789") == 0);
    CHECK(ValkeyModule_MallocSize(bytes) >= 100000);
    CHECK(ValkeyModule_MallocUsableSize(bytes) >= 100000);
    CHECK(ValkeyModule_TryRealloc(bytes, (size_t)-1 / 4) == NULL);
    ValkeyModule_Free(bytes);
    bytes = ValkeyModule_Strdup("text");
    CHECK(strcmp(bytes, "text") == 0);
    /* The memory is that of the process, so the C library can free it. */
    free(bytes);
    ValkeyModule_Free(malloc(10));
    long *numbers = ValkeyModule_Calloc(100, sizeof(long));
    for (int i = 0; i < 100; i++) CHECK(numbers[i] == 0);
    ValkeyModule_Free(numbers);
    ValkeyModule_Free(NULL);
    CHECK(ValkeyModule_TryAlloc((size_t)-1 / 4) == NULL);
    CHECK(ValkeyModule_TryCalloc((size_t)-1 / 4, 8) == NULL);
    CHECK(ValkeyModule_PoolAlloc(ctx, 0) == NULL);
    for (size_t size = 1; size < 20000; size += size / 2 + 1) {
        char *pooled = ValkeyModule_PoolAlloc(ctx, size);
        CHECK(size < sizeof(long) || (uintptr_t)pooled % sizeof(long) == 0);
        memset(pooled, 1, size);
    }
    float ratio = ValkeyModule_GetUsedMemoryRatio();
    CHECK(ratio >= 0);
    return ValkeyModule_ReplyWithDouble(ctx, ratio);
}

static int clocks(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    mstime_t milliseconds = ValkeyModule_Milliseconds();
    ustime_t microseconds = ValkeyModule_Microseconds();
    CHECK(microseconds / 1000 >= milliseconds && microseconds / 1000 < milliseconds + 10000);
    uint64_t monotonic = ValkeyModule_MonotonicMicroseconds();
    ustime_t cached = ValkeyModule_CachedMicroseconds();
    while (ValkeyModule_MonotonicMicroseconds() < monotonic + 2000) {}
    CHECK(ValkeyModule_CachedMicroseconds() == cached);
    ValkeyModule_LatencyAddSample("memory-event", 5);

    unsigned char bytes[2][32];
    char digits[2][41] = {{0}, {0}};
    for (int i = 0; i < 2; i++) {
        ValkeyModule_GetRandomBytes(bytes[i], sizeof(bytes[i]));
        ValkeyModule_GetRandomHexChars(digits[i], 40);
    }
    CHECK(memcmp(bytes[0], bytes[1], sizeof(bytes[0])) != 0);
    CHECK(strcmp(digits[0], digits[1]) != 0 && strlen(digits[0]) == 40);
    CHECK(strspn(digits[0], "0123456789abcdef") == 40);
    return ValkeyModule_ReplyWithLongLong(ctx, milliseconds);
}

int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **argv, int argc) {
    UNUSED_ARGUMENTS;
    REQUIRE(ValkeyModule_Init(ctx, "memory", 1, VALKEYMODULE_APIVER_1));
    COMMAND("memory.allocate", memory);
    COMMAND("memory.clocks", clocks);
    return VALKEYMODULE_OK;
}
