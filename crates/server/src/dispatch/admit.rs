//! Checks that can refuse a command, in the order in which clients observe them.

use weft_resp::{Args, Protocol};

use crate::commands::context::{Binding, HandlerMode};
use crate::commands::error::{CommandError, c_string_prefix, loading_error, printable_name};
use crate::commands::permission::{self, CommandPermission};
use crate::keyspace::key_identity::PlannedKey;
use crate::net::client::{Client, ClientFlags};
use crate::observability::log;
use crate::replication::ReplicationState;
use crate::state::Server;
use weft_acl::Denial;
use weft_command_table::registry::{Command, Lookup, Registry};
use weft_command_table::spec::CommandFlags;
use weft_config::{Config, id};
use weft_os::atomic::{AtomicU64, Ordering};

use super::exec_databases;
use super::redirect;
use super::script_flags;
use super::thread::{SlotMigration, ThreadState};
use super::tunables::must_refuse_writes;

/// The result of the checks before a command runs.
pub enum Admission {
    /// The command runs.
    Run,
    /// The command waits for the end of CLIENT PAUSE.
    Paused,
    /// The command of a replicated stream is put off: a module that runs gives way to clients, and relies on the data.
    PutOff,
    /// The command is refused with this error.
    Refused(CommandError),
    /// The keys belong to another node. A transaction that the command would have run is discarded.
    Redirected(CommandError),
    /// The client's user lacks the permission.
    Denied(Denial),
    /// The client's user has been deleted, or the client was killed: the connection is to be closed.
    ClientClosing,
}

/// Decides if a command may run. The command exists and has an acceptable number of arguments.
///
/// Most clients are authenticated and have all permissions. For them the check compares the version of the users only
/// (see the essay of [`weft_acl`]).
#[inline]
pub fn admit<'a>(
    thread: &mut ThreadState,
    client: &mut Client,
    command: &'static Command<Binding>,
    args: impl Fn() -> Args<'a>,
    keys: &[PlannedKey],
) -> Admission {
    debug_assert!(
        command.handler.is_some() && command.spec.accepts_arg_count(args().len()),
        "'{}' is admitted with a number of arguments that it accepts",
        command.full_name
    );
    let server = &thread.server;
    let flags = command.spec.flags;
    let free = client.login.is_unrestricted(thread.acl_version);
    if !free {
        if !client.login.refresh(&server.acl) {
            return Admission::ClientClosing;
        }
        if !flags.contains(CommandFlags::NO_AUTH) && must_authenticate(server, client) {
            return Admission::Refused(AUTHENTICATION_REQUIRED);
        }
    }
    if flags.contains(CommandFlags::PROTECTED)
        && let Some(error) = check_protected_config(server, client, command)
    {
        return Admission::Refused(error);
    }
    if client.transaction.is_some() && flags.contains(CommandFlags::NO_MULTI) {
        return Admission::Refused(CommandError::from_text(format!(
            "ERR Command '{}' not allowed inside a transaction",
            command.full_name
        )));
    }
    if !free && let Err(denial) = check_permission(server, client, command, args()) {
        return Admission::Denied(denial);
    }
    if client.transaction.is_some() && command.full_name == "exec" {
        exec_databases::update_databases(server, client, thread.acl_version, free);
    }
    // The view is taken out and put back. Cloning the `Arc` would move the cache line of the view's reference count
    // between the workers.
    if let Some(view) = thread.view.take_if(|_| !client.flags.intersects(REPLAYING_CLIENTS)) {
        let routed = redirect::check_routing(thread, &view, client, command, args(), keys);
        thread.view = Some(view);
        if let Err(error) = routed {
            return Admission::Redirected(error);
        }
    }
    let (server, tunables) = (&thread.server, &thread.tunables);
    if tunables.has_write_restrictions
        && let Some(error) = check_memory_and_disk(thread, client, command)
    {
        return Admission::Refused(error);
    }
    if must_spare_module(thread, client) {
        return Admission::PutOff;
    }
    if !thread.replication_state.is_empty()
        && let Some(error) = check_replication_state(thread, client, command)
    {
        // A client that would be redirected to the replica that takes over waits until that replica has taken over.
        let is_early = error.0.starts_with(b"REDIRECT ") && server.replication.is_failing_over();
        return if is_early {
            Admission::Paused
        } else {
            Admission::Refused(error)
        };
    }
    if client.flags.intersects(RESTRICTED_CLIENTS) {
        if let Some(error) = check_client_mode(client, command) {
            return Admission::Refused(error);
        }
        if client.flags.contains(ClientFlags::MONITOR) {
            // No command that a MONITOR client may run changes anything.
            return Admission::Run;
        }
    }
    check_pause(thread, client, command, keys)
}

