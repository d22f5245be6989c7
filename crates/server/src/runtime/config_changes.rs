//! Applies changed parameters to the running server.
//!
//! Most parameters are read where they matter and need no action. These affect something outside the configuration: the
//! log, sockets, limits, the kernel.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::keyspace::effects::Hooks;
use crate::notify::messages::refresh_event_hook;
use crate::observability::log;
use crate::observability::log_line::Role;
use crate::persistence::aof;
use crate::replication::ReplicationState;
use crate::runtime::process::{collation, oom_score, open_files, title};
use crate::state::{CoordinatorCommand, Message, Server};
use weft_config::{ApplyResult, Config, ParameterId, id};
use weft_tls::{TlsState, UnusableTlsConfig};

/// The time limit for a command to the coordinator, which is never busy for long.
const ORDER_TIMEOUT: Duration = Duration::from_secs(10);

/// Applies the new values of `changed`, which the configuration contains already. `may_wait` is `true` if the caller is
/// outside the gate. The function can be called again with the old values, to undo a change.
///
/// # Errors
/// The parameter at fault, and the reason for the client.
pub fn apply(server: &Arc<Server>, changed: &[ParameterId], is_outside_gate: bool) -> ApplyResult {
    let is_changed = |ids: &[ParameterId]| changed.iter().copied().find(|id| ids.contains(id));
    if is_changed(&[id::LOGLEVEL, id::LOG_FORMAT, id::LOG_TIMESTAMP_FORMAT]).is_some() {
        configure_log(&server.config);
    }
    if is_changed(&[id::CRASH_LOG_ENABLED]).is_some() {
        weft_reactor::set_crash_reports(server.config.boolean(id::CRASH_LOG_ENABLED));
    }
    if is_changed(&[id::REQUIREPASS]).is_some() {
        let password = server.config.text(id::REQUIREPASS);
        server.acl.set_default_password(&password, &server.config);
    }
    if is_changed(&[id::LUA_ENABLE_INSECURE_API]).is_some() {
        let on = server.config.boolean(id::LUA_ENABLE_INSECURE_API);
        server.scripting.set_insecure_eval_functions(on);
    }
    if is_changed(&[id::NOTIFY_KEYSPACE_EVENTS]).is_some() {
        refresh_event_hook(server);
    }
    if is_changed(&[id::LOCALE_COLLATE]).is_some() {
        collation::choose(&server.config)
            .map_err(|collation::Unknown| (id::LOCALE_COLLATE, "Invalid locale name".to_owned()))?;
    }
    if is_changed(&[id::MAXCLIENTS]).is_some() {
        raise_open_file_limit(server)?;
    }
    if let Some(at_fault) = is_changed(&[id::OOM_SCORE_ADJ, id::OOM_SCORE_ADJ_VALUES]) {
        let is_replica = server.config.primary().is_some();
        oom_score::adjust(&server.config, is_replica).map_err(|_| {
            let reason = "Failed to set current oom_score_adj. Check server logs.";
            (at_fault, reason.to_owned())
        })?;
    }
    if is_changed(&[id::MIN_REPLICAS_TO_WRITE, id::MIN_REPLICAS_MAX_LAG]).is_some() {
        server.replication.update_too_few_replicas(&server.config);
    }
    if is_changed(&[id::REPLICA_READ_ONLY]).is_some() {
        refresh_local_expiry(server);
    }
    if is_changed(&[id::REPL_BACKLOG_SIZE]).is_some() {
        let bytes = server.config.integer(id::REPL_BACKLOG_SIZE);
        server.replication.replicas.backlog().resize(bytes);
    }
    let of_log = [
        id::APPENDFSYNC,
        id::AOF_TIMESTAMP_ENABLED,
        id::NO_APPENDFSYNC_ON_REWRITE,
    ];
    if is_changed(&of_log).is_some() {
        aof::refresh(server);
    }
    if is_changed(&[id::APPENDONLY]).is_some() {
        aof::apply_appendonly(server, is_outside_gate).map_err(|aof::AofFailed| {
            let reason = "Unable to turn on AOF. Check server logs.";
            (id::APPENDONLY, reason.to_owned())
        })?;
    }
    if is_changed(&[id::MAXMEMORY]).is_some() {
        warn_about_small_limit(server);
    }
    if is_changed(&[id::MAXMEMORY, id::MAXMEMORY_POLICY]).is_some() {
        server.evict_if_full();
    }
    if is_changed(&[id::MAXMEMORY, id::MAXMEMORY_CLIENTS]).is_some()
        && server.config.integer(id::MAXMEMORY_CLIENTS) != 0
    {
        for worker in &server.workers {
            worker.send(Message::CountClients);
        }
    }
    configure_tls(server, changed)?;
    if let Some(at_fault) = is_changed(&[id::PORT, id::TLS_PORT, id::BIND]) {
        listen(server, at_fault)?;
    }
    if is_changed(&[id::PROC_TITLE_TEMPLATE, id::PORT, id::TLS_PORT, id::BIND]).is_some() {
        title::show(&server.config);
    }
    if is_changed(&[id::IMPORT_MODE]).is_some() {
        server
            .replication
            .set_state_bits(ReplicationState::IMPORT_MODE, server.config.boolean(id::IMPORT_MODE));
    }
    Ok(())
}

