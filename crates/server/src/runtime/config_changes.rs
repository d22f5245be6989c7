//! Applies changed parameters to the running server.
//!
//! Most parameters are read where they matter and need no action. These affect something outside the configuration: the
//! log, sockets, limits, the kernel.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::keyspace::effects::Hooks;
use crate::notify::messages::update_event_hook;
use crate::observability::log;
use crate::observability::log_line::Role;
use crate::persistence::aof;
use crate::persistence::aof::{OverdueScript, SwitchError};
use crate::replication::ReplicationState;
use crate::runtime::process::{collation, oom_score, open_files, title};
use crate::state::{CoordinatorCommand, Server, WorkerLink};
use weft_config::{ApplyResult, ChangeAction, Config, ParameterFailure, ParameterId, SetError, SetPermissions, id};
use weft_modules::module::server_events::{self, EventKind, ServerEvent};
use weft_os::atomic::Ordering;
use weft_os::sync::mpsc;
use weft_tls::{TlsState, UnusableTlsConfig};

/// The time limit for a command to the coordinator, which is never busy for long.
const ORDER_TIMEOUT: Duration = Duration::from_secs(10);

/// The reason why parameters were not set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigSetError {
    /// A name or a value was refused, or a value could not be applied.
    Refused(SetError),
    /// A value takes effect only while no script runs, and this script is overdue: it may never end.
    ScriptBusy(OverdueScript),
}

/// A change of one or more parameters that the configuration contains already.
struct ParameterChange<'c> {
    server: &'c Arc<Server>,
    /// The first changed parameter that the hook is for. A failure is reported as its failure.
    parameter: ParameterId,
    /// `true` if the caller may wait for threads, because it is outside the gate.
    is_outside_gate: bool,
    /// `true` if the values are the old ones, because the change to the new ones has failed.
    undoes: bool,
    /// The script that is overdue, if the change fails because of that.
    overdue_script: &'c Cell<Option<OverdueScript>>,
}

impl ParameterChange<'_> {
    fn failure(&self, reason: impl Into<String>) -> ParameterFailure {
        ParameterFailure::new(self.parameter, reason)
    }
}

/// Sets pairs of name and value, and applies them. `is_outside_gate` is `true` if the caller is outside the gate, and
/// may therefore wait. Returns the parameters whose values have changed.
///
/// # Errors
/// [`SetError`], with Valkey's text, or an overdue script. Nothing is changed then.
pub fn set(
    server: &Arc<Server>,
    pairs: &[(&[u8], &[u8])],
    permissions: SetPermissions,
    is_outside_gate: bool,
) -> Result<Vec<ParameterId>, ConfigSetError> {
    let overdue_script = Cell::new(None);
    let mut has_failed = false;
    let set = server.config.set(pairs, permissions, &mut |changed| {
        let applied = apply(server, changed, is_outside_gate, has_failed, &overdue_script);
        has_failed |= applied.is_err();
        applied
    });
    if set.is_ok() {
        send_config_event(pairs);
    }
    set.map_err(|error| match overdue_script.get() {
        Some(script) => ConfigSetError::ScriptBusy(script),
        None => ConfigSetError::Refused(error),
    })
}

/// Lets modules know which parameters were set, also those that keep their values.
fn send_config_event(pairs: &[(&[u8], &[u8])]) {
    server_events::send(EventKind::Config, || {
        let name = |(name, _): &(&[u8], &[u8])| String::from_utf8_lossy(&name.to_ascii_lowercase()).into_owned();
        ServerEvent::ConfigChanged(pairs.iter().map(name).collect())
    });
}

/// Applies the new values of `changed`, which the configuration contains already. With `undoes`, they are the old ones,
/// and the change to the new ones has failed. Sets `overdue_script` if it fails because of that script.
fn apply(
    server: &Arc<Server>,
    changed: &[ParameterId],
    is_outside_gate: bool,
    undoes: bool,
    overdue_script: &Cell<Option<OverdueScript>>,
) -> ApplyResult {
    // In the order of the actions, each with the first parameter that it is for.
    let mut actions: BTreeMap<ChangeAction, ParameterId> = BTreeMap::new();
    for parameter in changed {
        for action in parameter.parameter().on_change {
            actions.entry(*action).or_insert(*parameter);
        }
    }
    if undoes {
        // It was not performed. The old parameter may not be the password that the user has.
        actions.remove(&ChangeAction::SetDefaultPassword);
    }
    actions.into_iter().try_for_each(|(action, parameter)| {
        let change = ParameterChange {
            server,
            parameter,
            is_outside_gate,
            undoes,
            overdue_script,
        };
        change.perform(action).inspect_err(|failure| {
            if overdue_script.get().is_none() {
                log::warning!(
                    "Failed applying new configuration. Possibly related to new {} setting. Restoring previous \
                     settings.",
                    failure.parameter.parameter().name
                );
            }
        })
    })
}