/// Returns `true` if a command that is replayed must not run yet, because a module gives way to clients in the middle
/// of a command. A round was admitted as a whole.
#[inline]
fn must_spare_module(thread: &ThreadState, client: &Client) -> bool {
    thread.replication_state.contains(ReplicationState::MODULE_BUSY)
        && client.flags.intersects(REPLAYING_CLIENTS)
        && !thread.is_in_round
}

/// Admits a command unless clients are paused, or its slot is about to change its owner. A round was admitted as a
/// whole: whoever pauses clients waits for its end, and it would wait for the end of the pause.
#[inline]
fn check_pause(
    thread: &ThreadState,
    client: &Client,
    command: &'static Command<Binding>,
    keys: &[PlannedKey],
) -> Admission {
    let server = &thread.server;
    let flags = command.spec.flags;
    let held_back = flags.intersects(WRITE_FLAGS) || (command.full_name == "exec" && has_queued_write(client));
    let pause = &server.clients.pause;
    let is_moving = || pause.held_slots.is_any() && held_back && writes_held_slot(server, client, command, keys);
    match !thread.is_in_round && (pause.is_paused(thread.now_ms, held_back) || is_moving()) {
        true => Admission::Paused,
        false => Admission::Run,
    }
}

/// Returns `true` if a command that may write may write to a slot that is about to change its owner. A command without
/// keys may write to any slot, except for PUBLISH. EXEC writes what its queued commands write.
#[cold]
fn writes_held_slot(server: &Server, client: &Client, command: &'static Command<Binding>, keys: &[PlannedKey]) -> bool {
    let held = &server.clients.pause.held_slots;
    if client.flags.contains(ClientFlags::SLOT_IMPORT) {
        return false;
    }
    if let Some(transaction) = client.transaction.as_ref().filter(|_| command.full_name == "exec") {
        let commands = crate::commands::registry().commands();
        let writes_without_keys = transaction.commands.iter().any(|queued| {
            let command = commands.get(queued.command);
            let is_write = command.is_some_and(|command| command.spec.flags.contains(CommandFlags::WRITE));
            is_write && transaction.keys_of(queued).is_empty()
        });
        let has_undeclared_keys = writes_without_keys || (transaction.runs_script && transaction.keys.is_empty());
        return has_undeclared_keys || transaction.keys.iter().any(|key| held.contains(key.slot));
    }
    let runs_script = command
        .handler
        .is_some_and(|binding| binding.mode == HandlerMode::Script);
    match keys {
        [] => runs_script || command.spec.flags.contains(CommandFlags::WRITE),
        keys => keys.iter().any(|key| held.contains(key.slot)),
    }
}

/// The clients whose commands have run before, on a primary, on the source of a slot migration, or in a file.
pub(super) const REPLAYING_CLIENTS: ClientFlags = ClientFlags::REPLAYING;

