//! The parameters of the process: its environment, its start, its shutdown.

use super::ChangeAction::{AdjustOomScore, SetCollation, SetCrashReports, SetImportMode, SetProcessTitle};
use super::{
    Choices, ConflictingChoices, I32_MAX, SpecialKind, TextCheck, boolean, bytes, choice, integer, optional_text,
    special, text,
};

const SUPERVISED: Choices = &[("upstart", 3), ("systemd", 2), ("auto", 1), ("no", 0)];

const SAVE_AND_NOSAVE: ConflictingChoices = ConflictingChoices {
    bits: 3,
    reason: "shutdown options SAVE and NOSAVE can't be used simultaneously",
};

const SHUTDOWN_OPTIONS: Choices = &[
    ("default", 0),
    ("save", 1),
    ("nosave", 2),
    ("now", 4),
    ("force", 8),
    ("safe", 16),
    ("failover", 32),
];

const OOM_SCORE_ADJUST: Choices = &[("no", 0), ("yes", 1), ("relative", 1), ("absolute", 2)];

super::table! {
    DAEMONIZE "daemonize" = boolean(false).immutable(),
        Active, "Leave the terminal and run in the background.";
    SUPERVISED "supervised" = choice(SUPERVISED, "no").immutable(),
        Active, "Tell an init system that the server is ready: upstart, systemd, auto or no.";
    PIDFILE "pidfile" = optional_text().immutable(),
        Active, "File that holds the process id while the server runs.";
    DIR "dir" = special(SpecialKind::Directory).protected().deny_loading(),
        Active, "Working directory: dumps, logs with a relative path and append-only files go there.";
    DATABASES "databases" = integer(16, 1, I32_MAX).immutable(),
        Active, "Number of databases.";
    HZ "hz" = integer(10, 0, I32_MAX).clamped(1, 500),
        Active, "Rounds of background work in a second, from 1 to 500.";
    ACTIVEREHASHING "activerehashing" = boolean(true),
        NotImplemented, "Spend idle time on growing and shrinking tables.";
    SET_PROC_TITLE "set-proc-title" = boolean(true).immutable(),
        Active, "Show the state of the server in the process title.";
    PROC_TITLE_TEMPLATE "proc-title-template" = text("{title} {listen-addr} {server-mode}").checked(TextCheck::TitleTemplate).on_change(&[SetProcessTitle]),
        Active, "Template of the process title.";
    LOCALE_COLLATE "locale-collate" = text("").on_change(&[SetCollation]),
        Active, "Locale that orders strings in SORT ALPHA; empty takes it from the environment.";
    ALWAYS_SHOW_LOGO "always-show-logo" = boolean(false).immutable(),
        Active, "Print the banner at the start even if the output is not a terminal.";
    SHUTDOWN_TIMEOUT "shutdown-timeout" = integer(10, 0, I32_MAX),
        Active, "Seconds a shutdown waits for replicas that lag behind.";
    SHUTDOWN_ON_SIGINT "shutdown-on-sigint" = choice(SHUTDOWN_OPTIONS, "default").conflicting(SAVE_AND_NOSAVE).multi_arg(),
        Active, "Options of the shutdown that SIGINT starts.";
    SHUTDOWN_ON_SIGTERM "shutdown-on-sigterm" = choice(SHUTDOWN_OPTIONS, "default").conflicting(SAVE_AND_NOSAVE).multi_arg(),
        Active, "Options of the shutdown that SIGTERM starts.";
    DISABLE_THP "disable-thp" = boolean(false).immutable(),
        Active, "Switch transparent huge pages off for this process.";
    OOM_SCORE_ADJ "oom-score-adj" = choice(OOM_SCORE_ADJUST, "no").on_change(&[AdjustOomScore]),
        Active, "Adjust the kernel's out-of-memory score of this process.";
    OOM_SCORE_ADJ_VALUES "oom-score-adj-values" = special(SpecialKind::OomScoreAdjustments).multi_arg().on_change(&[AdjustOomScore]),
        Active, "Adjustments for a primary, a replica and background children.";
    JEMALLOC_BG_THREAD "jemalloc-bg-thread" = boolean(true),
        NotImplemented, "Let the allocator return memory on a separate thread.";
    SERVER_CPULIST "server-cpulist" = optional_text().alias("server_cpulist").immutable(),
        Active, "CPUs the server threads may run on.";
    BIO_CPULIST "bio-cpulist" = optional_text().alias("bio_cpulist").immutable(),
        Active, "CPUs the background threads may run on.";
    AOF_REWRITE_CPULIST "aof-rewrite-cpulist" = optional_text().alias("aof_rewrite_cpulist").immutable(),
        Active, "CPUs the rewriting of the append-only file may run on.";
    BGSAVE_CPULIST "bgsave-cpulist" = optional_text().alias("bgsave_cpulist").immutable(),
        Active, "CPUs the writing of a dump may run on.";
    IGNORE_WARNINGS "ignore-warnings" = text(""),
        NotImplemented, "Names of start-up warnings to leave out.";
    CRASH_LOG_ENABLED "crash-log-enabled" = boolean(true).on_change(&[SetCrashReports]),
        Active, "Write a report to the log when the process crashes.";
    CRASH_MEMCHECK_ENABLED "crash-memcheck-enabled" = boolean(true),
        NotImplemented, "Test the memory quickly after a crash.";
    USE_EXIT_ON_PANIC "use-exit-on-panic" = boolean(false).hidden(),
        NotImplemented, "Exit instead of aborting after a failed assertion.";
    EXTENDED_REDIS_COMPATIBILITY "extended-redis-compatibility" = boolean(false),
        Active, "Report the name and version of Redis, for clients that require it.";
    AVAILABILITY_ZONE "availability-zone" = bytes(""),
        Active, "Zone this server runs in, shown to clients in INFO and HELLO.";
    IMPORT_MODE "import-mode" = boolean(false).debug().on_change(&[SetImportMode]),
        Active, "Accept data being imported from another server without expiring it.";
    DEBUG_CONTEXT "debug-context" = text("").debug().hidden(),
        NotImplemented, "Free text that is added to crash reports.";
    WATCHDOG_PERIOD "watchdog-period" = integer(0, 0, I32_MAX).hidden(),
        Active, "Replaces stall-report-threshold, in milliseconds, unless it is 0.";
}
