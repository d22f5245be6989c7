//! What functions about the context, the lock and the log need from the server.

use std::ffi::CStr;

/// The part of [`super::Session`] for contexts.
pub trait ContextSession {
    /// Returns the flags of the client that the session acts for, as `GetContextFlags` shows them: those about the
    /// client, a script and a transaction.
    fn client_flags(&self, client_id: u64) -> i32;

    /// Returns `true` if the commands of the client must not fail: it is the primary, or a file is loaded.
    fn must_obey_client(&self, client_id: u64) -> bool;

    /// Returns `true` if the session may use every key: the thread is in exclusive mode.
    fn is_exclusive(&self) -> bool;

    /// Lets other threads through the gate for a moment, because this one waits for the home worker. Returns `false` if
    /// the server has ended.
    fn open_gate_briefly(&mut self) -> bool;

    /// Lets other threads through the gate for a moment. They refuse the commands of their clients. `busy_reply` is the
    /// text of that refusal; `None` for the usual one. `serves_clients` is `true` if clients get it, too, and not only
    /// events are handled.
    fn give_way(&mut self, serves_clients: bool, busy_reply: Option<&CStr>);
}

/// The part of [`super::Host`] for contexts.
pub trait ContextHost {
    /// Returns the flags of the server, as `GetContextFlags` shows them.
    fn server_flags(&self) -> i32;

    /// Returns the number of databases.
    fn databases(&self) -> u32;

    /// Returns `true` if traffic to replicas is to be avoided, because they are being paused.
    fn should_avoid_replica_traffic(&self) -> bool;

    /// Starts the thread that lends sessions to threads of modules, unless it runs.
    fn start_lending(&self);

    /// Returns `true` if no thread of a module gets a session now.
    fn is_lock_withheld(&self) -> bool;

    /// Returns the names of modules, each followed by where its commands run.
    fn module_concurrency(&self) -> String;

    /// Reports that an assertion of the module whose code runs has failed, and ends the process.
    fn report_failed_assertion(&self, expression: &CStr, file: &CStr, line: i32) -> !;

    /// Returns the milliseconds for which a call may run before other clients get an error.
    fn busy_threshold_ms(&self) -> u64;
}

/// The flags of `GetContextFlags`.
pub mod flags {
    /// A script runs.
    pub const LUA: i32 = 1;
    /// A transaction runs.
    pub const MULTI: i32 = 1 << 1;
    /// The server is a primary.
    pub const PRIMARY: i32 = 1 << 2;
    /// The server is a replica.
    pub const REPLICA: i32 = 1 << 3;
    /// The server is a replica that accepts no writes of clients.
    pub const READONLY: i32 = 1 << 4;
    /// The server is a node of a cluster.
    pub const CLUSTER: i32 = 1 << 5;
    /// There is an append-only file.
    pub const AOF: i32 = 1 << 6;
    /// Dumps are made at intervals.
    pub const RDB: i32 = 1 << 7;
    /// Memory is limited.
    pub const MAXMEMORY: i32 = 1 << 8;
    /// Keys may be evicted.
    pub const EVICT: i32 = 1 << 9;
    /// Memory is above its limit.
    pub const OOM: i32 = 1 << 10;
    /// More than three quarters of the memory are used.
    pub const OOM_WARNING: i32 = 1 << 11;
    /// The command comes from the primary, or from the source of a slot migration.
    pub const REPLICATED: i32 = 1 << 12;
    /// Data are loaded.
    pub const LOADING: i32 = 1 << 13;
    /// The replica has no link to its primary.
    pub const REPLICA_IS_STALE: i32 = 1 << 14;
    /// The replica connects to its primary.
    pub const REPLICA_IS_CONNECTING: i32 = 1 << 15;
    /// The replica receives a dump.
    pub const REPLICA_IS_TRANSFERRING: i32 = 1 << 16;
    /// The replica receives the stream.
    pub const REPLICA_IS_ONLINE: i32 = 1 << 17;
    /// A dump or the append-only file is being written.
    pub const ACTIVE_CHILD: i32 = 1 << 18;
    /// EXEC of the client would fail.
    pub const MULTI_DIRTY: i32 = 1 << 19;
    /// This process is a child of the server.
    pub const IS_CHILD: i32 = 1 << 20;
    /// The client cannot be blocked.
    pub const DENY_BLOCKING: i32 = 1 << 21;
    /// The client speaks RESP3.
    pub const RESP3: i32 = 1 << 22;
    /// Data are loaded beside those that clients read.
    pub const ASYNC_LOADING: i32 = 1 << 23;
    /// The server starts.
    pub const SERVER_STARTUP: i32 = 1 << 24;
    /// The client is the source of a slot migration.
    pub const SLOT_IMPORT_CLIENT: i32 = 1 << 25;
    /// The client is the target of a slot migration.
    pub const SLOT_EXPORT_CLIENT: i32 = 1 << 26;
    /// All flags.
    pub const ALL: i32 = (1 << 27) - 1;
}
