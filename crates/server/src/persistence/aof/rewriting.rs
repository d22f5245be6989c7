//! Rewriting the append-only file, and switching it on and off while clients continue.
//!
//! ```text
//!   begin             the snapshot's moment                      its end
//!   ─────             ─────────────────────                      ───────
//!   next increment    mark: the log continues in the next        the base is renamed
//!   is created        increment                                  earlier increments become history
//!   ...               nothing changes between the mark           the manifest is stored; history is deleted
//!                     and the state that the base holds
//! ```
//!
//! Switching on is a rewrite whose increment has a temporary name that no manifest contains until the base is complete.
//! Until then the next start would load the old files, if there are any.

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use weft_reactor::unix_ms;

use super::{AofFailed, AofLocation, FEED, appender, begin_logging, copy_parameters, delete_history, flush};
use crate::config::{Config, error_text, id};
use crate::keyspace::effects::Hooks;
use crate::observability::{lock, log};
use crate::persistence::aof_files::manifest::Manifest;
use crate::persistence::aof_files::{Appender, Phase, open};
use crate::persistence::rdb_file::{Format, spell_out};
use crate::persistence::save::FileConsumer;
use crate::persistence::snapshot::{Claim, ConsumerError, SnapshotOutcome, SnapshotRequest, Summary};
use crate::persistence::snapshot_state::Purpose;
use crate::state::{Job, Server};

/// The number of consecutive failures after which automatic rewrites are delayed.
const FAILURES: u64 = 3;
/// The longest such delay in seconds.
const LONGEST_DELAY_S: u64 = 3600;
/// The time that switching off waits for a rewrite to end.
const FAREWELL: Duration = Duration::from_secs(10);

/// The reason why no rewrite was started; if necessary it was logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CannotRewrite {
    /// Another snapshot is being written.
    Busy(Purpose),
    /// An operation failed.
    Failed,
}

/// The file to which a rewrite switches at its moment.
enum Next {
    /// Nothing is logged.
    Nothing,
    /// An increment for an appender that is in use.
    Increment(Arc<Mutex<Appender>>, File),
    /// A temporary increment while the file is being switched on. No manifest names it yet.
    Temporary(Arc<Mutex<Appender>>, File),
    /// The first increment, of an appender that has written nothing yet.
    First(Arc<Mutex<Appender>>),
}

impl Next {
    /// The phase in which it was prepared. If the phase has changed by the end of the rewrite, the new base is
    /// unusable.
    fn phase(&self) -> Phase {
        match self {
            Next::Nothing => Phase::Off,
            Next::Increment(..) => Phase::On,
            Next::Temporary(..) | Next::First(_) => Phase::Waiting,
        }
    }
}

fn temporary_increment(place: &AofLocation) -> (String, PathBuf) {
    let name = format!("temp-{}.incr", place.filename);
    let path = place.path(&name);
    (name, path)
}

fn temporary_base() -> String {
    format!("temp-rewriteaof-bg-{}.aof", std::process::id())
}

/// Starts a rewrite. It waits for exclusive mode, so workers must not call it.
///
/// # Errors
/// If it cannot start now.
pub fn begin_rewrite(server: &Arc<Server>) -> Result<(), CannotRewrite> {
    // Claimed before anything is prepared: of two rewrites that start together only one may change the manifest.
    let claim = Claim::new(server, Purpose::LogBase).map_err(CannotRewrite::Busy)?;
    let begun = prepare(server).and_then(|next| start(server, claim, next));
    if matches!(begun, Err(CannotRewrite::Failed)) {
        server.aof.last_rewrite_failed.store(true, Ordering::Relaxed);
    }
    begun
}