/// Returns the error if the state of memory, disk or replication forbids what the command would do.
#[cold]
fn check_memory_and_disk(thread: &ThreadState, client: &Client, command: &Command<Binding>) -> Option<CommandError> {
    let tunables = &thread.tunables;
    // The source of a slot migration is refused like any other client. The migration fails then.
    if client.flags.intersects(REPLAYING_CLIENTS) && !client.flags.contains(ClientFlags::SLOT_IMPORT) {
        if client.flags.contains(ClientFlags::PRIMARY) && (tunables.refuses_writes || tunables.is_aof_failing) {
            handle_write_from_primary_without_disk(thread, client, command);
        }
        return None;
    }
    if thread.memory_limit.is_full && may_need_memory(client, command) {
        return Some(OUT_OF_MEMORY);
    }
    // PING is refused as well, so that monitoring programs notice.
    let refused = || may_write(client, command) || command.full_name == "ping";
    if tunables.refuses_writes && refused() {
        return Some(CommandError::from_text(rdb_save_error(&thread.server.config)));
    }
    (tunables.is_aof_failing && refused()).then(|| aof_write_error(&thread.server))
}

/// Handles a write from the primary while this replica cannot write its disk. The replica must not refuse it, or its
/// data would differ from its primary's. Unless `replica-ignore-disk-write-errors` lets it continue, the process ends.
#[cold]
fn handle_write_from_primary_without_disk(thread: &ThreadState, client: &Client, command: &Command<Binding>) {
    /// Minimum interval between two log lines, in seconds.
    const PERIOD_S: u64 = 10;
    static LAST_WARNING_S: AtomicU64 = AtomicU64::new(0);
    let is_ping = command.full_name == "ping";
    if !is_ping && !may_write(client, command) {
        return;
    }
    if !is_ping && !thread.server.config.boolean(id::REPLICA_IGNORE_DISK_WRITE_ERRORS) {
        log::warning!("Replica was unable to write command to disk.");
        std::process::abort();
    }
    let now_s = thread.now_ms / 1000;
    if now_s > LAST_WARNING_S.load(Ordering::Relaxed) + PERIOD_S {
        LAST_WARNING_S.store(now_s, Ordering::Relaxed);
        log::warning!("Replica is applying a command even though it is unable to write to disk.");
    }
}

/// Returns the error of a write command while the append-only file cannot be written.
pub fn aof_write_error(server: &Server) -> CommandError {
    let reason = server.persistence.aof.failure_reason().unwrap_or_default();
    CommandError::from_text(format!("MISCONF Errors writing to the AOF file: {reason}"))
}

/// Returns `true` if the command writes. EXEC writes if a queued command writes, or if a queued script may write.
fn may_write(client: &Client, command: &Command<Binding>) -> bool {
    let transaction = client.transaction.as_ref().filter(|_| command.full_name == "exec");
    has_flag(client, command, CommandFlags::WRITE)
        || transaction.is_some_and(|transaction| transaction.script_may_write)
}

/// Returns `true` if the command has `flag`. For EXEC, one queued command with the flag is enough.
fn has_flag(client: &Client, command: &Command<Binding>, flag: CommandFlags) -> bool {
    any_command_matches(client, command, |flags| flags.contains(flag))
}

/// Returns `true` if the command lacks `flag`. For EXEC, one queued command without the flag is enough.
fn lacks_flag(client: &Client, command: &Command<Binding>, flag: CommandFlags) -> bool {
    any_command_matches(client, command, |flags| !flags.contains(flag))
}

/// Returns `true` if `of_flags` holds for the flags of the command, or, for EXEC, for those of a queued command.
fn any_command_matches(client: &Client, command: &Command<Binding>, of_flags: impl Fn(CommandFlags) -> bool) -> bool {
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

/// Checks if the client's user may run the command, or queue it.
///
/// # Errors
/// The permission that is missing.
#[cold]
fn check_permission(
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
        databases: permission::database_count(server),
    };
    permission::check_permission(client.login.rules(), &permission)
}

/// The error of a write while `min-replicas-to-write` is not met.
const TOO_FEW_REPLICAS: CommandError = CommandError::constant("NOREPLICAS Not enough good replicas to write.");
/// The error of a write on a replica with `replica-read-only`.
const READ_ONLY_REPLICA: CommandError = CommandError::constant("READONLY You can't write against a read only replica.");
/// The error of a command on a replica without a link to its primary, with `replica-serve-stale-data no`.
const STALE_DATA: CommandError =
    CommandError::constant("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.");

