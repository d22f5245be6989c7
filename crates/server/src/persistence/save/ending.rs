//! Shutdown: waits until replicas have caught up, and writes the final RDB file.
//!
//! It runs on its own thread, because it may take long and may be aborted. After the final save nothing is written,
//! neither by commands nor to the replication stream. So replicas that have received everything can continue with the
//! server that loads the file.

use std::sync::Arc;
use std::time::Duration;

use weft_base::ReplicationOffset;
use weft_base::clock::unix_ms;

use super::{SaveFailed, cancel_for_shutdown, save_without_scripts};
use crate::keyspace::Seat;
use crate::observability::log;
use crate::persistence::aof_files::AofState;
use crate::persistence::snapshot_state::SnapshotPurpose;
use crate::replication::{ReplicaInfo, ReplicaSyncState};
use crate::runtime::shutdown::{SavePolicy, ShutdownOptions};
use crate::state::{Message, PauseReason, Server};
use weft_cluster::Cluster;
use weft_config::{Config, id};
use weft_os::atomic::Ordering;
use weft_os::time::Instant;

/// The interval between two checks of the replicas' progress.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The interval between two attempts to exclude scripts.
const SCRIPT_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// The time for which the final dump waits for a free thread index of the keyspace.
const JOIN_TIMEOUT: Duration = Duration::from_secs(1);
/// The maximum time for the log thread to add the last writes to the replication stream.
const LAST_WRITES_TIMEOUT: Duration = Duration::from_millis(100);

/// Ends the process once shutdown is prepared. A second request joins the first, which may still wait for a script to
/// end before it saves: it does not save then if the second one wants no dump.
pub fn begin_shutdown(server: &Arc<Server>, mut how: ShutdownOptions) {
    if !server.lifecycle.shutdown.try_begin() {
        if how.save == SavePolicy::Never {
            server.lifecycle.shutdown.forgo_dump();
        }
        return;
    }
    if must_keep_dump(server, &how) {
        how.save = SavePolicy::Never;
    }
    match &how.requested_by {
        Some(client) => log::notice!("User requested shutdown... (user request from '{client}')"),
        None => log::notice!("User requested shutdown..."),
    }
    let for_thread = server.clone();
    let spawned = weft_os::thread::Builder::new()
        .name("weft-shutdown".into())
        .spawn(move || prepare_and_end(&for_thread, how));
    if let Err(error) = spawned {
        log::warning!("Cannot start the shutdown thread: {error}");
        resume_operation(server);
    }
}

/// Aborts a shutdown that is still being prepared. Returns `true` if there was one.
pub fn abort_shutdown(server: &Server) -> bool {
    let called_off = server.lifecycle.shutdown.abort();
    if called_off {
        log::notice!("Shutdown manually aborted.");
        wake_coordinator(server);
    }
    called_off
}

fn prepare_and_end(server: &Arc<Server>, how: ShutdownOptions) {
    server.pause_clients(PauseReason::Shutdown, unix_ms(), u64::MAX, false);
    let prepared = wait_for_replicas(server, &how)
        .and_then(|()| check_safety(server, &how))
        .and_then(|()| request_acks_for_failover(server, &how))
        .and_then(|()| write_final_rdb(server, &how));
    if matches!(prepared, Err(ShutdownRefusal::Failed)) {
        log::warning!("Errors trying to shut down the server. Check the logs for more information.");
    }
    if prepared.is_ok() {
        server.announce_shutdown();
    }
    if prepared.is_err() || !server.request_shutdown(how) {
        server.unpause_clients(PauseReason::Shutdown);
        resume_operation(server);
    }
}

/// Resumes the server after an aborted shutdown.
fn resume_operation(server: &Server) {
    server.replication.is_shutting_down.store(false, Ordering::SeqCst);
    server
        .lifecycle
        .shutdown
        .replica_deadline_ms
        .store(0, Ordering::Relaxed);
    server.lifecycle.shutdown.cancel_preparation();
    for worker in &server.workers {
        worker.send(Message::ShutdownAborted);
    }
    wake_coordinator(server);
}

/// Wakes the coordinator, which handles signals, so that it treats the next signal as a first one.
fn wake_coordinator(server: &Server) {
    server.background.wake_coordinator();
}

/// The reason why the process does not end.
enum ShutdownRefusal {
    Aborted,
    Failed,
}

