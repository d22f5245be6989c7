//! Checks that can refuse a command, in the order in which clients observe them.

use std::sync::atomic::{AtomicU64, Ordering};

use weft_resp::{Args, Protocol};

use crate::commands::context::Binding;
use crate::commands::error::{CommandError, shown, shown_name};
use crate::commands::permission::{self, CommandPermission};
use crate::keyspace::key_identity::PlannedKey;
use crate::net::client::{Client, ClientFlags};
use crate::observability::log;
use crate::replication::ReplicationState;
use crate::state::Server;
use weft_acl::Denial;
use weft_command_table::registry::{Command, Lookup, Registry};
use weft_command_table::spec::Flags;
use weft_config::id;

use super::redirect;
use super::script_flags;
use super::thread::{MigrationState, Thread};

/// The result of the checks before a command runs.
pub enum Admission {
    /// The command runs.
    Run,
    /// The command waits for the end of CLIENT PAUSE.
    Paused,
    /// The command is refused with this error.
    Refused(CommandError),
    /// The keys belong to another node. A transaction that the command would have run is discarded.
    Redirected(CommandError),
    /// The client's user lacks the permission.
    Denied(Denial),
    /// The client's user has been deleted: the connection is to be closed.
    Unwelcome,
}

/// Decides whether a command may run. The command exists and has an acceptable number of arguments.
///
/// Most clients are authenticated and have all permissions. For them the check compares the version of the users only
/// (see the essay of [`weft_acl`]).
#[inline]
pub fn admit<'a>(
    thread: &mut Thread,
    client: &mut Client,
    command: &'static Command<Binding>,
    (args, keys): (impl Fn() -> Args<'a>, &[PlannedKey]),
) -> Admission {
    let server = &thread.server;
    let flags = command.spec.flags;
    let free = client.login.is_unrestricted(thread.acl_version);
    if !free {
        if !client.login.refresh(&server.acl) {
            return Admission::Unwelcome;
        }
        if !flags.contains(Flags::NO_AUTH) && must_log_in(server, client) {
            return Admission::Refused(NOT_LOGGED_IN);
        }
    }
    if flags.contains(Flags::PROTECTED)
        && let Some(error) = protected(server, client, command)
    {
        return Admission::Refused(error);
    }
    if client.transaction.is_some() && flags.contains(Flags::NO_MULTI) {
        return Admission::Refused(CommandError::text(format!(
            "ERR Command '{}' not allowed inside a transaction",
            command.full_name
        )));
    }
    if !free && let Err(denial) = permitted(server, client, command, args()) {
        return Admission::Denied(denial);
    }
    // The view is taken out and put back. Cloning the `Arc` would move the cache line of the view's reference count
    // between the workers.
    if let Some(view) = thread.view.take_if(|_| !client.flags.intersects(REPEATS)) {
        let routed = redirect::route(thread, &view, client, command, args(), keys);
        thread.view = Some(view);
        if let Err(error) = routed {
            return Admission::Redirected(error);
        }
    }
    let (server, tunables, now_ms) = (&thread.server, &thread.tunables, thread.now_ms);
    if tunables.guarded
        && let Some(error) = guarded(thread, client, command)
    {
        return Admission::Refused(error);
    }
    if !thread.standing.is_plain()
        && let Some(error) = out_of_standing(thread, client, command)
    {
        // A client that would be redirected to the replica that takes over waits until that replica has taken over.
        let is_early = error.0.starts_with(b"REDIRECT ") && server.replication.is_failing_over();
        return if is_early {
            Admission::Paused
        } else {
            Admission::Refused(error)
        };
    }
    if client.flags.intersects(LISTENS) {
        if let Some(error) = out_of_mode(client, command) {
            return Admission::Refused(error);
        }
        if client.flags.contains(ClientFlags::MONITOR) {
            // No command that a MONITOR client may run changes anything.
            return Admission::Run;
        }
    }
    let held_back = flags.intersects(CHANGES) || (command.full_name == "exec" && transaction_writes(client));
    if server.clients.pause.holds(now_ms, held_back) {
        return Admission::Paused;
    }
    Admission::Run
}

/// The clients whose commands have run before, on a primary or in a file.
const REPEATS: ClientFlags = ClientFlags::PRIMARY.union(ClientFlags::REPLAY);