/// Returns the error with which this server would refuse the command of a blocked client now, because of its role or
/// the state of its data. All blocking commands need data that is not stale.
pub fn refusal_of_waiter(server: &Server, writes: bool) -> Option<CommandError> {
    let (state, config) = (server.replication.state_bits(), &server.config);
    let is_replica = state.contains(ReplicationState::IS_REPLICA);
    if writes && must_refuse_writes(server) {
        return Some(CommandError::from_text(rdb_save_error(config)));
    }
    if writes && server.persistence.aof.refuses_writes() {
        return Some(aof_write_error(server));
    }
    if writes && is_replica && config.boolean(id::REPLICA_READ_ONLY) {
        return Some(READ_ONLY_REPLICA);
    }
    if writes && !is_replica && state.contains(ReplicationState::TOO_FEW_REPLICAS) {
        return Some(TOO_FEW_REPLICAS);
    }
    let is_stale = is_replica && state.contains(ReplicationState::LINK_DOWN);
    (is_stale && !config.boolean(id::REPLICA_SERVE_STALE_DATA)).then_some(STALE_DATA)
}

/// Returns the error of a command that this server's replication role or the state of its data set refuses.
#[inline(never)]
fn check_replication_state(
    thread: &ThreadState,
    client: &Client,
    command: &'static Command<Binding>,
) -> Option<CommandError> {
    debug_assert!(
        !thread.replication_state.is_empty(),
        "a primary that has its data refuses nothing"
    );
    let (replication_state, config) = (thread.replication_state, &thread.server.config);
    let writes = || may_write(client, command);
    let refused = CommandError::constant;
    let lacks_replicas = || {
        replication_state.contains(ReplicationState::TOO_FEW_REPLICAS)
            && !replication_state.contains(ReplicationState::IS_REPLICA)
            && writes()
    };
    if client.flags.intersects(REPLAYING_CLIENTS) {
        // The source of a slot migration is refused like any other client. The migration fails then.
        let is_refused = client.flags.contains(ClientFlags::SLOT_IMPORT) && lacks_replicas();
        return is_refused.then_some(TOO_FEW_REPLICAS);
    }
    let redirects = client.flags.contains(ClientFlags::CAPA_REDIRECT)
        && replication_state.contains(ReplicationState::IS_REPLICA)
        && thread.server.cluster.is_none();
    let reads_elsewhere =
        || !client.flags.contains(ClientFlags::READONLY) && has_flag(client, command, CommandFlags::READONLY);
    if redirects && (reads_elsewhere() || writes()) {
        return thread.server.replication.redirection().map(CommandError::from_text);
    }
    if replication_state.contains(ReplicationState::ROLE_CHANGE_PENDING) && writes() {
        return Some(refused(
            "CLUSTERDOWN The cluster is down and only accepts read commands",
        ));
    }
    // The check under leases sends the client to the node to which the slot migrates.
    let goes_on = matches!(thread.moving, Some(SlotMigration::Out { runs_here: false, .. }));
    if replication_state.contains(ReplicationState::IS_REPLICA)
        && !goes_on
        && writes()
        && config.boolean(id::REPLICA_READ_ONLY)
    {
        return Some(READ_ONLY_REPLICA);
    }
    if lacks_replicas() {
        return Some(TOO_FEW_REPLICAS);
    }
    let stale = ReplicationState::IS_REPLICA.union(ReplicationState::LINK_DOWN);
    if replication_state.contains(stale)
        && lacks_flag(client, command, CommandFlags::STALE)
        && !config.boolean(id::REPLICA_SERVE_STALE_DATA)
    {
        return Some(STALE_DATA);
    }
    let loads = (replication_state.contains(ReplicationState::LOADING)
        && lacks_flag(client, command, CommandFlags::LOADING))
        || (replication_state.contains(ReplicationState::LOADING_IN_STAGING)
            && has_flag(client, command, CommandFlags::NO_ASYNC_LOADING));
    if loads {
        return Some(loading_error(config));
    }
    let is_busy = replication_state.contains(ReplicationState::SCRIPT_BUSY)
        && !command.spec.flags.contains(CommandFlags::ALLOW_BUSY);
    if replication_state.contains(ReplicationState::MODULE_BUSY)
        && !command.spec.flags.contains(CommandFlags::ALLOW_BUSY)
    {
        return Some(module_busy_error(&thread.server));
    }
    if is_busy && config.choice(id::BUSY_REPLY_SCOPE) == "all" {
        return script_flags::busy_error(&thread.server);
    }
    None
}

