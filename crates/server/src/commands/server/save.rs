//! SAVE, BGSAVE and LASTSAVE.

use crate::commands::context::{Binding, CommandResult, Context, build_reply, leased};
use crate::commands::error::CommandError;
use crate::commands::scripting::script::{busy_error, busy_reply_of_run};
use crate::observability::log;
use crate::persistence::aof;
use crate::persistence::aof::RewriteError;
use crate::persistence::save;
use crate::persistence::save::{BackgroundSaveError, ForegroundSaveError};
use crate::persistence::snapshot_state::SnapshotPurpose;
use crate::state::Server;
use weft_os::atomic::Ordering;
use weft_resp::Protocol;

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("bgrewriteaof", leased(bgrewriteaof)),
    ("bgsave", leased(bgsave)),
    ("lastsave", leased(last_save)),
    ("save", leased(save)),
];

const SAVE_IN_PROGRESS: &str = "ERR Background save already in progress";
const AOF_REWRITE_IN_PROGRESS: &str = "ERR Another child process is active (AOF?): can't BGSAVE right now. Use BGSAVE SCHEDULE \
                                 in order to schedule a BGSAVE whenever possible.";

/// Executes SAVE on a background thread. All other commands wait while the dump is written.
fn save(ctx: &mut Context<'_, '_>) -> CommandResult {
    if save::is_background_save_running(ctx.server) {
        return Err(CommandError::constant(SAVE_IN_PROGRESS));
    }
    ctx.reply_from_background(|server, seat| match save::save_in_foreground(server, seat) {
        Ok(()) => b"+OK\r\n".to_vec(),
        Err(ForegroundSaveError::Busy) => format!("-{SAVE_IN_PROGRESS}\r\n").into_bytes(),
        Err(ForegroundSaveError::ScriptBusy(run)) => busy_reply_of_run(&server.config, &run),
        Err(ForegroundSaveError::Failed) => b"-ERR\r\n".to_vec(),
    });
    Ok(())
}

fn bgsave(ctx: &mut Context<'_, '_>) -> CommandResult {
    let schedule = match (ctx.argc(), ctx.arg(1)) {
        (1, _) => false,
        (2, word) if word.eq_ignore_ascii_case(b"schedule") => true,
        (2, word) if word.eq_ignore_ascii_case(b"cancel") => return cancel_save(ctx),
        _ => return Err(CommandError::SYNTAX),
    };
    let within = !ctx.may_block;
    if save::is_background_save_running(ctx.server) {
        return Err(CommandError::constant(SAVE_IN_PROGRESS));
    }
    if within || (schedule && ctx.server.persistence.snapshot.purpose().is_some()) {
        self::schedule_save(ctx.server, within && !schedule);
        ctx.reply.simple("Background saving scheduled");
        return Ok(());
    }
    ctx.reply_from_background(move |server, _| {
        let reply: &str = match save::start_background_save(server) {
            Ok(()) => "+Background saving started",
            Err(BackgroundSaveError::Busy(SnapshotPurpose::AofBase | SnapshotPurpose::SlotMigration)) if schedule => {
                self::schedule_save(server, false);
                "+Background saving scheduled"
            }
            Err(BackgroundSaveError::Busy(SnapshotPurpose::AofBase | SnapshotPurpose::SlotMigration)) => {
                return format!("-{AOF_REWRITE_IN_PROGRESS}\r\n").into_bytes();
            }
            Err(BackgroundSaveError::Busy(SnapshotPurpose::RdbFile | SnapshotPurpose::Replicas)) => {
                return format!("-{SAVE_IN_PROGRESS}\r\n").into_bytes();
            }
            Err(BackgroundSaveError::ScriptBusy { is_function }) => {
                let error = busy_error(&server.config, is_function);
                return build_reply(Protocol::Resp2, |reply| reply.error_bytes(&error.0));
            }
            Err(BackgroundSaveError::Failed) => "-ERR",
        };
        format!("{reply}\r\n").into_bytes()
    });
    Ok(())
}

fn bgrewriteaof(ctx: &mut Context<'_, '_>) -> CommandResult {
    const REWRITE_IN_PROGRESS: &str = "ERR Background append only file rewriting already in progress";
    const SCHEDULED: &str = "+Background append only file rewriting scheduled\r\n";
    let schedule = |server: &Server| {
        server
            .persistence
            .aof
            .is_rewrite_scheduled
            .store(true, Ordering::Relaxed);
        // A requested rewrite is not delayed by earlier failures.
        server.persistence.aof.failures.store(0, Ordering::Relaxed);
        log::notice!("Background append only file rewriting scheduled.");
    };
    match ctx.server.persistence.snapshot.purpose() {
        Some(SnapshotPurpose::AofBase) => return Err(CommandError::constant(REWRITE_IN_PROGRESS)),
        Some(SnapshotPurpose::RdbFile | SnapshotPurpose::Replicas | SnapshotPurpose::SlotMigration) => {
            schedule(ctx.server);
            ctx.reply.raw(SCHEDULED.as_bytes());
            return Ok(());
        }
        None if !ctx.may_block => {
            schedule(ctx.server);
            ctx.reply.raw(SCHEDULED.as_bytes());
            return Ok(());
        }
        None => {}
    }
    ctx.reply_from_background(move |server, _| {
        let reply = match aof::start_rewrite(server) {
            Ok(()) => "+Background append only file rewriting started\r\n".to_owned(),
            Err(RewriteError::Busy(SnapshotPurpose::AofBase)) => format!("-{REWRITE_IN_PROGRESS}\r\n"),
            Err(RewriteError::Busy(_)) => {
                schedule(server);
                SCHEDULED.to_owned()
            }
            Err(RewriteError::ScriptBusy(script)) => {
                let error = busy_error(&server.config, script.is_function);
                return build_reply(Protocol::Resp2, |reply| reply.error_bytes(&error.0));
            }
            Err(RewriteError::Failed) => {
                "-ERR Can't execute an AOF background rewriting. Please check the server logs for more information.\r\n"
                    .to_owned()
            }
        };
        reply.into_bytes()
    });
    Ok(())
}

/// Schedules a background save, which the cron then begins.
fn schedule_save(server: &Server, is_after_transaction: bool) {
    server.persistence.dumps.is_scheduled.store(true, Ordering::Relaxed);
    if is_after_transaction {
        log::notice!("Background saving scheduled to run after transaction execution");
    } else {
        log::notice!("Background saving scheduled due to user request");
    }
}

fn cancel_save(ctx: &mut Context<'_, '_>) -> CommandResult {
    let Some(what) = save::cancel_background_save(ctx.server) else {
        return Err(CommandError::constant(
            "ERR Background saving is currently not in progress or scheduled",
        ));
    };
    ctx.reply.simple(what);
    Ok(())
}

/// Executes LASTSAVE. Before the first dump, the reply is the start time of the server.
fn last_save(ctx: &mut Context<'_, '_>) -> CommandResult {
    let at_s = ctx.server.persistence.dumps.last_save_s.load(Ordering::Relaxed);
    ctx.reply.integer(at_s as i64);
    Ok(())
}