impl ParameterChange<'_> {
    /// Performs an action that the parameter table requires.
    fn perform(&self, action: ChangeAction) -> ApplyResult {
        let server = self.server;
        let config = &server.config;
        match action {
            ChangeAction::ConfigureLog => configure_log(config),
            ChangeAction::SetCrashReports => {
                weft_reactor::set_crash_reports(config.boolean(id::CRASH_LOG_ENABLED));
            }
            ChangeAction::SetDefaultPassword => {
                server.acl.set_default_password(&config.text(id::REQUIREPASS), config);
            }
            ChangeAction::SetScriptFunctions => {
                let is_enabled = config.boolean(id::LUA_ENABLE_INSECURE_API);
                server.scripting.set_insecure_eval_functions(is_enabled);
            }
            ChangeAction::SetKeyspaceEvents => update_event_hook(server),
            ChangeAction::SetCollation => return set_collation(self),
            ChangeAction::RaiseOpenFileLimit => return raise_open_file_limit(self),
            ChangeAction::AdjustOomScore => return adjust_oom_score(self),
            ChangeAction::CountReplicas => server.replication.update_too_few_replicas(config),
            ChangeAction::SetLocalExpiry => update_local_expiry_hook(server),
            ChangeAction::ResizeBacklog => {
                let bytes = config.integer(id::REPL_BACKLOG_SIZE);
                server.replication.replicas.backlog().resize(bytes);
            }
            ChangeAction::ConfigureAof => aof::refresh(server),
            ChangeAction::SwitchAof => return switch_append_only_file(self),
            ChangeAction::CheckMemoryLimit => warn_about_small_limit(server),
            ChangeAction::Evict => server.request_eviction(),
            ChangeAction::RecountClients => recount_clients(server),
            ChangeAction::ReloadTls if TlsState::is_tls_configured(config) => return configure_tls(self),
            ChangeAction::EnableTls if server.tls.current().is_none() => return configure_tls(self),
            ChangeAction::ReloadTls | ChangeAction::EnableTls => {}
            ChangeAction::Listen => return reopen_listeners(self),
            ChangeAction::ListenForMetrics => return reopen_metrics_listeners(self),
            ChangeAction::SetProcessTitle => title::set_process_title(config),
            // A worker that sleeps would not notice that its connections are to move.
            ChangeAction::WakeWorkers => server.workers.iter().for_each(WorkerLink::wake),
            ChangeAction::LimitWorkers => report_worker_limit(server),
            ChangeAction::SetImportMode => {
                let is_importing = config.boolean(id::IMPORT_MODE);
                server
                    .replication
                    .set_state_bits(ReplicationState::IMPORT_MODE, is_importing);
            }
        }
        Ok(())
    }
}

fn set_collation(change: &ParameterChange<'_>) -> ApplyResult {
    collation::set_from_config(&change.server.config)
        .map_err(|collation::UnknownLocale| change.failure("Invalid locale name"))
}

fn adjust_oom_score(change: &ParameterChange<'_>) -> ApplyResult {
    let config = &change.server.config;
    oom_score::adjust(config, config.primary().is_some())
        .map_err(|_| change.failure("Failed to set current oom_score_adj. Check server logs."))
}

fn switch_append_only_file(change: &ParameterChange<'_>) -> ApplyResult {
    // The old state must come back, even if that takes until the end of a script. The caller does not wait for it.
    let can_wait = change.is_outside_gate && !change.undoes;
    let wanted = change.server.config.boolean(id::APPENDONLY);
    aof::apply_appendonly(change.server, can_wait).map_err(|error| {
        if let SwitchError::ScriptBusy(script) = error {
            change.overdue_script.set(Some(script));
        }
        change.failure(match wanted {
            true => "Unable to turn on AOF. Check server logs.",
            false => "Unable to turn off AOF. Check server logs.",
        })
    })
}

