//! SHUTDOWN.

use crate::commands::context::{Binding, CommandResult, Context, NextStep, leased};
use crate::commands::error::CommandError;
use crate::commands::scripting::script::busy_error_of_run;
use crate::persistence::save;
use crate::runtime::shutdown::{SavePolicy, ShutdownOptions};
use weft_config::id;

/// SHUTDOWN.
pub const BINDINGS: &[(&str, Binding)] = &[("shutdown", leased(shutdown))];

#[derive(Default)]
struct ShutdownArguments {
    has_save: bool,
    has_no_save: bool,
    is_immediate: bool,
    is_forced: bool,
    is_safe: bool,
    requests_failover: bool,
    is_abort: bool,
}

impl ShutdownArguments {
    fn parse<'a>(words: impl Iterator<Item = &'a [u8]>) -> Result<ShutdownArguments, CommandError> {
        let mut options = ShutdownArguments::default();
        let mut has_others = false;
        for word in words {
            let option = match word.to_ascii_lowercase().as_slice() {
                b"save" => &mut options.has_save,
                b"nosave" => &mut options.has_no_save,
                b"now" => &mut options.is_immediate,
                b"force" => &mut options.is_forced,
                b"safe" => &mut options.is_safe,
                b"failover" => &mut options.requests_failover,
                b"abort" => &mut options.is_abort,
                _ => return Err(CommandError::SYNTAX),
            };
            *option = true;
            has_others |= !word.eq_ignore_ascii_case(b"abort");
        }
        match (options.has_save && options.has_no_save) || (options.is_abort && has_others) {
            true => Err(CommandError::SYNTAX),
            false => Ok(options),
        }
    }
}

fn shutdown(ctx: &mut Context<'_, '_>) -> CommandResult {
    let options = ShutdownArguments::parse(ctx.args.iter().skip(1))?;
    if options.requests_failover && ctx.server.cluster.is_none() {
        return Err(CommandError::constant(
            "ERR SHUTDOWN FAILOVER is only supported in cluster mode.",
        ));
    }
    if options.is_abort {
        if !save::abort_shutdown(ctx.server) {
            return Err(CommandError::constant("ERR No shutdown in progress."));
        }
        ctx.reply.ok();
        return Ok(());
    }
    // A save would wait for the script.
    if !options.has_no_save
        && let Some(run) = ctx.server.scripting.running.overdue_holder(None)
    {
        return Err(busy_error_of_run(&ctx.server.config, &run));
    }
    let hides_user_data = ctx.server.config.boolean(id::HIDE_USER_DATA_FROM_LOG);
    let description = ctx.client.short_log_line(hides_user_data);
    let shutdown = ShutdownOptions {
        save: match (options.has_save, options.has_no_save) {
            (true, _) => SavePolicy::Always,
            (false, true) => SavePolicy::Never,
            (false, false) => SavePolicy::IfConfigured,
        },
        is_immediate: options.is_immediate,
        is_forced: options.is_forced,
        is_safe: options.is_safe,
        requests_failover: options.requests_failover,
        is_failure: false,
        restart_after: None,
        requested_by: Some(description),
    };
    save::begin_shutdown(ctx.server, shutdown);
    // After a successful shutdown there is no reply: the connection ends with the process.
    let stays = b"-ERR Errors trying to SHUTDOWN. Check logs.\r\n".to_vec();
    ctx.next_step = NextStep::ReplyAt(Box::new((u64::MAX, stays)));
    Ok(())
}
