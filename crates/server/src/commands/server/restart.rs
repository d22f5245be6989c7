//! DEBUG RESTART and DEBUG CRASH-AND-RECOVER.

use std::time::Duration;

use weft_base::files::error_text;
use weft_config::{RewriteScope, id};
use weft_resp::number::parse_i64;

use super::{config, module_parameters};
use crate::commands::context::{CommandResult, Context, NextStep};
use crate::commands::error::CommandError;
use crate::observability::log;
use crate::persistence::save;
use crate::runtime::process::restart as process_restart;
use crate::runtime::shutdown::ShutdownOptions;

/// The reply if the process cannot be replaced, and that of a client whose restart was aborted.
const NOT_RESTARTED: &str = "ERR failed to restart the server. Check server logs.";

/// Executes `DEBUG RESTART [delay-ms]`: rewrites the configuration file, shuts down as `SHUTDOWN NOW` does, and starts
/// the program again in this process.
pub fn restart(ctx: &mut Context<'_, '_>) -> CommandResult {
    let delay = restart_delay(ctx)?;
    if !process_restart::is_possible() {
        return Err(CommandError::constant(NOT_RESTARTED));
    }
    let server = ctx.server;
    if server.config.file().is_some() {
        // The thread of another change may wait for exclusive mode, and so for this passage of the gate to end.
        let _change = match server.config.try_begin_change() {
            Some(change) => change,
            None if ctx.may_block => {
                ctx.next_step = NextStep::Defer;
                return Ok(());
            }
            None => return Err(config::CHANGE_UNDER_WAY),
        };
        let settings = module_parameters::for_file(ctx)?;
        if config::rewrite_file(server, RewriteScope::ChangedOnly, settings).is_err() {
            return Err(CommandError::constant(NOT_RESTARTED));
        }
    }
    let hides_user_data = ctx.server.config.boolean(id::HIDE_USER_DATA_FROM_LOG);
    let description = ctx.client.short_log_line(hides_user_data);
    save::begin_shutdown(
        ctx.server,
        ShutdownOptions {
            is_immediate: true,
            restart_after: Some(delay),
            requested_by: Some(description),
            ..Default::default()
        },
    );
    let stays = format!("-{NOT_RESTARTED}\r\n").into_bytes();
    ctx.next_step = NextStep::ReplyAt(Box::new((u64::MAX, stays)));
    Ok(())
}

/// Executes `DEBUG CRASH-AND-RECOVER [delay-ms]`: starts the program again in this process, without a shutdown.
pub fn crash_and_recover(ctx: &mut Context<'_, '_>) -> CommandResult {
    let delay = restart_delay(ctx)?;
    if process_restart::is_possible()
        && let Err(error) = process_restart::execute_again(delay)
    {
        log::warning!("Can't restart: {}", error_text(&error));
    }
    Err(CommandError::constant(NOT_RESTARTED))
}

/// Returns the time that passes before the program starts again.
fn restart_delay(ctx: &Context<'_, '_>) -> Result<Duration, CommandError> {
    if ctx.argc() < 3 {
        return Ok(Duration::ZERO);
    }
    let delay_ms = parse_i64(ctx.arg(2)).ok_or(CommandError::NOT_AN_INTEGER)?;
    Ok(Duration::from_millis(u64::try_from(delay_ms).unwrap_or(0)))
}