/// Creates the increment that follows the snapshot.
fn prepare(server: &Arc<Server>) -> Result<Next, CannotRewrite> {
    let failed = |AofFailed| CannotRewrite::Failed;
    let place = AofLocation::of(&server.config);
    place.make_directory().map_err(failed)?;
    let files = &mut *lock(&server.aof_files);
    let open_fresh = |name: &str| {
        open(&place.path(name), true).map_err(|error| {
            log::warning!("Can't open the append-only file {name}: {}", error_text(&error));
            CannotRewrite::Failed
        })
    };
    let (next, name) = match (server.aof.phase(), &files.appender) {
        (Phase::Off, _) => return Ok(Next::Nothing),
        (Phase::On, Some(appender)) => {
            let mut manifest = files.manifest.clone();
            let name = manifest.begin_increment(&place.filename);
            let file = open_fresh(&name)?;
            if let Err(error) = place.try_store(&mut manifest) {
                if error.is_replaced {
                    // The log stays in the previous increment. If this store fails too, a start skips the empty
                    // increment.
                    files.manifest.mark_changed();
                    let _ = place.store(&mut files.manifest);
                }
                return Err(CannotRewrite::Failed);
            }
            let next = Next::Increment(appender.clone(), file);
            files.manifest = manifest;
            (next, name)
        }
        (_, appending) => {
            let (name, _) = temporary_increment(&place);
            let file = open_fresh(&name)?;
            let next = match appending {
                Some(appender) => Next::Temporary(appender.clone(), file),
                None => Next::First(appender(server, file).map_err(failed)?),
            };
            (next, name)
        }
    };
    log::notice!("Creating AOF incr file {name} on background rewrite");
    Ok(next)
}

fn start(server: &Arc<Server>, claim: Claim<'_>, next: Next) -> Result<(), CannotRewrite> {
    let as_dump = server.config.boolean(id::AOF_USE_RDB_PREAMBLE);
    let incremental = server.config.boolean(id::AOF_REWRITE_INCREMENTAL_FSYNC);
    if let Next::First(appender) = &next {
        lock(&server.aof_files).appender = Some(appender.clone());
    }
    let phase = next.phase();
    // If the snapshot is not taken, the log must continue in the increment nevertheless.
    let next = Arc::new(Mutex::new(Some(next)));
    let unused = next.clone();
    let for_base = server.clone();
    let order = SnapshotRequest {
        purpose: Purpose::LogBase,
        format: Format::Newest,
        consumer: Box::new(move || {
            let name = format!("temp-rewriteaof-{}.aof", std::process::id());
            let afterwards = Box::new(move || finish_base(&for_base.config, as_dump));
            FileConsumer::create(name.into(), temporary_base().into(), incremental, afterwards)
        }),
        at_moment: Box::new(move |moment| {
            moment.server.aof.begin_base();
            if let Some(next) = lock(&next).take() {
                take_up(moment.server, next);
            }
            Box::new(Vec::new)
        }),
        at_end: Box::new(move |server, summary, ending| conclude(server, summary, ending, (phase, as_dump))),
    };
    let status = &server.aof;
    status.rewriting_since_s.store(unix_ms() / 1000, Ordering::Relaxed);
    match claim.start(order) {
        Ok(thread) => {
            status.rewrites.fetch_add(1, Ordering::Relaxed);
            status.scheduled.store(false, Ordering::Relaxed);
            log::notice!("Background append only file rewriting started by pid {thread}");
            Ok(())
        }
        Err(error) => {
            status.rewriting_since_s.store(0, Ordering::Relaxed);
            log::warning!("Can't rewrite append only file in background: {error}");
            match lock(&unused).take() {
                // The manifest already names the increment, after the one that is being written.
                Some(next @ Next::Increment(..)) => take_up(server, next),
                // The appender is not registered with the log. The next rewrite has to create a first one again.
                Some(Next::First(_)) => lock(&server.aof_files).appender = None,
                Some(Next::Temporary(..) | Next::Nothing) | None => {}
            }
            Err(CannotRewrite::Failed)
        }
    }
}

/// Switches the log to the next increment at the snapshot's moment.
fn take_up(server: &Server, next: Next) {
    match next {
        Next::Nothing => {}
        Next::First(appender) => begin_logging(server, &appender),
        Next::Increment(appender, file) => switch_file(server, appender, file, true),
        Next::Temporary(appender, file) => switch_file(server, appender, file, false),
    }
}

fn switch_file(server: &Server, appender: Arc<Mutex<Appender>>, file: File, is_named: bool) {
    server.propagation.schedule_mark(move |feeds| {
        lock(&appender).switch(file, is_named);
        feeds.force_select(FEED);
    });
    if !server.keyspace.hooks.now().has(Hooks::LOG_FILE) {
        server.keyspace.hooks.put(Hooks::LOG_FILE, true);
    }
}

