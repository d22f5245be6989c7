//! Rewriting the append-only file while clients continue.
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
//! Switching on ([`super::switching`]) is a rewrite whose increment has a temporary name that no manifest contains
//! until the base is complete. Until then the next start would load the old files, if there are any.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use weft_base::clock::unix_ms;

use super::{
    AofFailed, AofLocation, FILE_CONSUMER, JOIN_TIMEOUT, begin_logging, delete_history, start_appender,
    wait_until_written,
};
use crate::keyspace::Seat;
use crate::keyspace::effects::Hooks;
use crate::observability::log;
use crate::persistence::aof_files::manifest::Manifest;
use crate::persistence::aof_files::{AofAppender, AofState, FsyncPolicy, open};
use crate::persistence::rdb_file::{ModuleRecordForm, RdbFilePurpose, RdbFormat, rewrite_to_commands};
use crate::persistence::save::{FileConsumer, note_background_end, note_background_start};
use crate::persistence::snapshot::{
    ConsumerError, SnapshotClaim, SnapshotOutcome, SnapshotRequest, SnapshotStartError, SnapshotSummary,
};
use crate::persistence::snapshot_state::SnapshotPurpose;
use crate::state::{BackgroundJob, Server};
use weft_base::files::{FixedPath, error_text};
use weft_config::{Config, id};
use weft_modules::module::server_events::PersistenceStep;
use weft_os::atomic::Ordering;
use weft_os::sync::Mutex;
use weft_scripting::ScriptRun;

/// The number of consecutive failures after which automatic rewrites are delayed.
const MAX_FAILURES: u64 = 3;
/// The longest such delay in seconds.
const MAX_DELAY_S: u64 = 3600;

/// The reason why no rewrite was started; if necessary it was logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RewriteError {
    /// Another snapshot is being written.
    Busy(SnapshotPurpose),
    /// This script is overdue, and may never end.
    ScriptBusy(OverdueScript),
    /// An operation failed.
    Failed,
}

/// A script, or a function, that is overdue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverdueScript {
    /// `true` for a function.
    pub is_function: bool,
}

impl OverdueScript {
    fn of_run(run: &ScriptRun) -> Self {
        let is_function = run.is_function;
        OverdueScript { is_function }
    }
}

/// Checks that no script is overdue.
///
/// # Errors
/// A script that is overdue.
pub(super) fn check_no_overdue_script(server: &Server) -> Result<(), OverdueScript> {
    match server.scripting.running.overdue_holder(None) {
        Some(run) => Err(OverdueScript::of_run(&run)),
        None => Ok(()),
    }
}

/// The file to which a rewrite switches at its moment.
pub(super) enum NextIncrement {
    /// No write is logged.
    NoLog,
    /// An increment for an appender that is in use.
    Increment(Arc<Mutex<AofAppender>>, File),
    /// A temporary increment while the file is being switched on. No manifest names it yet.
    Temporary(Arc<Mutex<AofAppender>>, File),
    /// The first increment, of an appender that has written nothing yet.
    First(Arc<Mutex<AofAppender>>),
}

impl NextIncrement {
    /// The phase in which it was prepared. If the phase has changed by the end of the rewrite, the new base is
    /// unusable.
    fn phase(&self) -> AofState {
        match self {
            NextIncrement::NoLog => AofState::Off,
            NextIncrement::Increment(..) => AofState::On,
            NextIncrement::Temporary(..) | NextIncrement::First(_) => AofState::WritingBase,
        }
    }
}

pub(super) fn temporary_increment(place: &AofLocation) -> (String, FixedPath) {
    let name = format!("temp-{}.incr", place.filename);
    let path = place.path(&name);
    (name, path)
}

fn temporary_base(place: &AofLocation) -> FixedPath {
    let directory = place.directory.directory();
    directory.file(format!("temp-rewriteaof-bg-{}.aof", std::process::id()))
}