/// Waits until replicas have caught up, for at most `shutdown-timeout`.
fn wait_for_replicas(server: &Server, how: &ShutdownOptions) -> Result<(), ShutdownRefusal> {
    let repl = &server.replication;
    let timeout = Duration::from_secs(server.config.unsigned(id::SHUTDOWN_TIMEOUT));
    // No pings are sent from now on, so a replica that has caught up stays caught up.
    repl.is_shutting_down.store(true, Ordering::SeqCst);
    let waits = !how.is_immediate && !timeout.is_zero() && !repl.replicas.connected().is_empty();
    let since = Instant::now();
    if waits {
        await_running_writes(server, since + timeout)?;
    }
    if waits && !lagging_replicas(server).is_empty() {
        log::notice!("Waiting for replicas before shutting down.");
        let until_ms = unix_ms().saturating_add(timeout.as_millis() as u64);
        server
            .lifecycle
            .shutdown
            .replica_deadline_ms
            .store(until_ms, Ordering::Relaxed);
        server.request_acks_at_shutdown();
        while since.elapsed() < timeout && !lagging_replicas(server).is_empty() {
            if server.lifecycle.shutdown.is_aborted() {
                return Err(ShutdownRefusal::Aborted);
            }
            weft_os::thread::sleep(POLL_INTERVAL);
        }
    }
    log_lagging_replicas(server);
    Ok(())
}

/// Waits until the writes that were admitted before the pause have their place in the log, as long as scripts let it:
/// their replies may still be sent, so replicas must have them.
fn await_running_writes(server: &Server, deadline: Instant) -> Result<(), ShutdownRefusal> {
    let Some(mut seat) = join_keyspace(server, deadline)? else {
        return Ok(());
    };
    let requester = server.scripting.running.new_requester();
    while !server.scripting.running.try_exclude_runs(requester) {
        if server.lifecycle.shutdown.is_aborted() || Instant::now() >= deadline {
            server.scripting.running.withdraw(requester);
            return match server.lifecycle.shutdown.is_aborted() {
                true => Err(ShutdownRefusal::Aborted),
                false => Ok(()),
            };
        }
        weft_os::thread::sleep(SCRIPT_POLL_INTERVAL);
    }
    drop(seat.exclusive());
    server.scripting.running.end_exclusion();
    Ok(())
}

/// Joins the keyspace. Returns `None` if no thread index is free until the deadline.
fn join_keyspace(server: &Server, deadline: Instant) -> Result<Option<Seat>, ShutdownRefusal> {
    loop {
        let seat = server.keyspace.slots.join();
        if seat.is_some() || Instant::now() >= deadline {
            return Ok(seat);
        }
        if server.lifecycle.shutdown.is_aborted() {
            return Err(ShutdownRefusal::Aborted);
        }
        weft_os::thread::sleep(SCRIPT_POLL_INTERVAL);
    }
}

/// Requests the offsets of the replicas if one of them is to take over at the end of the process. The request is a part
/// of the stream, and so it comes before the final dump: a replica would have what follows the dump, and the server
/// that loads the dump would not.
fn request_acks_for_failover(server: &Server, how: &ShutdownOptions) -> Result<(), ShutdownRefusal> {
    let repl = &server.replication;
    let can_fail_over = server.cluster.is_some() && !repl.is_replica() && !repl.replicas.connected().is_empty();
    if !how.requests_failover || !can_fail_over {
        return Ok(());
    }
    // The request has to follow the last write in the stream. A script that goes on writing is not waited for: the
    // replicas also report their offsets each second, for which the failover waits.
    await_running_writes(server, Instant::now() + LAST_WRITES_TIMEOUT)?;
    let since = Instant::now();
    while end_of_history(server).is_none() && since.elapsed() < LAST_WRITES_TIMEOUT {
        server.propagation.wake();
        weft_os::thread::sleep(POLL_INTERVAL);
    }
    if !lagging_replicas(server).is_empty() {
        server.request_acks_at_shutdown();
    }
    Ok(())
}

/// Refuses a safe shutdown of a primary with slots, without which the cluster may be down.
fn check_safety(server: &Server, how: &ShutdownOptions) -> Result<(), ShutdownRefusal> {
    let has_vote = |cluster: &Cluster| cluster.lock(&server.config).me().has_vote();
    if !how.is_safe || !server.cluster.as_ref().is_some_and(has_vote) {
        return Ok(());
    }
    let reason = "This is a voting primary. Shutting down may cause the cluster to go down.";
    if how.is_forced {
        log::warning!("{reason} Exit anyway.");
        return Ok(());
    }
    log::warning!("{reason} Can't exit.");
    Err(ShutdownRefusal::Failed)
}

/// The end offset of the replication history; `None` if not all of it is in the backlog yet.
fn end_of_history(server: &Server) -> Option<ReplicationOffset> {
    let repl = &server.replication;
    if repl.is_replica() {
        return Some(repl.offset());
    }
    let backlog = repl.replicas.backlog();
    let written = backlog.offset_of_sequence(server.propagation.last_sequence());
    written.and(backlog.range()).map(|extent| extent.end)
}

