//! Changes of this server's replication role: following a primary, becoming a primary, and the coordinated failover to
//! a replica.
//!
//! ```text
//!   FAILOVER ─▶ writes pause ─▶ WaitForSync ─▶ a replica has everything ─▶ InProgress: this server follows it
//!                                  │ timeout, ABORT                           │ PSYNC … FAILOVER
//!                                  ▼                                          ▼
//!                            writes resume ◀─── refused: a primary again ◀─ its answer ─▶ it is the primary now
//! ```
//!
//! The functions here that change the role are called in exclusive mode.

use std::sync::Arc;

use weft_base::RoleEpoch;
use weft_base::clock::unix_ms;

use crate::observability::log;
use crate::replication::backlog_writer;
use crate::replication::{CoordinatedFailover, CoordinatedFailoverState, Endpoint, LinkState};
use crate::runtime::config_changes::apply_role_change;
use crate::state::{Message, PauseReason, PrimaryThreadCommand, Server};
use weft_config::PrimaryAddress;
use weft_modules::module::server_events::{EventKind, ServerEvent};
use weft_os::atomic::Ordering;

/// Starts to follow a primary, or another primary. Blocked clients are no longer served, not even those that have begun
/// to wait on a replica: its data is replaced. `is_new_history` is `true` if the primary cannot know the history of the
/// data on this server.
pub fn become_replica(server: &Arc<Server>, primary: Endpoint, is_new_history: bool) {
    follow(server, primary, is_new_history);
    end_waits_of_blocked_clients(server);
}

/// Starts to follow a primary. Blocked clients continue to wait.
fn follow(server: &Arc<Server>, primary: Endpoint, is_new_history: bool) {
    server.config.set_primary(Some(PrimaryAddress {
        host: primary.host.clone(),
        port: primary.port,
    }));
    log_end_of_link(server, !is_new_history);
    server.replication.state().announce_link_down();
    server.replication.start_following(primary, is_new_history);
    backlog_writer::on_demotion(server);
    apply_role_change(server);
    send_role_event(server);
}

/// Lets modules know of the role of this server.
fn send_role_event(server: &Server) {
    server.send_module_event(EventKind::ReplicationRoleChanged, || {
        ServerEvent::RoleChanged(Box::new(server.replication_info()))
    });
}

/// Logs that the link to the present primary ends, if it is up. With `is_cached`, a partial synchronization may
/// continue from the present data. Returns `true` if the thread of the link logs this instead, when it ends the link.
fn log_end_of_link(server: &Server, is_cached: bool) -> bool {
    if server.replication.leave_link_open(is_cached) {
        return true;
    }
    if server.replication.state().phase == LinkState::Connected {
        log_lost_link(is_cached);
    }
    false
}

/// Logs that a link to a primary has ended. With `is_cached`, a partial synchronization may continue from the data.
pub fn log_lost_link(is_cached: bool) {
    log::notice!("Connection with primary lost.");
    if is_cached {
        log::notice!("Caching the disconnected primary state.");
    }
}

/// Ends the waits of blocked clients, or redirects the clients, because this server follows a primary from now on.
fn end_waits_of_blocked_clients(server: &Server) {
    server.replication.record_demotion();
    for worker in &server.workers {
        worker.send(Message::Demoted);
    }
}

/// Becomes a primary. Returns `true` if this server followed one.
pub fn become_primary(server: &Arc<Server>) -> bool {
    let is_left_open = log_end_of_link(server, true);
    let is_cached = !is_left_open && server.replication.state().resumable;
    server.replication.state().announce_link_down();
    let Some(history) = server.replication.stop_following() else {
        return false;
    };
    server.config.set_primary(None);
    server.end_wait_for_data();
    // The replicas reconnect and learn the new replication ID. They are disconnected before the log fills the backlog,
    // since its bytes belong to the new history.
    disconnect_replicas(server);
    backlog_writer::on_promotion(server);
    apply_role_change(server);
    send_role_event(server);
    if is_cached {
        log::notice!("Discarding previously cached primary state.");
    }
    log::notice!(
        "Setting secondary replication ID to {}, valid up to offset: {}. New replication ID is {}",
        history.second_id,
        history.second_offset(),
        history.id
    );
    true
}

/// Disconnects all replicas, because the history of the data has changed. They count no more from now on: a failover
/// that waited for one of them would never end.
pub fn disconnect_replicas(server: &Server) {
    server.replication.replicas.begin_disconnection();
    server
        .background
        .send_to_primary_thread(PrimaryThreadCommand::DisconnectAll);
}

/// Begins a coordinated failover. Writes are paused from now on.
pub fn begin_failover(server: &Server, wanted: CoordinatedFailover) {
    match &wanted.target {
        Some(target) => log::notice!("FAILOVER requested to {}:{}.", target.host, target.port),
        None => log::notice!("FAILOVER requested to any replica."),
    }
    assert_eq!(
        wanted.state,
        CoordinatedFailoverState::WaitForSync,
        "a failover begins with the wait for a replica"
    );
    let replaced = std::mem::replace(&mut *server.replication.failover(), wanted);
    assert_eq!(
        replaced.state,
        CoordinatedFailoverState::None,
        "one failover is under way at a time"
    );
    server.replication.is_failing_over.store(true, Ordering::Release);
    server.pause_clients(PauseReason::Failover, unix_ms(), u64::MAX, false);
    server
        .background
        .send_to_primary_thread(PrimaryThreadCommand::CheckReplicas);
}