/// Starts a rewrite for a client, which does not wait for a script that may never end. It waits for exclusive mode, so
/// workers must not call it.
///
/// # Errors
/// If it cannot start now.
pub fn start_rewrite(server: &Arc<Server>) -> Result<(), RewriteError> {
    // Before anything is prepared. While the rewrite is prepared, a script may become overdue nevertheless.
    check_no_overdue_script(server).map_err(RewriteError::ScriptBusy)?;
    start_claimed_rewrite(server, claim_rewrite(server)?)
}

/// Claims the next snapshot. A rewrite does so before it prepares anything: of two that start together only one may
/// change the manifest.
fn claim_rewrite(server: &Arc<Server>) -> Result<SnapshotClaim<'_>, RewriteError> {
    SnapshotClaim::new(server, SnapshotPurpose::AofBase).map_err(RewriteError::Busy)
}

fn start_claimed_rewrite(server: &Arc<Server>, claim: SnapshotClaim<'_>) -> Result<(), RewriteError> {
    let place = AofLocation::from_config(&server.config);
    let begun = prepare_increment(server, &place).and_then(|next| start(server, claim, next, place));
    if matches!(begun, Err(RewriteError::Failed)) {
        server
            .persistence
            .aof
            .last_rewrite_failed
            .store(true, Ordering::Relaxed);
    }
    begun
}

/// Creates the increment that follows the snapshot.
fn prepare_increment(server: &Arc<Server>, place: &AofLocation) -> Result<NextIncrement, RewriteError> {
    let failed = |AofFailed| RewriteError::Failed;
    place.make_directory().map_err(failed)?;
    sync_current_increment(server);
    let files = &mut *server.persistence.aof_files.lock();
    let (next, name) = match (server.persistence.aof.state(), &files.appender) {
        (AofState::Off, _) => return Ok(NextIncrement::NoLog),
        (AofState::On, Some(appender)) => {
            let mut manifest = files.manifest.clone();
            let name = manifest.begin_increment(&place.filename);
            let file = open_fresh(place, &name).map_err(failed)?;
            if let Err(error) = place.try_store(&mut manifest) {
                if error.is_replaced() {
                    // The log stays in the previous increment. If this store fails too, a start skips the empty
                    // increment.
                    files.manifest.mark_changed();
                    let _ = place.store(&mut files.manifest);
                }
                return Err(RewriteError::Failed);
            }
            let next = NextIncrement::Increment(appender.clone(), file);
            files.manifest = manifest;
            (next, name)
        }
        (_, appending) => {
            let next = create_temporary_increment(server, place, appending.as_ref()).map_err(failed)?;
            (next, temporary_increment(place).0)
        }
    };
    log::notice!("Creating AOF incr file {name} on background rewrite");
    Ok(next)
}

/// Creates an increment that no manifest names yet. `appending` is the appender in use, if there is one.
pub(super) fn create_temporary_increment(
    server: &Arc<Server>,
    place: &AofLocation,
    appending: Option<&Arc<Mutex<AofAppender>>>,
) -> Result<NextIncrement, AofFailed> {
    let file = open_fresh(place, &temporary_increment(place).0)?;
    Ok(match appending {
        Some(appender) => NextIncrement::Temporary(appender.clone(), file),
        None => NextIncrement::First(start_appender(server, file)?),
    })
}

fn open_fresh(place: &AofLocation, name: &str) -> Result<File, AofFailed> {
    open(place.path(name).as_path(), true).map_err(|error| {
        log::warning!("Can't open the append-only file {name}: {}", error_text(&error));
        AofFailed
    })
}

/// Syncs what the current increment contains, so that little is left when the log thread has to sync it at the mark.
///
/// Linux reports an error of writing data back once for each open file description. A sync of the appender's
/// description would take the error away: the next sync of the log thread or the sync thread would succeed although
/// acknowledged writes are lost. So this function opens the file again, and omits the sync where there is no `/proc`.
fn sync_current_increment(server: &Server) {
    let appender = server.persistence.aof_files.lock().appender.clone();
    let Some(file) = appender.map(|appender| appender.lock().file()) else {
        return;
    };
    if let Ok(reopened) = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())) {
        // The thread that syncs the appender's description gets this error too, and reports it.
        let _ = weft_os::disk::sync_data(&reopened);
    }
}

