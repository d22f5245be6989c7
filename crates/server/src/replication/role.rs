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
use std::sync::atomic::Ordering;

use weft_reactor::unix_ms;

use crate::config::Primary;
use crate::observability::log;
use crate::replication::backlog_writer;
use crate::replication::{Endpoint, Handover, HandoverState, Progress};
use crate::runtime::config_changes::role_changed;
use crate::state::{Message, PauseReason, PrimaryThreadCommand, Server};

/// Starts to follow a primary. Blocked clients are no longer served. `anew` is `true` if the primary cannot know the
/// history of the data on this server.
pub fn follow(server: &Arc<Server>, primary: Endpoint, anew: bool) {
    let was_primary = !server.repl.follows();
    server.config.follow(Some(Primary {
        host: primary.host.clone(),
        port: primary.port,
    }));
    log::notice!("Connecting to PRIMARY {}:{}", primary.host, primary.port);
    server.repl.follow(primary, anew);
    backlog_writer::on_follow(server);
    role_changed(server);
    if was_primary {
        for worker in &server.workers {
            worker.send(Message::Demoted);
        }
    }
}

/// Becomes a primary. Returns `true` if this server followed one.
pub fn unfollow(server: &Arc<Server>) -> bool {
    let Some(history) = server.repl.unfollow() else {
        return false;
    };
    server.config.follow(None);
    backlog_writer::on_unfollow(server);
    // The replicas reconnect and learn the new replication ID.
    server.send_to_primary_thread(PrimaryThreadCommand::DisconnectAll);
    role_changed(server);
    log::notice!("Discarding previously cached primary state.");
    log::notice!(
        "Setting secondary replication ID to {}, valid up to offset: {}. New replication ID is {}",
        history.second_id,
        history.second_offset,
        history.id
    );
    true
}

/// Begins a coordinated failover. Writes are paused from now on.
pub fn begin_handover(server: &Server, wanted: Handover) {
    match &wanted.target {
        Some(target) => log::notice!("FAILOVER requested to {}:{}.", target.host, target.port),
        None => log::notice!("FAILOVER requested to any replica."),
    }
    *server.repl.handover() = wanted;
    server.repl.hands_over.store(true, Ordering::Release);
    server.pause_clients(PauseReason::Failover, unix_ms(), u64::MAX, false);
    server.send_to_primary_thread(PrimaryThreadCommand::Look);
}

/// Ends the failover and resumes writes.
pub fn end_handover(server: &Server) {
    *server.repl.handover() = Handover::default();
    server.repl.hands_over.store(false, Ordering::Release);
    server.unpause_clients(PauseReason::Failover);
}

/// Aborts the failover: this server stays the primary, or becomes it again. Returns `true` if a failover was under way.
pub fn abort_handover(server: &Arc<Server>, why: &str) -> bool {
    let handover = server.repl.handover().clone();
    if handover.state == HandoverState::None {
        return false;
    }
    match &handover.target {
        Some(target) => log::notice!("FAILOVER to {}:{} aborted: {why}", target.host, target.port),
        None => log::notice!("FAILOVER to any replica aborted: {why}"),
    }
    if handover.state == HandoverState::InProgress {
        unfollow(server);
    }
    end_handover(server);
    true
}

/// The next step of a failover that waits for a replica.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Continue to wait.
    Wait,
    /// The deadline has passed.
    Abort,
    /// Fail over to this replica.
    To(Endpoint),
}

/// Returns the next step of a failover that waits for a replica.
pub fn handover_step(server: &Server) -> Step {
    let handover = server.repl.handover().clone();
    if handover.state != HandoverState::WaitForSync {
        return Step::Wait;
    }
    if handover.until_ms.is_some_and(|until_ms| unix_ms() >= until_ms) {
        return match (handover.force, handover.target) {
            (true, Some(target)) => {
                log::notice!(
                    "FAILOVER to {}:{} time out exceeded, failing over.",
                    target.host,
                    target.port
                );
                Step::To(target)
            }
            _ => Step::Abort,
        };
    }
    let replicas = &server.repl.replicas;
    // Writes made before the pause may not have reached the backlog yet.
    let Some(offset) = replicas.backlog().offset_of(server.propagation.last_sequence()) else {
        return Step::Wait;
    };
    let end = replicas.backlog().extent().map_or(offset, |extent| extent.end);
    let known = replicas.known();
    let ready = known.iter().find(|replica| {
        let meant = handover
            .target
            .as_ref()
            .is_none_or(|target| *target.host == *replica.host && i64::from(target.port) == replica.port);
        meant && replica.progress == Progress::Online && replica.acknowledged >= end
    });
    let Some(replica) = ready else {
        return Step::Wait;
    };
    log::notice!(
        "Failover target {}:{} is synced, failing over.",
        replica.host,
        replica.port
    );
    Step::To(Endpoint {
        host: replica.host.as_str().into(),
        port: u16::try_from(replica.port).unwrap_or(0),
    })
}

/// Fails over to a replica: follows it and asks it to take over.
pub fn hand_over(server: &Arc<Server>, to: Endpoint) {
    {
        let mut handover = server.repl.handover();
        handover.state = HandoverState::InProgress;
        handover.target = Some(to.clone());
    }
    follow(server, to, false);
}