/// Makes the workers recount the memory of their clients, if that memory is limited.
fn recount_clients(server: &Server) {
    if server.config.integer(id::MAXMEMORY_CLIENTS) != 0 {
        for worker in &server.workers {
            worker.request_client_recount();
        }
    }
}

/// Reads the certificates and the other TLS parameters anew.
fn configure_tls(change: &ParameterChange<'_>) -> ApplyResult {
    let server = change.server;
    server
        .tls
        .configure(&server.config)
        .map_err(|UnusableTlsConfig| change.failure("Unable to update TLS configuration. Check server logs."))
}

/// Applies a change of the replication role.
pub fn apply_role_change(server: &Server) {
    let follows = server.replication.is_replica();
    log::set_role(match follows {
        true => Role::Replica,
        false => Role::Primary,
    });
    if follows {
        // Those of an earlier role, if no expiry cycle has run since.
        server.keyspace.local_expiry.clear();
    }
    update_local_expiry_hook(server);
    // The failure has been logged; the role changes nevertheless.
    let _ = oom_score::adjust(&server.config, follows);
}

/// Updates the hook with which a writable replica tracks the keys that its clients gave an expiry.
pub fn update_local_expiry_hook(server: &Server) {
    let remembers = server.replication.is_replica() && !server.config.boolean(id::REPLICA_READ_ONLY);
    server.keyspace.hooks.set(Hooks::LOCAL_EXPIRY, remembers);
}

/// Applies the configured level and format to the server log.
pub fn configure_log(config: &Config) {
    log::set_threshold(config.integer(id::LOGLEVEL));
    log::set_format(
        config.integer(id::LOG_FORMAT).into(),
        config.integer(id::LOG_TIMESTAMP_FORMAT).into(),
    );
}

fn warn_about_small_limit(server: &Server) {
    // The known value is slightly old. It is better than a count of memory that is being freed, and counts as free.
    server.memory.calibrate_unless_freeing();
    let (limit, used) = (server.config.unsigned(id::MAXMEMORY), server.counted_memory());
    if limit > 0 && used > limit {
        log::warning!(
            "WARNING: the new maxmemory value set via CONFIG SET ({limit}) is smaller than the current memory usage \
             ({used}). This will result in key eviction and/or the inability to accept new write commands depending on \
             the maxmemory-policy."
        );
    }
}

/// Logs that another number of workers may be active, in Valkey's words, and that more are wanted than were started.
/// The per-thread tables are made for those at the start.
fn report_worker_limit(server: &Server) {
    let usable = server.usable_workers();
    let before = server.lifecycle.logged_worker_limit.swap(usable, Ordering::Relaxed);
    if before != usable {
        log::notice!("Changing number of IO threads from {before} to {usable}.");
    }
    let (wanted, started) = (server.config.integer(id::IO_THREADS), server.workers.len());
    if wanted > started as i64 {
        log::notice!("io-threads {wanted} takes effect at the next start; until then there are {started} I/O threads");
    }
}

fn raise_open_file_limit(change: &ParameterChange<'_>) -> ApplyResult {
    let server = change.server;
    let clients = server.config.unsigned(id::MAXCLIENTS);
    let allowed = open_files::raise_limit(clients, server.workers.len());
    if allowed >= clients {
        return Ok(());
    }
    Err(change.failure(format!(
        "The operating system is not able to handle the specified number of clients, try with {allowed}"
    )))
}

fn reopen_listeners(change: &ParameterChange<'_>) -> ApplyResult {
    command_coordinator(change, CoordinatorCommand::Listen)
}

fn reopen_metrics_listeners(change: &ParameterChange<'_>) -> ApplyResult {
    command_coordinator(change, CoordinatorCommand::ListenForMetrics)
}

/// Sends the coordinator a command to listen, and waits for the answer.
fn command_coordinator(
    change: &ParameterChange<'_>,
    command: fn(mpsc::SyncSender<bool>) -> CoordinatorCommand,
) -> ApplyResult {
    let (answer, answered) = mpsc::sync_channel(1);
    let ordered = change.server.background.send_to_coordinator(command(answer));
    if ordered && answered.recv_timeout(ORDER_TIMEOUT).unwrap_or(false) {
        return Ok(());
    }
    Err(
        change.failure(match [id::BIND, id::METRICS_BIND].contains(&change.parameter) {
            true => "Failed to bind to specified addresses.",
            false => "Unable to listen on this port. Check server logs.",
        }),
    )
}

#[cfg(test)]
mod tests;