/// Returns the error if the state of memory, disk or replication forbids what the command would do.
#[cold]
fn guarded(thread: &Thread, client: &Client, command: &Command<Binding>) -> Option<CommandError> {
    let tunables = &thread.tunables;
    if client.flags.intersects(REPEATS) {
        if client.flags.contains(ClientFlags::PRIMARY) && (tunables.refuses_writes || tunables.aof_fails) {
            obey_unsaved(thread, client, command);
        }
        return None;
    }
    if thread.room.is_full && needs_memory(client, command) {
        return Some(OUT_OF_MEMORY);
    }
    // PING is refused as well, so that monitoring programs notice.
    let refused = || writes(client, command) || command.full_name == "ping";
    if tunables.refuses_writes && refused() {
        return Some(CommandError::constant(NOT_SAVED));
    }
    (tunables.aof_fails && refused()).then(|| not_appended(&thread.server))
}

/// Handles a write from the primary while this replica cannot write its disk. The replica must not refuse it, or its
/// data would differ from its primary's. Unless `replica-ignore-disk-write-errors` lets it continue, the process ends.
#[cold]
fn obey_unsaved(thread: &Thread, client: &Client, command: &Command<Binding>) {
    /// Minimum interval between two log lines, in seconds.
    const PERIOD_S: u64 = 10;
    static TOLD_S: AtomicU64 = AtomicU64::new(0);
    let is_ping = command.full_name == "ping";
    if !is_ping && !writes(client, command) {
        return;
    }
    if !is_ping && !thread.server.config.boolean(id::REPLICA_IGNORE_DISK_WRITE_ERRORS) {
        log::warning!("Replica was unable to write command to disk.");
        std::process::abort();
    }
    let now_s = thread.now_ms / 1000;
    if now_s > TOLD_S.load(Ordering::Relaxed) + PERIOD_S {
        TOLD_S.store(now_s, Ordering::Relaxed);
        log::warning!("Replica is applying a command even though it is unable to write to disk.");
    }
}

/// Returns the error of a write command while the append-only file cannot be written.
pub fn not_appended(server: &Server) -> CommandError {
    let reason = server.persistence.aof.failure_reason().unwrap_or_default();
    CommandError::text(format!("MISCONF Errors writing to the AOF file: {reason}"))
}

/// Returns `true` if the command writes. EXEC writes if a queued command writes, or if a queued script may write.
fn writes(client: &Client, command: &Command<Binding>) -> bool {
    let transaction = client.transaction.as_ref().filter(|_| command.full_name == "exec");
    has(client, command, Flags::WRITE) || transaction.is_some_and(|transaction| transaction.script_may_write)
}

/// Returns `true` if the command has `flag`. For EXEC, one queued command with the flag is enough.
fn has(client: &Client, command: &Command<Binding>, flag: Flags) -> bool {
    any(client, command, |flags| flags.contains(flag))
}

/// Returns `true` if the command lacks `flag`. For EXEC, one queued command without the flag is enough.
fn lacks(client: &Client, command: &Command<Binding>, flag: Flags) -> bool {
    any(client, command, |flags| !flags.contains(flag))
}

/// Returns `true` if `of_flags` holds for the flags of the command, or, for EXEC, for those of a queued command.
fn any(client: &Client, command: &Command<Binding>, of_flags: impl Fn(Flags) -> bool) -> bool {
    let commands = crate::commands::registry().commands();
    let of_transaction = || {
        let transaction = client.transaction.as_ref().filter(|_| command.full_name == "exec");
        let mut queued = transaction.iter().flat_map(|transaction| &transaction.commands);
        queued.any(|queued| {
            let command = commands.get(queued.command);
            command.is_some_and(|command| of_flags(command.spec.flags))
        })
    };
    of_flags(command.spec.flags) || of_transaction()
}

/// Checks whether the client's user may run the command, or queue it.
///
/// # Errors
/// The permission that is missing.
#[cold]
fn permitted(
    server: &Server,
    client: &Client,
    command: &'static Command<Binding>,
    args: Args<'_>,
) -> Result<(), Denial> {
    let db = client
        .transaction
        .as_ref()
        .map_or(client.db, |transaction| transaction.db);
    let permission = CommandPermission {
        command,
        args: &args,
        db,
        databases: permission::databases(server),
    };
    permission::check(client.login.rules(), &permission)
}

