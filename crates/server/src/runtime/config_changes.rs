//! Applies changed parameters to the running server.
//!
//! Most parameters are read where they matter and need no action. These affect something outside the configuration: the
//! log, sockets, limits, the kernel.

use std::sync::Arc;
use std::time::Duration;

use crate::keyspace::effects::Hooks;
use crate::notify::messages::update_event_hook;
use crate::observability::log;
use crate::observability::log_line::Role;
use crate::persistence::aof;
use crate::replication::ReplicationState;
use crate::runtime::process::{collation, oom_score, open_files, title};
use crate::state::{CoordinatorCommand, Message, Server};
use weft_config::{ApplyResult, Config, ParameterFailure, ParameterId, id};
use weft_os::sync::mpsc;
use weft_tls::{TlsState, UnusableTlsConfig};

/// The time limit for a command to the coordinator, which is never busy for long.
const ORDER_TIMEOUT: Duration = Duration::from_secs(10);

/// A change of one or more parameters that the configuration contains already.
struct ParameterChange<'c> {
    server: &'c Arc<Server>,
    /// The first changed parameter that the hook is for. A failure is reported as its failure.
    parameter: ParameterId,
    /// `true` if the caller may wait for threads, because it is outside the gate.
    is_outside_gate: bool,
}

impl ParameterChange<'_> {
    fn failure(&self, reason: impl Into<String>) -> ParameterFailure {
        ParameterFailure::new(self.parameter, reason)
    }
}