/// The flags of clients that may run only a few commands.
const RESTRICTED_CLIENTS: ClientFlags = ClientFlags::PUBSUB.union(ClientFlags::MONITOR);

/// Returns the error of a command that a subscribed client (RESP2) or a MONITOR client may not run.
#[cold]
fn check_client_mode(client: &Client, command: &'static Command<Binding>) -> Option<CommandError> {
    let name = command.full_name;
    let subscribed = client.flags.contains(ClientFlags::PUBSUB);
    if subscribed && client.protocol == Protocol::Resp2 {
        let changes = matches!(name, "subscribe" | "psubscribe" | "ssubscribe");
        let ends = matches!(name, "unsubscribe" | "punsubscribe" | "sunsubscribe");
        if !changes && !ends && !matches!(name, "ping" | "quit" | "reset") {
            return Some(CommandError::from_text(format!(
                "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed \
                 in this context"
            )));
        }
    }
    let on_data = WRITE_FLAGS.union(CommandFlags::READONLY);
    (client.flags.contains(ClientFlags::MONITOR) && command.spec.flags.intersects(on_data))
        .then_some(CommandError::constant("ERR Replica can't interact with the keyspace"))
}

/// Returns `true` if a command that is admitted may run any script, whatever the script's flags are: see
/// [`admit_script`].
#[inline]
pub fn admits_every_script(thread: &ThreadState) -> bool {
    let may_lack_room = thread.memory_limit.is_full | thread.tunables.refuses_writes | thread.tunables.is_aof_failing;
    !may_lack_room && thread.replication_state.is_empty()
}

/// Adjusts the admission of a command that runs a script: the flags of the script itself count.
#[cold]
pub fn admit_script(
    thread: &ThreadState,
    client: &Client,
    admission: Admission,
    command: &'static Command<Binding>,
    args: Args<'_>,
) -> Admission {
    debug_assert!(
        command
            .handler
            .is_some_and(|binding| binding.mode == HandlerMode::Script),
        "'{}' runs a script",
        command.full_name
    );
    let server = &thread.server;
    match admission {
        Admission::Run if thread.memory_limit.is_full && script_flags::is_denied_by_oom(server, command, args) => {
            Admission::Refused(OUT_OF_MEMORY)
        }
        Admission::Run if thread.tunables.refuses_writes && script_flags::may_write(server, command, args) => {
            Admission::Refused(CommandError::from_text(rdb_save_error(&server.config)))
        }
        Admission::Run if thread.tunables.is_aof_failing && script_flags::may_write(server, command, args) => {
            Admission::Refused(aof_write_error(server))
        }
        Admission::Run if !thread.replication_state.is_empty() && !client.flags.intersects(REPLAYING_CLIENTS) => {
            match script_flags::check_flags_of_script(thread, command, args) {
                Ok(()) => Admission::Run,
                Err(error) => Admission::Refused(error),
            }
        }
        Admission::Paused
            if !server.clients.pause.is_paused(thread.now_ms, false)
                && script_flags::is_declared_read_only(server, command, args) =>
        {
            Admission::Run
        }
        other => other,
    }
}

/// Returns the error of a command while a module gives way to clients.
fn module_busy_error(server: &Server) -> CommandError {
    match server.modules.busy_reply() {
        Some(text) => CommandError::from_text(format!("BUSY {text}")),
        None => CommandError::from_text(format!(
            "BUSY {} is busy running a module command.",
            server.config.product_name()
        )),
    }
}

