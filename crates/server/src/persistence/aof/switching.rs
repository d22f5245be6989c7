//! Switching the append-only file on and off while clients continue (CONFIG SET appendonly).

use std::sync::Arc;
use std::time::Duration;

use super::rewriting::{OverdueScript, RewriteError, check_no_overdue_script, exclude_scripts, start_rewrite};
use super::{FILE_CONSUMER, JOIN_TIMEOUT, copy_parameters, wait_until_written};
use crate::keyspace::effects::Hooks;
use crate::observability::log;
use crate::persistence::aof_files::AofState;
use crate::persistence::snapshot_state::SnapshotPurpose;
use crate::state::{BackgroundJob, Message, Server};
use weft_config::id;
use weft_os::atomic::Ordering;
use weft_os::time::Instant;

/// The time that switching off waits for a rewrite to end.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval at which a client's command that waits for the end of a rewrite checks if a script is overdue.
const OVERDUE_CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// The pause before switching off is attempted again because a script is overdue.
const SWITCH_RETRY_PAUSE: Duration = Duration::from_millis(5);

/// The reason why the file was not switched on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchError {
    /// This script is overdue, and may never end.
    ScriptBusy(OverdueScript),
    /// An operation failed; the reason was logged.
    Failed,
}

/// Applies the parameter `appendonly`. `can_wait` is `true` if the caller is outside the gate. Otherwise a background
/// thread does the work.
///
/// # Errors
/// If the file cannot be switched on or off, or a script is overdue. The state of the file is as before then.
pub fn apply_appendonly(server: &Arc<Server>, can_wait: bool) -> Result<(), SwitchError> {
    let wanted = server.config.boolean(id::APPENDONLY);
    match (server.persistence.aof.state(), wanted) {
        (AofState::Off, true) => switch_on(server, can_wait),
        (AofState::WritingBase | AofState::On, false) if can_wait => switch_off(server),
        (AofState::WritingBase | AofState::On, false) => {
            schedule_switching_off(server);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Lets a background thread switch the file off, unless it is switched on again meanwhile. The client has its reply
/// already, so this is attempted until it succeeds. Between two attempts neither other jobs nor other changes
/// of the configuration wait for it.
fn schedule_switching_off(server: &Server) {
    let job: BackgroundJob = Box::new(|server, _| {
        // The file is not switched on before an attempt has ended.
        let change = server.config.try_begin_change();
        if change.is_some() && (server.config.boolean(id::APPENDONLY) || switch_off(server).is_ok()) {
            return;
        }
        drop(change);
        weft_os::thread::sleep(SWITCH_RETRY_PAUSE);
        schedule_switching_off(server);
    });
    // The receiving threads end only at shutdown.
    let _ = server.background.long_commands.send(job);
}

fn switch_on(server: &Arc<Server>, may_wait: bool) -> Result<(), SwitchError> {
    let status = &server.persistence.aof;
    if may_wait {
        check_no_overdue_script(server).map_err(SwitchError::ScriptBusy)?;
    }
    // They may not have been copied since the start.
    copy_parameters(server);
    // A sync of the previous file may have failed after that file was switched off.
    status.clear_failures();
    status.set_state(AofState::WritingBase);
    if !may_wait {
        status.is_rewrite_scheduled.store(true, Ordering::Relaxed);
        log::notice!("AOF was enabled during a transaction. An AOF background was scheduled to start when possible.");
        return Ok(());
    }
    let snapshot = &server.persistence.snapshot;
    let mut cancels_rewrite = false;
    match snapshot.purpose() {
        Some(SnapshotPurpose::AofBase) => {
            log::notice!(
                "AOF was enabled but there is already an AOF rewriting in background. Stopping background AOF and \
                 starting a rewrite now."
            );
            cancels_rewrite = !snapshot.is_cancelled() && snapshot.cancel(&[SnapshotPurpose::AofBase]);
            if let Err(script) = wait_for_cancelled_rewrite(server, Duration::MAX) {
                return stay_off(server, script, cancels_rewrite);
            }
        }
        Some(SnapshotPurpose::RdbFile | SnapshotPurpose::Replicas | SnapshotPurpose::SlotMigration) => {
            status.is_rewrite_scheduled.store(true, Ordering::Relaxed);
            log::notice!(
                "AOF was enabled but there is already another background operation. An AOF background was scheduled to \
                 start when possible."
            );
            return Ok(());
        }
        None => {}
    }
    match start_rewrite(server) {
        Ok(()) => Ok(()),
        Err(RewriteError::Busy(_)) => {
            status.is_rewrite_scheduled.store(true, Ordering::Relaxed);
            Ok(())
        }
        Err(RewriteError::ScriptBusy(script)) => stay_off(server, script, cancels_rewrite),
        Err(RewriteError::Failed) if !give_up(server) => Ok(()),
        Err(RewriteError::Failed) => {
            log::warning!(
                "The server needs to enable the AOF but can't trigger a background AOF rewrite operation. Check the \
                 above logs for more info about the error."
            );
            Err(SwitchError::Failed)
        }
    }
}

/// Ends an attempt to switch the file on, because a script is overdue. A rewrite that was cancelled for it is due
/// again: a client has been told that it was started.
///
/// # Errors
/// The script, unless the file has been switched on nevertheless.
fn stay_off(server: &Server, script: OverdueScript, cancels_rewrite: bool) -> Result<(), SwitchError> {
    if !give_up(server) {
        return Ok(());
    }
    let is_scheduled = &server.persistence.aof.is_rewrite_scheduled;
    is_scheduled.fetch_or(cancels_rewrite, Ordering::Relaxed);
    Err(SwitchError::ScriptBusy(script))
}

/// Switches the file off again, because it could not be switched on. Returns `false`, and leaves it on, if the log
/// feeds it already: a scheduled rewrite, which the cron has started meanwhile, has succeeded in the state of this
/// attempt.
fn give_up(server: &Server) -> bool {
    let status = &server.persistence.aof;
    let _log_start = status.log_start.lock();
    let is_fed = server.keyspace.hooks.current().intersects(Hooks::LOG_FILE);
    if !is_fed {
        // A rewrite that was begun in the state of this attempt does not feed the file at its moment.
        status.set_state(AofState::Off);
    }
    !is_fed
}

/// Waits for the end of a rewrite that was cancelled, for at most `timeout`. The rewrite may wait for a script itself.
///
/// # Errors
/// A script that is overdue.
fn wait_for_cancelled_rewrite(server: &Server, timeout: Duration) -> Result<(), OverdueScript> {
    let snapshot = &server.persistence.snapshot;
    let since = Instant::now();
    while snapshot.purpose().is_some() && snapshot.is_cancelled() && since.elapsed() < timeout {
        check_no_overdue_script(server)?;
        weft_os::thread::sleep(OVERDUE_CHECK_INTERVAL);
    }
    Ok(())
}

/// Switches the file off.
///
/// # Errors
/// If a script is overdue, or the keyspace has no free thread index. The file stays on, and a rewrite that was
/// cancelled is due again.
fn switch_off(server: &Arc<Server>) -> Result<(), SwitchError> {
    check_no_overdue_script(server).map_err(SwitchError::ScriptBusy)?;
    let cancels_rewrite = server.persistence.snapshot.cancel(&[SnapshotPurpose::AofBase]);
    if cancels_rewrite {
        log::notice!("Killing running AOF rewrite child");
    }
    let waited = match cancels_rewrite {
        true => wait_for_cancelled_rewrite(server, CANCEL_TIMEOUT),
        false => Ok(()),
    };
    let stopped = waited
        .map_err(SwitchError::ScriptBusy)
        .and_then(|()| stop_logging(server));
    if stopped.is_err() && cancels_rewrite {
        let is_scheduled = &server.persistence.aof.is_rewrite_scheduled;
        is_scheduled.store(true, Ordering::Relaxed);
    }
    stopped
}

/// Removes the file from the log, and ends the waits for it.
///
/// # Errors
/// If a script is overdue, or the keyspace has no free thread index. Nothing has changed then.
fn stop_logging(server: &Arc<Server>) -> Result<(), SwitchError> {
    let status = &server.persistence.aof;
    let Some(mut seat) = server.keyspace.join_within(JOIN_TIMEOUT) else {
        log::warning!("The append-only file cannot be switched off: the keyspace has no free thread index");
        return Err(SwitchError::Failed);
    };
    exclude_scripts(server).map_err(SwitchError::ScriptBusy)?;
    {
        let _all = seat.exclusive();
        server.keyspace.hooks.set(Hooks::LOG_FILE, false);
        status.is_switching_off.store(true, Ordering::Relaxed);
        server
            .propagation
            .schedule_mark(|consumers| drop(consumers.remove(FILE_CONSUMER)));
    }
    server.scripting.running.end_exclusion();
    wait_until_written(server);
    // Set before the last sync: new waits for the disk are refused.
    status.set_state(AofState::Off);
    status.is_switching_off.store(false, Ordering::Relaxed);
    let appender = server.persistence.aof_files.lock().appender.take();
    if let Some(appender) = appender {
        appender.lock().finish();
    }
    server.wake_log_waiters();
    if status.is_rewrite_scheduled.swap(false, Ordering::Relaxed) {
        log::notice!("AOF was disabled but there is a scheduled AOF background, cancel it.");
    }
    if status.clear_failures() {
        server.config.invalidate_caches();
    }
    debug_assert!(
        !server.keyspace.hooks.current().intersects(Hooks::LOG_FILE),
        "nothing is logged for a file that is off"
    );
    server.update_reply_milestone();
    // Clients that wait for the disk get their replies now.
    for worker in &server.workers {
        worker.send(Message::LogAdvanced);
    }
    Ok(())
}