/// Converts a base that was written as an RDB file into commands, unless RDB is the wanted format.
fn finish_base(config: &Config, as_dump: bool) -> Result<(), ConsumerError> {
    let name = PathBuf::from(temporary_base());
    if !as_dump {
        let dump = name.with_extension("rdb");
        std::fs::rename(&name, &dump)?;
        let written = spell_out(&dump, &name, config);
        // No longer needed; if it cannot be removed, it does no harm.
        let _ = std::fs::remove_file(&dump);
        written?;
    }
    log::notice!("Successfully created the temporary AOF base file {}", name.display());
    Ok(())
}

fn conclude(server: &Arc<Server>, summary: &Summary, ending: SnapshotOutcome, (phase, as_dump): (Phase, bool)) {
    let status = &server.aof;
    let done = match ending {
        // The file was switched off or on meanwhile. The increment that belongs to this base is not the one being
        // logged to.
        SnapshotOutcome::Done if status.phase() != phase => {
            log::warning!("Background AOF rewrite terminated by request");
            false
        }
        SnapshotOutcome::Done => {
            log::notice!("Background AOF rewrite terminated with success");
            publish(server, as_dump).is_ok()
        }
        SnapshotOutcome::Cancelled => {
            log::warning!("Background AOF rewrite terminated by request");
            false
        }
        SnapshotOutcome::Failed(error) => {
            log::warning!("{error}");
            log::warning!("Background AOF rewrite terminated with error");
            status.failures.fetch_add(1, Ordering::Relaxed);
            status.last_rewrite_failed.store(true, Ordering::Relaxed);
            false
        }
    };
    if done {
        status.failures.store(0, Ordering::Relaxed);
        status.last_rewrite_failed.store(false, Ordering::Relaxed);
        log::notice!("Background AOF rewrite finished successfully");
    } else {
        // Another rewrite uses another name; the rest does no harm.
        let _ = std::fs::remove_file(temporary_base());
    }
    if !done && status.phase() == Phase::Waiting {
        let (name, path) = temporary_increment(&AofLocation::of(&server.config));
        log::notice!("Removing the temp incr aof file {name} in the background");
        let _ = std::fs::remove_file(path);
        status.scheduled.store(true, Ordering::Relaxed);
    }
    let took_s = (unix_ms() / 1000).saturating_sub(summary.began_s);
    status.last_rewrite_s.store(took_s as i64 + 1, Ordering::Relaxed);
    status.rewriting_since_s.store(0, Ordering::Relaxed);
    if done {
        // From now on the increments behind the base count. Threads that wait for that find the rewrite ended.
        status.end_base();
        if status.phase() == Phase::Waiting {
            status.set_phase(Phase::On);
            server.withhold_replies();
        }
        server.wake_log_waiters();
    }
}

/// Renames the new base to its final name, and turns the replaced files into history.
fn publish(server: &Arc<Server>, as_dump: bool) -> Result<(), AofFailed> {
    let status = &server.aof;
    let published = rename_all(server, as_dump);
    if published.is_err() {
        status.failures.fetch_add(1, Ordering::Relaxed);
        status.last_rewrite_failed.store(true, Ordering::Relaxed);
    }
    published
}

fn rename_all(server: &Arc<Server>, as_dump: bool) -> Result<(), AofFailed> {
    let place = AofLocation::of(&server.config);
    let files = &mut *lock(&server.aof_files);
    let phase = server.aof.phase();
    let mut manifest = files.manifest.clone();
    let temporary = temporary_base();
    let base = manifest.begin_base(&place.filename, as_dump);
    let base_path = place.path(&base);
    std::fs::rename(&temporary, &base_path).map_err(|error| {
        let (path, reason) = (base_path.display(), error_text(&error));
        log::warning!("Error trying to rename the temporary AOF base file {temporary} into {path}: {reason}");
        AofFailed
    })?;
    log::notice!("Successfully renamed the temporary AOF base file {temporary} into {base}");
    if phase == Phase::Waiting {
        let (name, path) = temporary_increment(&place);
        let increment = manifest.begin_increment(&place.filename);
        let new_path = place.path(&increment);
        std::fs::rename(&path, &new_path).map_err(|error| {
            let (old, new, reason) = (path.display(), new_path.display(), error_text(&error));
            log::warning!("Error trying to rename the temporary AOF incr file {old} into {new}: {reason}");
            let _ = std::fs::remove_file(&base_path);
            AofFailed
        })?;
        log::notice!("Successfully renamed the temporary AOF incr file {name} into {increment}");
    }
    manifest.retire_increments(phase != Phase::Off);
    if let Err(error) = place.try_store(&mut manifest) {
        if error.is_replaced {
            // After a power failure either manifest may be in the directory, so the files of both stay.
            files.manifest = manifest;
        } else {
            let _ = std::fs::remove_file(&base_path);
        }
        return Err(AofFailed);
    }
    note_sizes(server, &place, &manifest, &base);
    if let Some(appender) = &files.appender {
        lock(appender).base_is_complete();
    }
    files.manifest = manifest;
    delete_history(server, &place, &mut files.manifest);
    Ok(())
}