const OUT_OF_MEMORY: CommandError = CommandError::constant("OOM command not allowed when used memory > 'maxmemory'.");

/// Returns the error text of a write command after the last RDB save has failed.
pub fn rdb_save_error(config: &Config) -> String {
    let name = config.product_name();
    format!(
        "MISCONF {name} is configured to save RDB snapshots, but it's currently unable to persist to disk. Commands that \
         may modify the data set are disabled, because this instance is configured to report errors during writes if RDB \
         snapshotting fails (stop-writes-on-bgsave-error option). Please check the {name} logs for details about the RDB \
         error."
    )
}

/// The commands that wait while CLIENT PAUSE holds back writes.
pub const WRITE_FLAGS: CommandFlags = CommandFlags::WRITE.union(CommandFlags::MAY_REPLICATE);

fn has_queued_write(client: &Client) -> bool {
    client
        .transaction
        .as_ref()
        .is_some_and(|transaction| transaction.may_write)
}

/// Returns `true` if the command may increase memory usage. For EXEC, one such queued command is enough.
fn may_need_memory(client: &Client, command: &Command<Binding>) -> bool {
    let of_transaction = || {
        command.full_name == "exec"
            && client
                .transaction
                .as_ref()
                .is_some_and(|transaction| transaction.is_denied_out_of_memory)
    };
    command.spec.flags.contains(CommandFlags::DENYOOM) || of_transaction()
}

/// Returns `true` if the client may only authenticate or quit. Clients need not authenticate once no password is set.
#[inline]
pub fn must_authenticate(server: &Server, client: &Client) -> bool {
    !client.login.is_authenticated() && !server.acl.is_open()
}

/// The error of a request by a client that has not authenticated.
pub const AUTHENTICATION_REQUIRED: CommandError = CommandError::constant("NOAUTH Authentication required.");

/// Returns `true` if the request comes from a program that speaks HTTP, which an attacker may have directed to this
/// port.
pub fn is_http_request(args: Args<'_>) -> bool {
    let name = args.argument(0);
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

/// Returns the error of a request that names no command, or that has a wrong number of arguments.
pub fn unknown_command_error(commands: &Registry<Binding>, args: Args<'_>) -> CommandError {
    match commands.lookup(&args) {
        // A command that fits by now has come with a module since.
        Lookup::Found(command) if !command.spec.accepts_arg_count(args.len()) => {
            let mut text = b"ERR wrong number of arguments for '".to_vec();
            text.extend_from_slice(command.full_name.as_bytes());
            text.extend_from_slice(b"' command");
            CommandError::from_bytes(text)
        }
        Lookup::UnknownSubcommand { parent } => {
            let mut text = b"ERR unknown subcommand '".to_vec();
            text.extend_from_slice(printable_name(args.argument(1)));
            text.extend_from_slice(b"'. Try ");
            text.extend_from_slice(parent.full_name.to_uppercase().as_bytes());
            text.extend_from_slice(b" HELP.");
            CommandError::from_bytes(text)
        }
        Lookup::Found(_) | Lookup::UnknownCommand => {
            let mut text = b"ERR unknown command '".to_vec();
            text.extend_from_slice(printable_name(args.argument(0)));
            text.extend_from_slice(b"', with args beginning with: ");
            let mut words: Vec<u8> = Vec::new();
            for index in 1..args.len() {
                if words.len() >= 128 {
                    break;
                }
                let max_bytes = 128 - words.len();
                words.push(b'\'');
                words.extend(c_string_prefix(args.argument(index)).iter().take(max_bytes));
                words.extend_from_slice(b"' ");
            }
            text.extend_from_slice(&words);
            CommandError::from_bytes(text)
        }
    }
}

fn check_protected_config(server: &Server, client: &Client, command: &Command<Binding>) -> Option<CommandError> {
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
        CommandError::from_text(format!(
            "ERR {} command not allowed. If the {option} option is set to \"local\", you can run it from a local \
             connection, otherwise you need to set this option in the configuration file, and then restart the server.",
            name.to_uppercase()
        ))
    })
}