/// Returns `true` if this server, since the beginning of this role epoch, asks a replica to take over. In exclusive
/// mode the answer holds.
fn is_handing_over(server: &Server, role_epoch: RoleEpoch) -> bool {
    server.replication.role_epoch() == role_epoch
        && server.replication.failover().state == CoordinatedFailoverState::InProgress
}

/// Ends the failover of a role epoch, in which the replica has taken over. Has no effect if that failover was aborted
/// before the caller held exclusive mode: this server is a primary again then, and may have begun another failover.
pub fn complete_failover(server: &Server, role_epoch: RoleEpoch) {
    if is_handing_over(server, role_epoch) {
        end_waits_of_blocked_clients(server);
        end_failover(server);
    }
}

/// Ends the failover of a role epoch, in which the replica has refused to take over: this server becomes a primary
/// again. Has no effect if that failover has ended already.
pub fn end_refused_failover(server: &Arc<Server>, role_epoch: RoleEpoch) {
    if is_handing_over(server, role_epoch) {
        abort_failover(server, "Failover target rejected psync request");
    }
}

/// Ends the failover and resumes writes.
fn end_failover(server: &Server) {
    *server.replication.failover() = CoordinatedFailover::default();
    server.replication.is_failing_over.store(false, Ordering::Release);
    server.unpause_clients(PauseReason::Failover);
}

/// Aborts the failover: this server stays the primary, or becomes it again. Returns `true` if a failover was under way.
pub fn abort_failover(server: &Arc<Server>, why: &str) -> bool {
    let handover = server.replication.failover().clone();
    if handover.state == CoordinatedFailoverState::None {
        return false;
    }
    match &handover.target {
        Some(target) => log::notice!("FAILOVER to {}:{} aborted: {why}", target.host, target.port),
        None => log::notice!("FAILOVER to any replica aborted: {why}"),
    }
    if handover.state == CoordinatedFailoverState::InProgress {
        become_primary(server);
    }
    end_failover(server);
    true
}

/// The next step of a failover that waits for a replica.
#[derive(Debug, PartialEq, Eq)]
pub enum FailoverStep {
    /// Continue to wait.
    Wait,
    /// The deadline has passed.
    Abort,
    /// Fail over to this replica.
    HandOverTo {
        /// The replica.
        replica: Endpoint,
        /// `true` if it has acknowledged all writes, and `false` if the failover is forced.
        is_synced: bool,
    },
}

/// Returns the next step of a failover that waits for a replica.
pub fn next_failover_step(server: &Server) -> FailoverStep {
    let handover = server.replication.failover().clone();
    if handover.state != CoordinatedFailoverState::WaitForSync {
        return FailoverStep::Wait;
    }
    if handover.until_ms.is_some_and(|until_ms| unix_ms() >= until_ms) {
        return match (handover.is_forced, handover.target) {
            (true, Some(replica)) => FailoverStep::HandOverTo {
                replica,
                is_synced: false,
            },
            _ => FailoverStep::Abort,
        };
    }
    let replicas = &server.replication.replicas;
    // Writes made before the pause may not have reached the backlog yet.
    let Some(offset) = replicas
        .backlog()
        .offset_of_sequence(server.propagation.last_sequence())
    else {
        return FailoverStep::Wait;
    };
    let end = replicas.backlog().range().map_or(offset, |extent| extent.end);
    let known = replicas.infos();
    let ready = known.iter().find(|replica| {
        let meant = handover
            .target
            .as_ref()
            .is_none_or(|target| *target.host == *replica.host && i64::from(target.port) == replica.port);
        meant && replica.is_online() && replica.acknowledged_offset >= end
    });
    let Some(replica) = ready else {
        return FailoverStep::Wait;
    };
    FailoverStep::HandOverTo {
        replica: Endpoint {
            host: replica.host.as_str().into(),
            port: u16::try_from(replica.port).unwrap_or(0),
        },
        is_synced: true,
    }
}

/// Fails over to a replica: follows it and asks it to take over. Blocked clients continue to wait, since this server
/// serves them if the replica refuses.
pub fn fail_over_to(server: &Arc<Server>, to: Endpoint, is_synced: bool) {
    match is_synced {
        true => log::notice!("Failover target {}:{} is synced, failing over.", to.host, to.port),
        false => log::notice!("FAILOVER to {}:{} time out exceeded, failing over.", to.host, to.port),
    }
    {
        let mut handover = server.replication.failover();
        assert_eq!(
            handover.state,
            CoordinatedFailoverState::WaitForSync,
            "only a server that waits for a replica fails over to it"
        );
        handover.state = CoordinatedFailoverState::InProgress;
        handover.target = Some(to.clone());
    }
    follow(server, to, false);
}

#[cfg(test)]
mod tests;