/// Returns the error of a command that this server's replication role or the state of its data set refuses.
#[inline(never)]
fn out_of_standing(thread: &Thread, client: &Client, command: &'static Command<Binding>) -> Option<CommandError> {
    if client.flags.intersects(REPEATS) {
        return None;
    }
    let (standing, config) = (thread.standing, &thread.server.config);
    let writes = || writes(client, command);
    let refused = CommandError::constant;
    let redirects = client.flags.contains(ClientFlags::CAPA_REDIRECT)
        && standing.contains(ReplicationState::IS_REPLICA)
        && thread.server.cluster.is_none();
    let reads_elsewhere = || !client.flags.contains(ClientFlags::READONLY) && has(client, command, Flags::READONLY);
    if redirects && (reads_elsewhere() || writes()) {
        let state = thread.server.replication.state();
        return state
            .primary
            .as_ref()
            .map(|primary| CommandError::text(format!("REDIRECT {}:{}", primary.host, primary.port)));
    }
    if standing.contains(ReplicationState::ROLE_CHANGE_PENDING) && writes() {
        return Some(refused(
            "CLUSTERDOWN The cluster is down and only accepts read commands",
        ));
    }
    // The check under leases sends the client to the node that the slot migrates to.
    let goes_on = matches!(thread.moving, Some(MigrationState::Out { runs_here: false, .. }));
    if standing.contains(ReplicationState::IS_REPLICA) && !goes_on && writes() && config.boolean(id::REPLICA_READ_ONLY)
    {
        return Some(refused("READONLY You can't write against a read only replica."));
    }
    if standing.contains(ReplicationState::TOO_FEW_REPLICAS)
        && !standing.contains(ReplicationState::IS_REPLICA)
        && writes()
    {
        return Some(refused("NOREPLICAS Not enough good replicas to write."));
    }
    let stale = ReplicationState::IS_REPLICA.with(ReplicationState::LINK_DOWN);
    if standing.contains(stale) && lacks(client, command, Flags::STALE) && !config.boolean(id::REPLICA_SERVE_STALE_DATA)
    {
        return Some(refused(
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        ));
    }
    let loads = (standing.contains(ReplicationState::LOADING) && lacks(client, command, Flags::LOADING))
        || (standing.contains(ReplicationState::LOADING_IN_STAGING) && has(client, command, Flags::NO_ASYNC_LOADING));
    if loads {
        return Some(refused("LOADING Valkey is loading the dataset in memory"));
    }
    let is_busy = standing.contains(ReplicationState::SCRIPT_BUSY) && !command.spec.flags.contains(Flags::ALLOW_BUSY);
    if is_busy && config.choice(id::BUSY_REPLY_SCOPE) == "all" {
        return script_flags::busy(&thread.server, std::iter::empty(), true);
    }
    None
}

/// Marks of clients that may run a few commands only.
const LISTENS: ClientFlags = ClientFlags::PUBSUB.union(ClientFlags::MONITOR);

/// Returns the error of a command that a subscribed client (RESP2) or a MONITOR client may not run.
#[cold]
fn out_of_mode(client: &Client, command: &'static Command<Binding>) -> Option<CommandError> {
    let name = command.full_name;
    let subscribed = client.flags.contains(ClientFlags::PUBSUB);
    if subscribed && client.protocol == Protocol::Resp2 {
        let changes = matches!(name, "subscribe" | "psubscribe" | "ssubscribe");
        let ends = matches!(name, "unsubscribe" | "punsubscribe" | "sunsubscribe");
        if !changes && !ends && !matches!(name, "ping" | "quit" | "reset") {
            return Some(CommandError::text(format!(
                "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed \
                 in this context"
            )));
        }
    }
    let on_data = CHANGES.with(Flags::READONLY);
    (client.flags.contains(ClientFlags::MONITOR) && command.spec.flags.intersects(on_data))
        .then_some(CommandError::constant("ERR Replica can't interact with the keyspace"))
}

/// Adjusts the admission of a command that runs a script: the flags of the script itself count.
#[cold]
pub fn of_script(
    thread: &Thread,
    admission: Admission,
    command: &'static Command<Binding>,
    args: Args<'_>,
) -> Admission {
    let server = &thread.server;
    match admission {
        Admission::Run if thread.room.is_full && script_flags::lacks_memory(server, command, args) => {
            Admission::Refused(OUT_OF_MEMORY)
        }
        Admission::Run if thread.tunables.refuses_writes && script_flags::may_write(server, command, args) => {
            Admission::Refused(CommandError::constant(NOT_SAVED))
        }
        Admission::Run if thread.tunables.aof_fails && script_flags::may_write(server, command, args) => {
            Admission::Refused(not_appended(server))
        }
        Admission::Paused
            if !server.clients.pause.holds(thread.now_ms, false) && script_flags::only_reads(server, command, args) =>
        {
            Admission::Run
        }
        other => other,
    }
}