/// The replicas that have not acknowledged everything.
fn lagging_replicas(server: &Server) -> Vec<ReplicaInfo> {
    let end = end_of_history(server);
    let mut known = server.replication.replicas.connected();
    known.retain(|replica| end != Some(replica.acknowledged_offset));
    known
}

fn log_lagging_replicas(server: &Server) {
    let lagging = lagging_replicas(server);
    let count = server.replication.replicas.connected().len();
    let now_s = unix_ms() / 1000;
    for replica in &lagging {
        let behind = server.replication.offset().get() - replica.acknowledged_offset.get();
        let lag_s = match replica.progress {
            ReplicaSyncState::Online => now_s.saturating_sub(replica.last_heard_s),
            _ => 0,
        };
        log::notice!(
            "Lagging replica {}:{} reported offset {behind} behind master, lag={lag_s}, state={}.",
            replica.host,
            replica.port,
            replica.progress.as_str()
        );
    }
    if count > 0 {
        let in_sync = count.saturating_sub(lagging.len());
        log::notice!("{in_sync} of {count} replicas are in sync when shutting down.");
    }
}

fn should_save(config: &Config, how: &ShutdownOptions) -> bool {
    match how.save {
        SavePolicy::Always => true,
        SavePolicy::Never => false,
        SavePolicy::IfConfigured => !config.save_points().is_empty(),
    }
}

/// Returns `true` if the dump must stay as it is: the data of an unfinished load is incomplete, and after a load that
/// failed there is no data, which is saved only if a client requests it. While the caller excludes scripts, the answer
/// holds.
fn must_keep_dump(server: &Server, how: &ShutdownOptions) -> bool {
    match how.save {
        SavePolicy::IfConfigured => server.must_keep_data_files(),
        SavePolicy::Always | SavePolicy::Never => server.lacks_data(),
    }
}

/// Excludes scripts until the dump is written. Returns `false` if a later request wants no dump. A script may run for
/// ever, and be impossible to stop, except by that or by an abortion.
fn exclude_scripts(server: &Server) -> Result<bool, ShutdownRefusal> {
    let (running, shutdown) = (&server.scripting.running, &server.lifecycle.shutdown);
    let requester = running.new_requester();
    while !running.try_exclude_runs(requester) {
        let (is_aborted, forgoes_dump) = (shutdown.is_aborted(), shutdown.forgoes_dump());
        if is_aborted || forgoes_dump {
            running.withdraw(requester);
            return match is_aborted {
                true => Err(ShutdownRefusal::Aborted),
                false => Ok(false),
            };
        }
        weft_os::thread::sleep(SCRIPT_POLL_INTERVAL);
    }
    Ok(true)
}

/// Ends a snapshot that is being written, and writes the final RDB file if one is required.
fn write_final_rdb(server: &Arc<Server>, how: &ShutdownOptions) -> Result<(), ShutdownRefusal> {
    let writes_first_log = server.persistence.aof.state() == AofState::WritingBase
        && server.persistence.snapshot.purpose() == Some(SnapshotPurpose::AofBase);
    if writes_first_log && !how.is_forced {
        // Without the first base file all data would be lost.
        log::warning!("Writing initial AOF, can't exit.");
        return Err(ShutdownRefusal::Failed);
    }
    if writes_first_log {
        log::warning!("Writing initial AOF. Exit anyway.");
    }
    if !should_save(&server.config, how) {
        return Ok(());
    }
    cancel_for_shutdown(server);
    log::notice!("Saving the final RDB snapshot before exiting.");
    let saved = match join_keyspace(server, Instant::now() + JOIN_TIMEOUT)? {
        Some(mut seat) => {
            if !exclude_scripts(server)? {
                return Ok(());
            }
            if must_keep_dump(server, how) {
                server.scripting.running.end_exclusion();
                log::warning!("The dump file is kept: a load has begun since the shutdown was requested");
                return Ok(());
            }
            save_without_scripts(server, &mut seat)
        }
        None => {
            log::warning!("Cannot save: the keyspace has no free thread index");
            Err(SaveFailed)
        }
    };
    match saved {
        Ok(()) => Ok(()),
        // A load that has begun since the request leaves the file as it is.
        Err(SaveFailed) if how.is_forced || server.lacks_data() => {
            log::warning!("Error trying to save the DB. Exit anyway.");
            Ok(())
        }
        Err(SaveFailed) => {
            log::warning!("Error trying to save the DB, can't exit.");
            Err(ShutdownRefusal::Failed)
        }
    }
}

#[cfg(test)]
mod tests;