fn start(
    server: &Arc<Server>,
    mut claim: SnapshotClaim<'_>,
    next: NextIncrement,
    place: AofLocation,
) -> Result<(), RewriteError> {
    let as_dump = server.config.boolean(id::AOF_USE_RDB_PREAMBLE);
    let incremental = server.config.boolean(id::AOF_REWRITE_INCREMENTAL_FSYNC);
    if let NextIncrement::First(appender) = &next {
        server.persistence.aof_files.lock().appender = Some(appender.clone());
    }
    let phase = next.phase();
    // If the snapshot is not taken, the log must continue in the increment nevertheless.
    let next = Arc::new(Mutex::new(Some(next)));
    let (unused, unused_at_end) = (next.clone(), next.clone());
    let (for_base, base) = (server.clone(), temporary_base(&place));
    let order = SnapshotRequest {
        purpose: SnapshotPurpose::AofBase,
        slots: None,
        format: RdbFormat::Newest,
        module_form: match as_dump {
            true => ModuleRecordForm::Values,
            false => ModuleRecordForm::Commands,
        },
        consumer: Box::new(move || {
            let name = format!("temp-rewriteaof-{}.aof", std::process::id());
            let temporary = base.directory().file(name);
            let written = base.clone();
            let afterwards = Box::new(move || convert_base(&for_base.config, &written, as_dump));
            FileConsumer::create(temporary, base, RdbFilePurpose::AofBase, incremental, afterwards)
        }),
        at_moment: Box::new(move |moment| {
            moment.server.persistence.aof.begin_base();
            note_background_start(moment.server, PersistenceStep::AofStart);
            // The file may have been switched off since the increment was created. Nothing may be logged then.
            let log_start = moment.server.persistence.aof.log_start.lock();
            if is_logged_in(moment.server, phase)
                && let Some(next) = next.lock().take()
            {
                use_increment(moment.server, next);
            }
            drop(log_start);
            Box::new(Vec::new)
        }),
        at_end: Box::new(move |server, summary, ending| {
            forget_unused_appender(server, &unused_at_end);
            finish_rewrite(server, summary, ending, &place, phase, as_dump);
        }),
    };
    let status = &server.persistence.aof;
    status.rewriting_since_s.store(unix_ms() / 1000, Ordering::Relaxed);
    // Before the start: the rewrite may fail, and schedule the next one, before this thread goes on.
    let was_scheduled = status.is_rewrite_scheduled.swap(false, Ordering::Relaxed);
    match start_snapshot(&mut claim, order) {
        Ok(thread) => {
            status.rewrites.fetch_add(1, Ordering::Relaxed);
            log::notice!("Background append only file rewriting started by pid {thread}");
            Ok(())
        }
        // The claim is released after this: the next rewrite must not start before everything is reset.
        Err(error) => {
            status.is_rewrite_scheduled.fetch_or(was_scheduled, Ordering::Relaxed);
            status.rewriting_since_s.store(0, Ordering::Relaxed);
            match unused.lock().take() {
                // The manifest already names the increment, after the one that is being written.
                Some(NextIncrement::Increment(appender, file)) => schedule_switch(server, appender, file, true),
                // The appender is not registered with the log. The next rewrite has to create a first one again.
                Some(NextIncrement::First(_)) => server.persistence.aof_files.lock().appender = None,
                Some(NextIncrement::Temporary(..) | NextIncrement::NoLog) | None => {}
            }
            Err(error)
        }
    }
}