fn note_sizes(server: &Server, place: &AofLocation, manifest: &Manifest, base: &str) {
    if server.aof.phase() == Phase::Off {
        return;
    }
    let size = |name: &str| std::fs::metadata(place.path(name)).map_or(0, |metadata| metadata.len());
    let increments: u64 = manifest.increments.iter().map(|part| size(&part.name)).sum();
    let bytes = size(base) + increments;
    server.aof.current_bytes.store(bytes, Ordering::Relaxed);
    server.aof.base_bytes.store(bytes, Ordering::Relaxed);
}

// ---- switching -----------------------------------------------------------------------------------------------------
/// Applies the parameter `appendonly`. `may_wait` is `true` if the caller is outside the gate. Otherwise a background
/// thread does the work.
///
/// # Errors
/// If the file cannot be switched on.
pub fn switch(server: &Arc<Server>, may_wait: bool) -> Result<(), AofFailed> {
    let wanted = server.config.boolean(id::APPENDONLY);
    match (server.aof.phase(), wanted) {
        (Phase::Off, true) => switch_on(server, may_wait),
        (Phase::Waiting | Phase::On, false) if may_wait => {
            switch_off(server);
            Ok(())
        }
        (Phase::Waiting | Phase::On, false) => {
            let job: Job = Box::new(|server, _| {
                // The file may have been switched on again meanwhile.
                if !server.config.boolean(id::APPENDONLY) {
                    switch_off(server);
                }
            });
            // The receiving threads end only at shutdown.
            let _ = server.background.send(job);
            Ok(())
        }
        _ => Ok(()),
    }
}

fn switch_on(server: &Arc<Server>, may_wait: bool) -> Result<(), AofFailed> {
    let status = &server.aof;
    // They may not have been copied since the start.
    copy_parameters(server);
    status.set_phase(Phase::Waiting);
    if !may_wait {
        status.scheduled.store(true, Ordering::Relaxed);
        log::notice!("AOF was enabled during a transaction. An AOF background was scheduled to start when possible.");
        return Ok(());
    }
    match server.snapshot.purpose() {
        Some(Purpose::LogBase) => {
            log::notice!(
                "AOF was enabled but there is already an AOF rewriting in background. Stopping background AOF and \
                 starting a rewrite now."
            );
            server.snapshot.cancel(&[Purpose::LogBase]);
            server.snapshot.wait_for_cancelled();
        }
        Some(Purpose::Dump | Purpose::Replicas) => {
            status.scheduled.store(true, Ordering::Relaxed);
            log::notice!(
                "AOF was enabled but there is already another background operation. An AOF background was scheduled to \
                 start when possible."
            );
            return Ok(());
        }
        None => {}
    }
    match begin_rewrite(server) {
        Ok(()) => Ok(()),
        Err(CannotRewrite::Busy(_)) => {
            status.scheduled.store(true, Ordering::Relaxed);
            Ok(())
        }
        Err(CannotRewrite::Failed) => {
            status.set_phase(Phase::Off);
            lock(&server.aof_files).appender = None;
            log::warning!(
                "The server needs to enable the AOF but can't trigger a background AOF rewrite operation. Check the above \
                 logs for more info about the error."
            );
            Err(AofFailed)
        }
    }
}