/// The parameters of the TLS configuration.
const TLS_PARAMETERS: [ParameterId; 17] = [
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
];

/// Reconfigures TLS if a parameter of it has changed, or if TLS is used for the first time.
fn configure_tls(server: &Server, changed: &[ParameterId]) -> ApplyResult {
    let config = &server.config;
    let is_of_tls = |id: &ParameterId| TLS_PARAMETERS.contains(id) || *id == id::TLS_CLUSTER;
    let anew = changed
        .iter()
        .copied()
        .find(is_of_tls)
        .filter(|_| TlsState::are_needed(config));
    let first = changed
        .iter()
        .copied()
        .find(|id| *id == id::TLS_PORT && server.tls.current().is_none());
    let Some(at_fault) = anew.or(first) else {
        return Ok(());
    };
    server.tls.configure(config).map_err(|UnusableTlsConfig| {
        let reason = "Unable to update TLS configuration. Check server logs.";
        (at_fault, reason.to_owned())
    })
}

/// Applies a change of the replication role.
pub fn on_role_change(server: &Server) {
    let follows = server.replication.is_replica();
    log::set_role(match follows {
        true => Role::Replica,
        false => Role::Primary,
    });
    server.keyspace.local_expiry.clear();
    refresh_local_expiry(server);
    // The failure has been logged; the role changes nevertheless.
    let _ = oom_score::adjust(&server.config, follows);
}

/// Updates the hook with which a writable replica tracks the keys that its clients gave an expiry.
pub fn refresh_local_expiry(server: &Server) {
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

fn raise_open_file_limit(server: &Server) -> ApplyResult {
    let clients = server.config.unsigned(id::MAXCLIENTS);
    let allowed = open_files::raise_limit(clients, server.workers.len());
    if allowed >= clients {
        return Ok(());
    }
    let reason =
        format!("The operating system is not able to handle the specified number of clients, try with {allowed}");
    Err((id::MAXCLIENTS, reason))
}

fn listen(server: &Server, at_fault: ParameterId) -> ApplyResult {
    let (answer, answered) = mpsc::sync_channel(1);
    let ordered = server
        .background
        .send_to_coordinator(CoordinatorCommand::Listen(answer));
    if ordered && answered.recv_timeout(ORDER_TIMEOUT).unwrap_or(false) {
        return Ok(());
    }
    let reason = if at_fault == id::BIND {
        "Failed to bind to specified addresses."
    } else {
        "Unable to listen on this port. Check server logs."
    };
    Err((at_fault, reason.to_owned()))
}

#[cfg(test)]
mod tests;