/// Starts the snapshot of a rewrite. Returns the id of its thread.
fn start_snapshot(claim: &mut SnapshotClaim<'_>, order: SnapshotRequest) -> Result<i32, RewriteError> {
    claim.start(order).map_err(|error| match error {
        SnapshotStartError::ScriptBusy(run) => RewriteError::ScriptBusy(OverdueScript::of_run(&run)),
        SnapshotStartError::System(error) => {
            log::warning!("Can't rewrite append only file in background: {error}");
            RewriteError::Failed
        }
    })
}

/// Excludes runs of scripts on script threads for a client. The caller ends the exclusion.
///
/// # Errors
/// A script that has become overdue meanwhile.
pub(super) fn exclude_scripts(server: &Server) -> Result<(), OverdueScript> {
    let excluded = server.scripting.running.exclude_runs_for_client();
    excluded.map_err(|run| OverdueScript::of_run(&run))
}

/// Removes a first appender to which the log was not switched, because the file was switched off while the rewrite was
/// being prepared. The next rewrite has to create a first one again. Called before the next snapshot can start.
fn forget_unused_appender(server: &Server, next: &Mutex<Option<NextIncrement>>) {
    let unused = next.lock().take();
    if let Some(NextIncrement::First(unused)) = unused {
        let files = &mut *server.persistence.aof_files.lock();
        if files
            .appender
            .as_ref()
            .is_some_and(|appender| Arc::ptr_eq(appender, &unused))
        {
            files.appender = None;
        }
    }
}

/// Returns `true` if the state of the file is still the one in which an increment was created. In exclusive mode the
/// answer holds.
pub(super) fn is_logged_in(server: &Server, phase: AofState) -> bool {
    let status = &server.persistence.aof;
    status.state() == phase && !status.is_switching_off.load(Ordering::Relaxed)
}

/// Switches the log to the next increment at the snapshot's moment.
pub(super) fn use_increment(server: &Server, next: NextIncrement) {
    match next {
        NextIncrement::NoLog => {}
        NextIncrement::First(appender) => begin_logging(server, &appender),
        NextIncrement::Increment(appender, file) => switch_file(server, appender, file, true),
        NextIncrement::Temporary(appender, file) => switch_file(server, appender, file, false),
    }
}

/// Switches to another file. After a full synchronisation, which stops the logging, this resumes it.
fn switch_file(server: &Server, appender: Arc<Mutex<AofAppender>>, file: File, is_named: bool) {
    schedule_switch(server, appender, file, is_named);
    if !server.keyspace.hooks.current().intersects(Hooks::LOG_FILE) {
        server.keyspace.hooks.set(Hooks::LOG_FILE, true);
    }
}

fn schedule_switch(server: &Server, appender: Arc<Mutex<AofAppender>>, file: File, is_named: bool) {
    server.propagation.schedule_mark(move |consumers| {
        appender.lock().switch_file(file, is_named);
        consumers.force_select(FILE_CONSUMER);
    });
}

/// Converts a base that was written as an RDB file into commands, unless RDB is the wanted format.
fn convert_base(config: &Config, base: &FixedPath, as_dump: bool) -> Result<(), ConsumerError> {
    if !as_dump {
        let dump = base.with_extension("rdb");
        std::fs::rename(base, &dump)?;
        let written = rewrite_to_commands(dump.as_path(), base.as_path(), config);
        // No longer needed; if it cannot be removed, it does no harm.
        let _ = std::fs::remove_file(&dump);
        written?;
    }
    log::notice!("Successfully created the temporary AOF base file {}", base.display());
    Ok(())
}