fn switch_off(server: &Arc<Server>) {
    let status = &server.aof;
    if server.snapshot.cancel(&[Purpose::LogBase]) {
        log::notice!("Killing running AOF rewrite child");
        server.snapshot.wait_for_end(FAREWELL);
    }
    let Some(mut seat) = server.keyspace.slots.join() else {
        log::warning!("The append-only file cannot be switched off: no seat is left at the keyspace");
        return;
    };
    server.scripts.running.exclude_runs();
    {
        let _all = seat.exclusive();
        server.keyspace.hooks.put(Hooks::LOG_FILE, false);
        server.propagation.schedule_mark(|feeds| drop(feeds.remove(FEED)));
    }
    server.scripts.running.end_exclusion();
    flush(server);
    // Set before the last sync: new waits for the disk are refused.
    status.set_phase(Phase::Off);
    let appender = lock(&server.aof_files).appender.take();
    if let Some(appender) = appender {
        lock(&appender).finish();
    }
    server.wake_log_waiters();
    if status.scheduled.swap(false, Ordering::Relaxed) {
        log::notice!("AOF was disabled but there is a scheduled AOF background, cancel it.");
    }
    if status.forget_failures() {
        server.config.invalidate_caches();
    }
    server.withhold_replies();
    // Clients that wait for the disk get their replies now.
    for worker in &server.workers {
        worker.send(crate::state::Message::Logged);
    }
}

// ---- automatic rewrites --------------------------------------------------------------------------------------------
/// Starts a rewrite if one is due, because it was scheduled or the files have grown. Called by the cron. A background
/// thread performs the rewrite.
pub fn begin_due(server: &Arc<Server>) {
    let status = &server.aof;
    if server.snapshot.purpose().is_some() || status.asked.load(Ordering::Relaxed) || !is_due(server) {
        return;
    }
    status.asked.store(true, Ordering::Relaxed);
    let job: Job = Box::new(|server, _| {
        // If another snapshot is running, the rewrite stays due. Failures have been logged.
        let _ = begin_rewrite(server);
        server.aof.asked.store(false, Ordering::Relaxed);
    });
    // The receiving threads end only at shutdown.
    let _ = server.background.send(job);
}

fn is_due(server: &Server) -> bool {
    let status = &server.aof;
    if status.scheduled.load(Ordering::Relaxed) {
        return !is_limited(server);
    }
    let percentage = server.config.unsigned(id::AUTO_AOF_REWRITE_PERCENTAGE);
    let current = status.current_bytes.load(Ordering::Relaxed);
    let large = current > server.config.unsigned(id::AUTO_AOF_REWRITE_MIN_SIZE);
    if status.phase() != Phase::On || percentage == 0 || !large || is_limited(server) {
        return false;
    }
    let base = status.base_bytes.load(Ordering::Relaxed).max(1);
    let growth = (u128::from(current) * 100 / u128::from(base)).saturating_sub(100);
    if growth < u128::from(percentage) {
        return false;
    }
    log::notice!("Starting automatic rewriting of AOF on {growth}% growth");
    true
}

/// Returns `true` if rewrites have failed so often that the next one is delayed: one minute, then two, then four, up to
/// an hour.
fn is_limited(server: &Server) -> bool {
    let status = &server.aof;
    let failures = status.failures.load(Ordering::Relaxed);
    if failures < FAILURES {
        status.retry_at_s.store(0, Ordering::Relaxed);
        status.retry_delay_s.store(0, Ordering::Relaxed);
        return false;
    }
    let now_s = unix_ms() / 1000;
    match status.retry_at_s.load(Ordering::Relaxed) {
        0 => {}
        at_s if now_s < at_s => return true,
        _ => {
            status.retry_at_s.store(0, Ordering::Relaxed);
            return false;
        }
    }
    let delay_s = match status.retry_delay_s.load(Ordering::Relaxed) {
        0 => 60,
        last_s => (last_s * 2).min(LONGEST_DELAY_S),
    };
    status.retry_delay_s.store(delay_s, Ordering::Relaxed);
    status.retry_at_s.store(now_s + delay_s, Ordering::Relaxed);
    log::warning!(
        "Background AOF rewrite has repeatedly failed and triggered the limit, will retry in {} minutes",
        delay_s / 60
    );
    true
}
