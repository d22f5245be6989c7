//! The parameters of RDB dumps and the append-only file.

use super::ChangeAction::{ConfigureAof, SwitchAof};
use super::{Choices, I32_MAX, I32_MIN, MIB, SpecialKind, TextCheck, boolean, choice, integer, memory, special, text};

const VERSION_CHECK: Choices = &[("strict", 0), ("relaxed", 1)];

const FSYNC: Choices = &[("everysec", 2), ("always", 1), ("no", 0)];

super::table! {
    SAVE "save" = special(SpecialKind::SavePoints).multi_arg(),
        Active, "Pairs of seconds and changes that trigger a dump; an empty string switches dumps off.";
    DBFILENAME "dbfilename" = text("dump.rdb").checked(TextCheck::FileName).protected(),
        Active, "File name of the dump.";
    RDBCOMPRESSION "rdbcompression" = boolean(true),
        Active, "Compress strings in dumps.";
    RDBCHECKSUM "rdbchecksum" = boolean(true).immutable(),
        Active, "End dumps with a checksum, and check it when loading.";
    RDB_VERSION_CHECK "rdb-version-check" = choice(VERSION_CHECK, "strict"),
        Active, "Refuse dumps of a newer version (strict) or try to load them (relaxed).";
    STOP_WRITES_ON_BGSAVE_ERROR "stop-writes-on-bgsave-error" = boolean(true),
        Active, "Refuse writes after a dump in the background has failed.";
    RDB_SAVE_INCREMENTAL_FSYNC "rdb-save-incremental-fsync" = boolean(true),
        Active, "Sync a dump to disk in steps while it is written.";
    RDB_DEL_SYNC_FILES "rdb-del-sync-files" = boolean(false),
        Active, "Delete dump files made for replication when nothing else needs them.";
    RDB_KEY_SAVE_DELAY "rdb-key-save-delay" = integer(0, I32_MIN, I32_MAX).hidden(),
        Active, "Microseconds to wait after each key written to a dump, for tests.";
    KEY_LOAD_DELAY "key-load-delay" = integer(0, I32_MIN, I32_MAX).hidden(),
        Active, "Microseconds to wait after each key loaded, for tests.";
    LOADING_PROCESS_EVENTS_INTERVAL_BYTES "loading-process-events-interval-bytes" = integer(2_097_152, 1024, I32_MAX).hidden(),
        Active, "Bytes loaded between two checks for network events.";
    APPENDONLY "appendonly" = boolean(false).deny_loading().on_change(&[SwitchAof]),
        Active, "Log every write to an append-only file.";
    APPENDFILENAME "appendfilename" = text("appendonly.aof").checked(TextCheck::FileName).immutable(),
        Active, "Base name of the append-only files.";
    APPENDDIRNAME "appenddirname" = text("appendonlydir").checked(TextCheck::DirectoryName).immutable(),
        Active, "Directory of the append-only files, below the working directory.";
    APPENDFSYNC "appendfsync" = choice(FSYNC, "everysec").on_change(&[ConfigureAof]),
        Active, "When the append-only file is synced: always, everysec or no.";
    NO_APPENDFSYNC_ON_REWRITE "no-appendfsync-on-rewrite" = boolean(false).on_change(&[ConfigureAof]),
        Active, "Do not sync the append-only file while a dump or rewrite is under way.";
    AUTO_AOF_REWRITE_PERCENTAGE "auto-aof-rewrite-percentage" = integer(100, 0, I32_MAX),
        Active, "Growth in per cent at which the append-only file is rewritten; 0 never.";
    AUTO_AOF_REWRITE_MIN_SIZE "auto-aof-rewrite-min-size" = memory(64 * MIB, 0, i64::MAX),
        Active, "Bytes below which the append-only file is not rewritten automatically.";
    AOF_LOAD_TRUNCATED "aof-load-truncated" = boolean(true),
        Active, "Load an append-only file whose end is missing.";
    AOF_USE_RDB_PREAMBLE "aof-use-rdb-preamble" = boolean(true),
        Active, "Begin a rewritten append-only file with a dump.";
    AOF_TIMESTAMP_ENABLED "aof-timestamp-enabled" = boolean(false).on_change(&[ConfigureAof]),
        Active, "Put times into the append-only file.";
    AOF_REWRITE_INCREMENTAL_FSYNC "aof-rewrite-incremental-fsync" = boolean(true),
        Active, "Sync a rewritten append-only file in steps while it is written.";
    AOF_DISABLE_AUTO_GC "aof-disable-auto-gc" = boolean(false).hidden(),
        Active, "Keep append-only files that are no longer needed.";
}
