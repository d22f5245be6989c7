//! The scenarios of disk errors.

/// A step of a scenario.
pub enum Action {
    /// Sends a command on a new connection.
    Call(&'static str),
    /// Replaces the injected faults: `OPERATION PATH SKIP COUNT EFFECT`.
    Fault(&'static [&'static str]),
    /// Waits until fields of INFO have these values.
    Await(&'static [(&'static str, &'static str)]),
    /// Waits until what was written is synced with `appendfsync everysec`, however slow the machine is.
    AwaitSync,
    /// Waits for the end of the process.
    AwaitExit,
    /// Requests a dump as a replica does that knows no newer way, and receives it.
    FullSync,
    /// Names the temporary files that are in the data directory.
    TemporaryFiles,
}

/// A scenario.
pub struct Scenario {
    pub name: &'static str,
    pub arguments: &'static [&'static str],
    /// The faults from the start of the process on.
    pub first_faults: &'static [&'static str],
    pub actions: &'static [Action],
    /// `true` if a server without faults loads what is left.
    pub loads: bool,
}

const ALWAYS: &[&str] = &["--appendonly", "yes", "--appendfsync", "always", "--save", ""];
const EVERYSEC: &[&str] = &["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""];
const NEVER: &[&str] = &["--appendonly", "yes", "--appendfsync", "no", "--save", ""];
const DUMPS: &[&str] = &["--appendonly", "no", "--save", "3600 100000"];
const OFTEN: &[&str] = &["--appendonly", "no", "--save", "1 1"];
const DUMPS_FOR_REPLICAS: &[&str] = &[
    "--appendonly",
    "no",
    "--save",
    "3600 100000",
    "--repl-diskless-sync",
    "no",
];
const OFF: &[&str] = &["--appendonly", "no", "--save", ""];

const WRITE_OK: Action = Action::Await(&[("aof_last_write_status", "ok")]);
const WRITE_ERROR: Action = Action::Await(&[("aof_last_write_status", "err")]);
const SAVE_ERROR: Action = Action::Await(&[("rdb_bgsave_in_progress", "0"), ("rdb_last_bgsave_status", "err")]);
const SAVE_OK: Action = Action::Await(&[("rdb_bgsave_in_progress", "0"), ("rdb_last_bgsave_status", "ok")]);
const REWRITE_ERROR: Action = Action::Await(&[("aof_rewrite_in_progress", "0"), ("aof_last_bgrewrite_status", "err")]);
const REWRITE_OK: Action = Action::Await(&[("aof_rewrite_in_progress", "0"), ("aof_last_bgrewrite_status", "ok")]);

/// An append-only file fails while it is written.
macro_rules! logging {
    ($name:literal, $arguments:ident, [$($fault:literal),*], exit) => {
        Scenario {
            name: $name,
            arguments: $arguments,
            first_faults: &[],
            actions: &[
                Action::Call("SET a 1"),
                Action::Fault(&[$($fault),*]),
                Action::Call("SET b 2"),
                Action::AwaitExit,
            ],
            loads: true,
        }
    };
    ($name:literal, $arguments:ident, [$($fault:literal),*], refuse) => {
        Scenario {
            name: $name,
            arguments: $arguments,
            first_faults: &[],
            actions: &[
                Action::Call("SET a 1"),
                Action::Fault(&[$($fault),*]),
                Action::Call("SET b 2"),
                WRITE_ERROR,
                Action::Call("SET c 3"),
                Action::Call("MSET c 3 d 4"),
                Action::Call("PING"),
                Action::Call("GET b"),
                Action::Call("EVAL return(redis.call('set','d','4')) 1 d"),
                Action::Fault(&[]),
                WRITE_OK,
                Action::Call("SET e 5"),
            ],
            loads: true,
        }
    };
}

/// The append-only file cannot be synced, until a rewrite replaces it.
macro_rules! syncing {
    ($name:literal, $fault:literal) => {
        Scenario {
            name: $name,
            arguments: EVERYSEC,
            first_faults: &[],
            actions: &[
                Action::Call("SET a 1"),
                // Otherwise its sync might fail, before or after the next command.
                Action::AwaitSync,
                Action::Fault(&[$fault]),
                Action::Call("SET b 2"),
                WRITE_ERROR,
                Action::Call("SET c 3"),
                Action::Call("PING"),
                Action::Call("GET b"),
                Action::Fault(&[]),
                Action::Call("SET d 4"),
                Action::Call("BGREWRITEAOF"),
                REWRITE_OK,
                WRITE_OK,
                Action::Call("SET e 5"),
            ],
            loads: true,
        }
    };
}

/// A dump fails, in the background and in place.
macro_rules! dump {
    ($name:literal, $fault:literal) => {
        Scenario {
            name: $name,
            arguments: DUMPS,
            first_faults: &[],
            actions: &[
                Action::Call("SET a 1"),
                Action::Call("SAVE"),
                Action::Call("SET b 2"),
                Action::Fault(&[$fault]),
                Action::Call("SAVE"),
                Action::Call("BGSAVE"),
                SAVE_ERROR,
                Action::TemporaryFiles,
                Action::Call("SET c 3"),
                Action::Call("GET b"),
                Action::Fault(&[]),
                Action::Call("BGSAVE"),
                SAVE_OK,
                Action::Call("SET d 4"),
                Action::TemporaryFiles,
            ],
            loads: true,
        }
    };
}

/// A dump for a replica fails, which is written to a file first, and the next one succeeds.
macro_rules! full_sync {
    ($name:literal, $fault:literal) => {
        Scenario {
            name: $name,
            arguments: DUMPS_FOR_REPLICAS,
            first_faults: &[],
            actions: &[
                Action::Call("SET a 1"),
                Action::Call("SAVE"),
                Action::Call("SET b 2"),
                Action::Fault(&[$fault]),
                Action::FullSync,
                SAVE_ERROR,
                Action::TemporaryFiles,
                Action::Call("SET c 3"),
                Action::Call("PING"),
                Action::Call("GET b"),
                Action::Fault(&[]),
                Action::FullSync,
                SAVE_OK,
                Action::Await(&[("rdb_changes_since_last_save", "0")]),
                Action::Call("SET d 4"),
                Action::TemporaryFiles,
            ],
            loads: true,
        }
    };
}

/// A rewrite fails, and the next one succeeds.
macro_rules! rewrite {
    ($name:literal, $fault:literal) => {
        Scenario {
            name: $name,
            arguments: EVERYSEC,
            first_faults: &[],
            actions: &[
                Action::Call("SET a 1"),
                Action::Fault(&[$fault]),
                Action::Call("BGREWRITEAOF"),
                REWRITE_ERROR,
                Action::Call("SET b 2"),
                Action::Fault(&[]),
                Action::Call("SET c 3"),
                Action::Call("BGREWRITEAOF"),
                REWRITE_OK,
                Action::Call("SET d 4"),
                Action::TemporaryFiles,
            ],
            loads: true,
        }
    };
}

/// The append-only file cannot be switched on.
macro_rules! switch {
    ($name:literal, $fault:literal) => {
        Scenario {
            name: $name,
            arguments: OFF,
            first_faults: &[],
            actions: &[
                Action::Call("SET a 1"),
                Action::Fault(&[$fault]),
                Action::Call("CONFIG SET appendonly yes"),
                Action::Call("CONFIG GET appendonly"),
                Action::Call("SET b 2"),
                Action::Await(&[("aof_enabled", "0"), ("aof_rewrite_in_progress", "0")]),
            ],
            loads: false,
        }
    };
}

/// The process cannot start.
macro_rules! start {
    ($name:literal, $arguments:ident, $fault:literal) => {
        Scenario {
            name: $name,
            arguments: $arguments,
            first_faults: &[$fault],
            actions: &[Action::AwaitExit],
            loads: true,
        }
    };
}

/// All scenarios. 5 is EIO, 28 is ENOSPC.
pub const SCENARIOS: &[Scenario] = &[
    logging!("always, write ENOSPC", ALWAYS, ["write incr.aof 0 -1 28"], exit),
    logging!("always, write EIO", ALWAYS, ["write incr.aof 0 -1 5"], exit),
    logging!(
        "always, short write",
        ALWAYS,
        ["write incr.aof 0 1 short", "write incr.aof 0 -1 28"],
        exit
    ),
    logging!(
        "always, short write that cannot be undone",
        ALWAYS,
        [
            "write incr.aof 0 1 short",
            "write incr.aof 0 -1 28",
            "truncate incr.aof 0 -1 5"
        ],
        exit
    ),
    logging!("always, sync EIO", ALWAYS, ["sync incr.aof 0 -1 5"], exit),
    logging!("always, sync ENOSPC", ALWAYS, ["sync incr.aof 0 -1 28"], exit),
    logging!("everysec, write ENOSPC", EVERYSEC, ["write incr.aof 0 -1 28"], refuse),
    logging!("everysec, write EIO", EVERYSEC, ["write incr.aof 0 -1 5"], refuse),
    logging!(
        "everysec, short write",
        EVERYSEC,
        ["write incr.aof 0 1 short", "write incr.aof 0 -1 28"],
        refuse
    ),
    logging!(
        "everysec, short write that cannot be undone",
        EVERYSEC,
        [
            "write incr.aof 0 1 short",
            "write incr.aof 0 -1 28",
            "truncate incr.aof 0 -1 5"
        ],
        refuse
    ),
    syncing!("everysec, sync EIO", "sync incr.aof 0 -1 5"),
    syncing!("everysec, sync ENOSPC", "sync incr.aof 0 -1 28"),
    logging!("no, write ENOSPC", NEVER, ["write incr.aof 0 -1 28"], refuse),
    logging!("no, write EIO", NEVER, ["write incr.aof 0 -1 5"], refuse),
    dump!("dump, open ENOSPC", "open temp- 0 -1 28"),
    dump!("dump, write ENOSPC", "write temp- 0 -1 28"),
    dump!("dump, write EIO", "write temp- 0 -1 5"),
    dump!("dump, sync EIO", "sync temp- 0 -1 5"),
    dump!("dump, sync ENOSPC", "sync temp- 0 -1 28"),
    dump!("dump, rename EIO", "rename dump.rdb 0 -1 5"),
    dump!("dump, rename ENOSPC", "rename dump.rdb 0 -1 28"),
    dump!("dump, sync of the directory EIO", "dirsync . 0 -1 5"),
    Scenario {
        name: "dump of a save point, write ENOSPC, and the next attempt",
        arguments: OFTEN,
        first_faults: &["write temp- 0 -1 28"],
        actions: &[
            Action::Call("SET a 1"),
            SAVE_ERROR,
            Action::TemporaryFiles,
            Action::Call("SET b 2"),
            Action::Call("PING"),
            Action::Fault(&[]),
            // No client requests it.
            SAVE_OK,
            Action::Call("PING"),
            Action::TemporaryFiles,
        ],
        loads: true,
    },
    full_sync!("full synchronisation, open ENOSPC", "open temp- 0 -1 28"),
    full_sync!("full synchronisation, write ENOSPC", "write temp- 0 -1 28"),
    full_sync!("full synchronisation, sync ENOSPC", "sync temp- 0 -1 28"),
    full_sync!("full synchronisation, rename ENOSPC", "rename dump.rdb 0 -1 28"),
    Scenario {
        name: "everysec, the whole disk ENOSPC",
        arguments: EVERYSEC,
        first_faults: &[],
        actions: &[
            Action::Call("SET a 1"),
            Action::Fault(&["write * 0 -1 28", "open * 0 -1 28"]),
            Action::Call("SET b 2"),
            WRITE_ERROR,
            Action::Call("BGREWRITEAOF"),
            REWRITE_ERROR,
            Action::Call("SAVE"),
            Action::Call("SET c 3"),
            Action::Call("PING"),
            Action::Call("GET b"),
            Action::Fault(&[]),
            WRITE_OK,
            Action::Call("SET c 3"),
            Action::Call("BGREWRITEAOF"),
            REWRITE_OK,
            Action::Call("SET d 4"),
            Action::TemporaryFiles,
        ],
        loads: true,
    },
    rewrite!("rewrite, open of the increment ENOSPC", "open incr.aof 0 -1 28"),
    rewrite!(
        "rewrite, open of the manifest EIO",
        "open temp-appendonly.aof.manifest 0 -1 5"
    ),
    rewrite!(
        "rewrite, write of the manifest ENOSPC",
        "write temp-appendonly.aof.manifest 0 -1 28"
    ),
    rewrite!(
        "rewrite, sync of the manifest EIO",
        "sync temp-appendonly.aof.manifest 0 -1 5"
    ),
    rewrite!(
        "rewrite, rename of the manifest EIO",
        "rename appendonly.aof.manifest 0 -1 5"
    ),
    rewrite!(
        "rewrite, second rename of the manifest EIO",
        "rename appendonly.aof.manifest 1 -1 5"
    ),
    rewrite!("rewrite, open of the base ENOSPC", "open temp-rewriteaof 0 -1 28"),
    rewrite!("rewrite, write of the base ENOSPC", "write temp-rewriteaof 0 -1 28"),
    rewrite!("rewrite, sync of the base EIO", "sync temp-rewriteaof 0 -1 5"),
    rewrite!("rewrite, sync of the base ENOSPC", "sync temp-rewriteaof 0 -1 28"),
    rewrite!(
        "rewrite, rename of the temporary base EIO",
        "rename temp-rewriteaof-bg 0 -1 5"
    ),
    rewrite!("rewrite, rename of the base EIO", "rename base.rdb 0 -1 5"),
    rewrite!("rewrite, rename of the base ENOSPC", "rename base.rdb 0 -1 28"),
    switch!("switch on, open of the increment ENOSPC", "open incr 0 -1 28"),
    start!("start, directory", ALWAYS, "mkdir appendonlydir 0 -1 28"),
    start!("start, open of the base", ALWAYS, "open temp- 0 -1 28"),
    start!("start, write of the base", ALWAYS, "write temp- 0 -1 28"),
    start!("start, open of the increment", ALWAYS, "open incr.aof 0 -1 28"),
    start!(
        "start, rename of the manifest",
        ALWAYS,
        "rename appendonly.aof.manifest 0 -1 5"
    ),
];