const OUT_OF_MEMORY: CommandError = CommandError::constant("OOM command not allowed when used memory > 'maxmemory'.");

/// The error text of a write command after the last RDB save has failed.
pub const NOT_SAVED: &str = "MISCONF Valkey is configured to save RDB snapshots, but it's currently unable to persist to disk. Commands that may modify the \
                             data set are disabled, because this instance is configured to report errors during writes \
                             if RDB snapshotting fails (stop-writes-on-bgsave-error option). Please check the Valkey \
                             logs for details about the RDB error.";

/// The commands that wait while CLIENT PAUSE holds back writes.
pub const CHANGES: Flags = Flags::WRITE.with(Flags::MAY_REPLICATE);

fn transaction_writes(client: &Client) -> bool {
    client
        .transaction
        .as_ref()
        .is_some_and(|transaction| transaction.may_write)
}

/// Returns `true` if the command may increase memory usage. For EXEC, one such queued command is enough.
fn needs_memory(client: &Client, command: &Command<Binding>) -> bool {
    let of_transaction = || {
        command.full_name == "exec"
            && client
                .transaction
                .as_ref()
                .is_some_and(|transaction| transaction.is_denied_out_of_memory)
    };
    command.spec.flags.contains(Flags::DENYOOM) || of_transaction()
}

/// Returns `true` if the client may only authenticate or quit. Clients need not authenticate once no password is set.
#[inline]
pub fn must_log_in(server: &Server, client: &Client) -> bool {
    !client.login.is_authenticated() && !server.acl.is_open()
}

/// The error of a request by a client that has not authenticated.
pub const NOT_LOGGED_IN: CommandError = CommandError::constant("NOAUTH Authentication required.");

/// Returns `true` if the request comes from a program that speaks HTTP, which an attacker may have directed to this
/// port.
pub fn is_http(args: Args<'_>) -> bool {
    let name = args.argument(0);
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

/// Returns the error of a request that names no command, or that has a wrong number of arguments.
pub fn explain_unknown(commands: &Registry<Binding>, args: Args<'_>) -> CommandError {
    match commands.lookup(&args) {
        Lookup::Found(command) => {
            let mut text = b"ERR wrong number of arguments for '".to_vec();
            text.extend_from_slice(command.full_name.as_bytes());
            text.extend_from_slice(b"' command");
            CommandError::bytes(text)
        }
        Lookup::UnknownSubcommand { parent } => {
            let mut text = b"ERR unknown subcommand '".to_vec();
            text.extend_from_slice(shown_name(args.argument(1)));
            text.extend_from_slice(b"'. Try ");
            text.extend_from_slice(parent.full_name.to_uppercase().as_bytes());
            text.extend_from_slice(b" HELP.");
            CommandError::bytes(text)
        }
        Lookup::UnknownCommand => {
            let mut text = b"ERR unknown command '".to_vec();
            text.extend_from_slice(shown_name(args.argument(0)));
            text.extend_from_slice(b"', with args beginning with: ");
            let mut words: Vec<u8> = Vec::new();
            for index in 1..args.len() {
                if words.len() >= 128 {
                    break;
                }
                let room = 128 - words.len();
                words.push(b'\'');
                words.extend(shown(args.argument(index)).iter().take(room));
                words.extend_from_slice(b"' ");
            }
            text.extend_from_slice(&words);
            CommandError::bytes(text)
        }
    }
}

fn protected(server: &Server, client: &Client, command: &Command<Binding>) -> Option<CommandError> {
    let name = command.full_name.split('|').next().unwrap_or_default();
    let (parameter, option) = match name {
        "module" => (id::ENABLE_MODULE_COMMAND, "enable-module-command"),
        _ => (id::ENABLE_DEBUG_COMMAND, "enable-debug-command"),
    };
    let allowed = match server.config.choice(parameter) {
        "yes" => true,
        "local" => client.is_local(),
        _ => false,
    };
    (!allowed).then(|| {
        CommandError::text(format!(
            "ERR {} command not allowed. If the {option} option is set to \"local\", you can run it from a local \
             connection, otherwise you need to set this option in the configuration file, and then restart the server.",
            name.to_uppercase()
        ))
    })
}