fn finish_rewrite(
    server: &Arc<Server>,
    summary: &SnapshotSummary,
    ending: SnapshotOutcome,
    place: &AofLocation,
    phase: AofState,
    as_dump: bool,
) {
    let status = &server.persistence.aof;
    assert!(
        status.rewriting_since_s.load(Ordering::Relaxed) > 0,
        "a rewrite that ends has begun"
    );
    let done = match ending {
        // The file was switched off or on meanwhile, or off and on. The increment that belongs to this base is not the
        // one being logged to.
        SnapshotOutcome::Done if status.state() != phase || server.persistence.snapshot.is_cancelled() => {
            log::warning!("Background AOF rewrite terminated by request");
            false
        }
        SnapshotOutcome::Done => {
            log::notice!("Background AOF rewrite terminated with success");
            install_base(server, place, phase, as_dump).is_ok()
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
    note_background_end(server, done);
    if done {
        status.failures.store(0, Ordering::Relaxed);
        status.last_rewrite_failed.store(false, Ordering::Relaxed);
        log::notice!("Background AOF rewrite finished successfully");
    } else {
        // Another rewrite uses another name; the rest does no harm.
        let _ = std::fs::remove_file(temporary_base(place));
    }
    // The phase in which this rewrite was started counts in what follows, not the current one: switching on while a
    // rewrite without a log ends begins the next one, which has files and a phase of its own.
    if !done && phase == AofState::WritingBase && status.state() == phase {
        let (name, path) = temporary_increment(place);
        log::notice!("Removing the temp incr aof file {name} in the background");
        let _ = std::fs::remove_file(path);
        status.is_rewrite_scheduled.store(true, Ordering::Relaxed);
    }
    if done {
        let is_first = phase == AofState::WritingBase;
        status.is_ending_first_rewrite.store(is_first, Ordering::Release);
        // From now on the increments behind the base count.
        status.finish_base();
        if phase == AofState::WritingBase && status.state() == phase {
            // If this base is outdated, the next rewrite is scheduled.
            finish_switching_on(server);
        }
    }
    let took_s = (unix_ms() / 1000).saturating_sub(summary.started_s);
    status.last_rewrite_s.store(took_s as i64 + 1, Ordering::Relaxed);
    status.rewriting_since_s.store(0, Ordering::Relaxed);
    status.is_ending_first_rewrite.store(false, Ordering::Release);
    if done {
        // Threads that wait for the base find the rewrite ended.
        server.wake_log_waiters();
    }
}

/// Declares the append-only file complete. Replies wait for the log from now on. Earlier replies did not, and their
/// writes must be as safe as later ones once clients see the rewrite ended.
///
/// Returns `false` if the log does not continue the installed base: the file may have been switched off, or all data
/// replaced, while this thread waited for the end of scripts. The state then stays as it is, and if it is
/// [`AofState::WritingBase`], another rewrite is scheduled.
pub(super) fn finish_switching_on(server: &Server) -> bool {
    let status = &server.persistence.aof;
    let mut seat = server.keyspace.join_within(JOIN_TIMEOUT);
    server.scripting.running.exclude_runs();
    let is_complete = {
        // Writes from before have their place in the log. Without a free thread index there is no exclusive mode.
        let all = seat.as_mut().map(Seat::exclusive);
        let is_complete = all.is_some() && continues_base(server);
        if is_complete {
            status.set_state(AofState::On);
            server.update_reply_milestone();
        } else if is_logged_in(server, AofState::WritingBase) {
            // Switching off comes later and withdraws this.
            status.is_rewrite_scheduled.store(true, Ordering::Relaxed);
        }
        is_complete
    };
    server.scripting.running.end_exclusion();
    if !is_complete {
        let reason = match seat {
            Some(_) => "it was switched off, or its data was replaced, while its base was installed",
            None => "the keyspace has no free thread index",
        };
        log::warning!("The append-only file is not complete: {reason}");
        return false;
    }
    wait_until_written(server);
    if status.fsync() == FsyncPolicy::Always {
        let appender = server.persistence.aof_files.lock().appender.clone();
        if let Some(appender) = appender {
            appender.lock().finish();
        }
    }
    true
}

/// Returns `true` if the log continues the base that was installed last. In exclusive mode, while runs on script
/// threads are excluded, the answer holds.
///
/// The moment of a base sets the hook. Switching off and the replacement of all data clear it. So it is not set if the
/// file was switched off and on again, which brings back the state of the rewrite. DEBUG LOADAOF, which clears the hook
/// while it loads the file, excludes runs, too.
fn continues_base(server: &Server) -> bool {
    is_logged_in(server, AofState::WritingBase)
        && server.keyspace.hooks.current().intersects(Hooks::LOG_FILE)
        && server.persistence.aof.has_base_of_present_data()
}

/// Renames the new base to its final name, and turns the replaced files into history.
fn install_base(server: &Server, place: &AofLocation, phase: AofState, as_dump: bool) -> Result<(), AofFailed> {
    let status = &server.persistence.aof;
    let base = NewBase::written(temporary_base(place));
    let published = rename_files(server, place, phase, as_dump, &base).map(drop);
    if published.is_err() {
        status.failures.fetch_add(1, Ordering::Relaxed);
        status.last_rewrite_failed.store(true, Ordering::Relaxed);
    }
    published
}

/// A complete file that is to become the base.
pub(super) struct NewBase {
    path: FixedPath,
    /// The file that must be at `path`, if another process or thread may have replaced it.
    file: Option<File>,
}

impl NewBase {
    /// A base that a rewrite has written.
    fn written(path: FixedPath) -> Self {
        NewBase { path, file: None }
    }

    /// A file under a name at which it may have been replaced by another one.
    pub fn loaded(path: FixedPath, file: File) -> Self {
        let file = Some(file);
        NewBase { path, file }
    }

    /// Returns `true` if the expected file has been renamed to `path`.
    fn is_at(&self, path: &Path) -> std::io::Result<bool> {
        let Some(file) = &self.file else { return Ok(true) };
        let (expected, found) = (file.metadata()?, std::fs::metadata(path)?);
        Ok((expected.dev(), expected.ino()) == (found.dev(), found.ino()))
    }
}

/// Renames a new base and its increment to their final names, stores the manifest, and deletes the replaced files.
/// Returns the name of the base. After an error the base has its old name again.
pub(super) fn rename_files(
    server: &Server,
    place: &AofLocation,
    phase: AofState,
    as_dump: bool,
    new_base: &NewBase,
) -> Result<String, AofFailed> {
    let files = &mut *server.persistence.aof_files.lock();
    let mut manifest = files.manifest.clone();
    let temporary = new_base.path.display();
    let base = manifest.begin_base(&place.filename, as_dump);
    let base_path = place.path(&base);
    std::fs::rename(&new_base.path, &base_path).map_err(|error| {
        let (path, reason) = (base_path.display(), error_text(&error));
        log::warning!("Error trying to rename the temporary AOF base file {temporary} into {path}: {reason}");
        AofFailed
    })?;
    // The name is free again. If the file cannot be renamed back, it does no harm.
    let undo = || drop(std::fs::rename(&base_path, &new_base.path));
    if !new_base.is_at(base_path.as_path()).unwrap_or(false) {
        log::warning!("The file {temporary} has been replaced by another one");
        undo();
        return Err(AofFailed);
    }
    log::notice!("Successfully renamed the temporary AOF base file {temporary} into {base}");
    if phase == AofState::WritingBase {
        let (name, path) = temporary_increment(place);
        let increment = manifest.begin_increment(&place.filename);
        let new_path = place.path(&increment);
        std::fs::rename(&path, &new_path).map_err(|error| {
            let (old, new, reason) = (path.display(), new_path.display(), error_text(&error));
            log::warning!("Error trying to rename the temporary AOF incr file {old} into {new}: {reason}");
            undo();
            AofFailed
        })?;
        log::notice!("Successfully renamed the temporary AOF incr file {name} into {increment}");
    }
    manifest.retire_increments(phase != AofState::Off);
    assert!(
        manifest.increments.len() <= 1,
        "behind a new base there is at most the increment that is being written"
    );
    if let Err(error) = place.try_store(&mut manifest) {
        if error.is_replaced() {
            // After a power failure either manifest may be in the directory, so the files of both stay.
            files.manifest = manifest;
        } else {
            undo();
        }
        return Err(AofFailed);
    }
    update_sizes(server, place, &manifest, &base);
    if let Some(appender) = &files.appender {
        appender.lock().discard_unwritten();
    }
    files.manifest = manifest;
    delete_history(server, place, &mut files.manifest);
    Ok(base)
}

fn update_sizes(server: &Server, place: &AofLocation, manifest: &Manifest, base: &str) {
    if server.persistence.aof.state() == AofState::Off {
        return;
    }
    let size = |name: &str| std::fs::metadata(place.path(name)).map_or(0, |metadata| metadata.len());
    let increments: u64 = manifest.increments.iter().map(|part| size(&part.name)).sum();
    let bytes = size(base) + increments;
    server.persistence.aof.current_bytes.store(bytes, Ordering::Relaxed);
    server.persistence.aof.base_bytes.store(bytes, Ordering::Relaxed);
}

// ---- automatic rewrites --------------------------------------------------------------------------------------------
/// Starts a rewrite if one is due, because it was scheduled or the files have grown. Called by the cron. A background
/// thread starts it. While a script is overdue the rewrite stays due: it would keep that thread, and all other
/// snapshots, waiting for a script that may never end.
pub fn start_due_rewrite(server: &Arc<Server>) {
    let status = &server.persistence.aof;
    if server.persistence.snapshot.purpose().is_some()
        || status.is_rewrite_requested.load(Ordering::Relaxed)
        || server.scripting.running.has_overdue()
        || !is_rewrite_due(server)
    {
        return;
    }
    status.is_rewrite_requested.store(true, Ordering::Relaxed);
    let job: BackgroundJob = Box::new(|server, _| {
        // If another snapshot is running, data is missing or a script is overdue since the cron checked, the rewrite
        // stays due. Failures have been logged.
        if let Ok(claim) = claim_rewrite(server)
            && !server.must_keep_data_files()
        {
            let _ = start_claimed_rewrite(server, claim);
        }
        server
            .persistence
            .aof
            .is_rewrite_requested
            .store(false, Ordering::Relaxed);
    });
    // The receiving threads end only at shutdown.
    let _ = server.background.long_commands.send(job);
}

fn is_rewrite_due(server: &Server) -> bool {
    let status = &server.persistence.aof;
    if status.is_rewrite_scheduled.load(Ordering::Relaxed) {
        return !is_limited(server);
    }
    let percentage = server.config.unsigned(id::AUTO_AOF_REWRITE_PERCENTAGE);
    let current = status.current_bytes.load(Ordering::Relaxed);
    let large = current > server.config.unsigned(id::AUTO_AOF_REWRITE_MIN_SIZE);
    if status.state() != AofState::On || percentage == 0 || !large || is_limited(server) {
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
    let status = &server.persistence.aof;
    let failures = status.failures.load(Ordering::Relaxed);
    if failures < MAX_FAILURES {
        status.retry_after_s.store(0, Ordering::Relaxed);
        status.retry_delay_s.store(0, Ordering::Relaxed);
        return false;
    }
    let now_s = unix_ms() / 1000;
    match status.retry_after_s.load(Ordering::Relaxed) {
        0 => {}
        at_s if now_s < at_s => return true,
        _ => {
            status.retry_after_s.store(0, Ordering::Relaxed);
            return false;
        }
    }
    let delay_s = match status.retry_delay_s.load(Ordering::Relaxed) {
        0 => 60,
        last_s => (last_s * 2).min(MAX_DELAY_S),
    };
    status.retry_delay_s.store(delay_s, Ordering::Relaxed);
    status.retry_after_s.store(now_s + delay_s, Ordering::Relaxed);
    log::warning!(
        "Background AOF rewrite has repeatedly failed and triggered the limit, will retry in {} minutes",
        delay_s / 60
    );
    true
}

#[cfg(test)]
mod tests;