/// Makes the server act on a change.
type OnChange = fn(&ParameterChange<'_>) -> ApplyResult;

/// The parameters on whose change the server has to act, and what it does, in this order. A row runs once if at least
/// one of its parameters has changed. All other parameters are read where they matter.
const ON_CHANGE: &[(&[ParameterId], OnChange)] = &[
    (&[id::LOGLEVEL, id::LOG_FORMAT, id::LOG_TIMESTAMP_FORMAT], |change| {
        configure_log(&change.server.config);
        Ok(())
    }),
    (&[id::CRASH_LOG_ENABLED], |change| {
        weft_reactor::set_crash_reports(change.server.config.boolean(id::CRASH_LOG_ENABLED));
        Ok(())
    }),
    (&[id::REQUIREPASS], |change| {
        let config = &change.server.config;
        change
            .server
            .acl
            .set_default_password(&config.text(id::REQUIREPASS), config);
        Ok(())
    }),
    (&[id::LUA_ENABLE_INSECURE_API], |change| {
        let is_enabled = change.server.config.boolean(id::LUA_ENABLE_INSECURE_API);
        change.server.scripting.set_insecure_eval_functions(is_enabled);
        Ok(())
    }),
    (&[id::NOTIFY_KEYSPACE_EVENTS], |change| {
        update_event_hook(change.server);
        Ok(())
    }),
    (&[id::LOCALE_COLLATE], set_collation),
    (&[id::MAXCLIENTS], raise_open_file_limit),
    (&[id::OOM_SCORE_ADJ, id::OOM_SCORE_ADJ_VALUES], adjust_oom_score),
    (&[id::MIN_REPLICAS_TO_WRITE, id::MIN_REPLICAS_MAX_LAG], |change| {
        change.server.replication.update_too_few_replicas(&change.server.config);
        Ok(())
    }),
    (&[id::REPLICA_READ_ONLY], |change| {
        update_local_expiry_hook(change.server);
        Ok(())
    }),
    (&[id::REPL_BACKLOG_SIZE], |change| {
        let bytes = change.server.config.integer(id::REPL_BACKLOG_SIZE);
        change.server.replication.replicas.backlog().resize(bytes);
        Ok(())
    }),
    (
        &[
            id::APPENDFSYNC,
            id::AOF_TIMESTAMP_ENABLED,
            id::NO_APPENDFSYNC_ON_REWRITE,
        ],
        |change| {
            aof::refresh(change.server);
            Ok(())
        },
    ),
    (&[id::APPENDONLY], switch_append_only_file),
    (&[id::MAXMEMORY], |change| {
        warn_about_small_limit(change.server);
        Ok(())
    }),
    (&[id::MAXMEMORY, id::MAXMEMORY_POLICY], |change| {
        change.server.request_eviction();
        Ok(())
    }),
    (&[id::MAXMEMORY, id::MAXMEMORY_CLIENTS], |change| {
        recount_clients(change.server);
        Ok(())
    }),
    (&TLS_PARAMETERS, |change| {
        match TlsState::is_tls_configured(&change.server.config) {
            true => configure_tls(change),
            false => Ok(()),
        }
    }),
    (&[id::TLS_PORT], |change| match change.server.tls.current() {
        None => configure_tls(change),
        Some(_) => Ok(()),
    }),
    (&[id::PORT, id::TLS_PORT, id::BIND], reopen_listeners),
    (&[id::PROC_TITLE_TEMPLATE, id::PORT, id::TLS_PORT, id::BIND], |change| {
        title::set_process_title(&change.server.config);
        Ok(())
    }),
    (&[id::IMPORT_MODE], |change| {
        let is_importing = change.server.config.boolean(id::IMPORT_MODE);
        let replication = &change.server.replication;
        replication.set_state_bits(ReplicationState::IMPORT_MODE, is_importing);
        Ok(())
    }),
];

/// Applies the new values of `changed`, which the configuration contains already. `is_outside_gate` is `true` if the
/// caller is outside the gate, and may therefore wait. The function can be called again with the old values, to undo a
/// change.
///
/// # Errors
/// The parameter at fault, and the reason for the client.
pub fn apply(server: &Arc<Server>, changed: &[ParameterId], is_outside_gate: bool) -> ApplyResult {
    for (parameters, on_change) in ON_CHANGE {
        if let Some(parameter) = changed.iter().copied().find(|id| parameters.contains(id)) {
            on_change(&ParameterChange {
                server,
                parameter,
                is_outside_gate,
            })?;
        }
    }
    Ok(())
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
    aof::apply_appendonly(change.server, change.is_outside_gate)
        .map_err(|aof::AofFailed| change.failure("Unable to turn on AOF. Check server logs."))
}

/// Makes the workers recount the memory of their clients, if that memory is limited.
fn recount_clients(server: &Server) {
    if server.config.integer(id::MAXMEMORY_CLIENTS) != 0 {
        for worker in &server.workers {
            worker.send(Message::RecountClients);
        }
    }
}

/// The parameters of the TLS configuration.
const TLS_PARAMETERS: [ParameterId; 18] = [
    id::TLS_CERT_FILE,
    id::TLS_KEY_FILE,
    id::TLS_KEY_FILE_PASS,
    id::TLS_CLIENT_CERT_FILE,
    id::TLS_CLIENT_KEY_FILE,
    id::TLS_CLIENT_KEY_FILE_PASS,
    id::TLS_DH_PARAMS_FILE,
    id::TLS_CA_CERT_FILE,
    id::TLS_CA_CERT_DIR,
    id::TLS_PROTOCOLS,
    id::TLS_CIPHERS,
    id::TLS_CIPHERSUITES,
    id::TLS_PREFER_SERVER_CIPHERS,
    id::TLS_SESSION_CACHING,
    id::TLS_SESSION_CACHE_SIZE,
    id::TLS_SESSION_CACHE_TIMEOUT,
    id::TLS_REPLICATION,
    id::TLS_CLUSTER,
];

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
    server.keyspace.local_expiry.clear();
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
    // The known value is slightly old.
    let _ = server.memory.calibrate();
    let (limit, used) = (server.config.unsigned(id::MAXMEMORY), server.counted_memory());
    if limit > 0 && used > limit {
        log::warning!(
            "WARNING: the new maxmemory value set via CONFIG SET ({limit}) is smaller than the current memory usage \
             ({used}). This will result in key eviction and/or the inability to accept new write commands depending on \
             the maxmemory-policy."
        );
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
    let (answer, answered) = mpsc::sync_channel(1);
    let ordered = change
        .server
        .background
        .send_to_coordinator(CoordinatorCommand::Listen(answer));
    if ordered && answered.recv_timeout(ORDER_TIMEOUT).unwrap_or(false) {
        return Ok(());
    }
    Err(change.failure(match change.parameter == id::BIND {
        true => "Failed to bind to specified addresses.",
        false => "Unable to listen on this port. Check server logs.",
    }))
}

#[cfg(test)]
mod tests;
