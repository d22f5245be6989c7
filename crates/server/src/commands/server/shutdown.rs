//! SHUTDOWN.

use crate::commands::context::{Binding, CommandResult, Context, NextStep, leased};
use crate::commands::error::CommandError;
use crate::commands::scripting::script::busy_with;
use crate::persistence::save;
use crate::runtime::shutdown::{Save, Shutdown};

/// SHUTDOWN.
pub const BINDINGS: &[(&str, Binding)] = &[("shutdown", leased(shutdown))];

#[derive(Default)]
struct Options {
    save: bool,
    no_save: bool,
    now: bool,
    force: bool,
    safe: bool,
    failover: bool,
    abort: bool,
}

impl Options {
    fn parse<'a>(words: impl Iterator<Item = &'a [u8]>) -> Result<Options, CommandError> {
        let mut options = Options::default();
        let mut count = 0;
        for word in words {
            count += 1;
            let option = match word.to_ascii_lowercase().as_slice() {
                b"save" => &mut options.save,
                b"nosave" => &mut options.no_save,
                b"now" => &mut options.now,
                b"force" => &mut options.force,
                b"safe" => &mut options.safe,
                b"failover" => &mut options.failover,
                b"abort" => &mut options.abort,
                _ => return Err(CommandError::SYNTAX),
            };
            *option = true;
        }
        match (options.save && options.no_save) || (options.abort && count > 1) {
            true => Err(CommandError::SYNTAX),
            false => Ok(options),
        }
    }
}

fn shutdown(ctx: &mut Context<'_, '_>) -> CommandResult {
    let options = Options::parse(ctx.args.iter().skip(1))?;
    if options.abort {
        if !save::abort_shutdown(ctx.server) {
            return Err(CommandError::constant("ERR No shutdown in progress."));
        }
        ctx.reply.ok();
        return Ok(());
    }
    // A save would wait for the script.
    let no_save_alone = options.no_save && ctx.argc() == 2;
    if let Some(run) = ctx
        .server
        .scripting
        .running
        .overdue_holder(None)
        .filter(|_| !no_save_alone)
    {
        return Err(busy_with(&run));
    }
    let description = ctx.client.list_line(ctx.now_ms, Default::default());
    let how = Shutdown {
        save: match (options.save, options.no_save) {
            (true, _) => Save::Always,
            (false, true) => Save::Never,
            (false, false) => Save::IfConfigured,
        },
        now: options.now,
        force: options.force,
        safe: options.safe,
        failover: options.failover,
        requested_by: Some(String::from_utf8_lossy(&description).into_owned()),
    };
    save::begin_shutdown(ctx.server, how);
    // If all goes well there is no reply: the connection ends with the process.
    let stays = b"-ERR Errors trying to SHUTDOWN. Check logs.\r\n".to_vec();
    ctx.after = NextStep::ReplyAt(Box::new((u64::MAX, stays)));
    Ok(())
}
