//! The parameters of older versions of Valkey and its predecessor. Files and scripts still name them, but they have no
//! effect.
//!
//! They have the types, ranges and defaults of the last version that had them, and all of them can be set at run time.

use super::{Choices, I32_MAX, boolean, choice, integer, memory};

const SANITIZE: Choices = &[("no", 0), ("yes", 1), ("clients", 2)];

super::table! {
    DYNAMIC_HZ "dynamic-hz" = boolean(true).hidden(),
        Retired, "More rounds of background work for more clients.";
    EVENTS_PER_IO_THREAD "events-per-io-thread" = integer(2, 0, I32_MAX).hidden(),
        Retired, "Events from which one more I/O thread takes part; they tune themselves.";
    IO_THREADS_DO_READS "io-threads-do-reads" = boolean(false).hidden(),
        Retired, "Let I/O threads read; they always do.";
    LUA_REPLICATE_COMMANDS "lua-replicate-commands" = boolean(true).hidden(),
        Retired, "Send a script's commands to replicas instead of the script; it is always so.";
    SANITIZE_DUMP_PAYLOAD "sanitize-dump-payload" = choice(SANITIZE, "no").debug().hidden(),
        Retired, "Check values that are loaded or restored; they are always checked.";
    LIST_MAX_ZIPLIST_ENTRIES "list-max-ziplist-entries" = integer(512, 0, i64::MAX).unsigned().hidden(),
        Retired, "Elements of a small list; list-max-listpack-size counts.";
    LIST_MAX_ZIPLIST_VALUE "list-max-ziplist-value" = memory(64, 0, i64::MAX).unsigned().hidden(),
        Retired, "Bytes of an element of a small list; list-max-listpack-size counts.";
}
