//! The subcommands of CLIENT that set or show the attributes of the calling connection.

use crate::commands::context::{CommandResult, Context};
use crate::commands::error::CommandError;
use crate::net::client::{ClientFlags, c_string_prefix};
use weft_config as config;

/// Rejects a name that would break the lines of CLIENT LIST.
///
/// # Errors
/// If a byte is not a visible ASCII character. Bytes after a zero byte are not checked, because no line shows them.
pub fn check_name(name: &[u8]) -> CommandResult {
    if is_valid_name(name) {
        return Ok(());
    }
    Err(CommandError::constant(
        "ERR Client names cannot contain spaces, newlines or special characters.",
    ))
}

/// Returns `true` if clients may have this name.
pub fn is_valid_name(name: &[u8]) -> bool {
    is_printable(name)
}

fn is_printable(value: &[u8]) -> bool {
    c_string_prefix(value).iter().all(u8::is_ascii_graphic)
}

pub(crate) fn name(ctx: &mut Context<'_, '_>) -> CommandResult {
    if ctx.client.name.is_empty() {
        ctx.reply.null();
    } else {
        ctx.reply.bulk(&ctx.client.name);
    }
    Ok(())
}

pub(crate) fn set_name(ctx: &mut Context<'_, '_>) -> CommandResult {
    let name = ctx.arg(2);
    check_name(name)?;
    ctx.client.name = name.to_vec();
    ctx.reply.ok();
    Ok(())
}

pub(crate) fn set_info(ctx: &mut Context<'_, '_>) -> CommandResult {
    let (attribute, value) = (ctx.arg(2), ctx.arg(3));
    let target = if attribute.eq_ignore_ascii_case(b"lib-name") {
        &mut ctx.client.lib_name
    } else if attribute.eq_ignore_ascii_case(b"lib-ver") {
        &mut ctx.client.lib_version
    } else {
        return Err(CommandError::with_word("ERR Unrecognized option '", attribute, "'"));
    };
    if !is_printable(value) {
        let reason = " cannot contain spaces, newlines or special characters.";
        return Err(CommandError::with_word("ERR ", attribute, reason));
    }
    *target = value.to_vec();
    ctx.reply.ok();
    Ok(())
}

pub(crate) fn capa(ctx: &mut Context<'_, '_>) -> CommandResult {
    // Unknown capabilities are ignored.
    for index in 2..ctx.argc() {
        if ctx.arg(index).eq_ignore_ascii_case(b"redirect") {
            ctx.client.flags.set(ClientFlags::CAPA_REDIRECT, true);
        }
    }
    ctx.reply.ok();
    Ok(())
}

pub(crate) fn no_evict(ctx: &mut Context<'_, '_>) -> CommandResult {
    set_flag_from_argument(ctx, ClientFlags::NO_EVICT)
}

pub(crate) fn no_touch(ctx: &mut Context<'_, '_>) -> CommandResult {
    set_flag_from_argument(ctx, ClientFlags::NO_TOUCH)
}

pub(crate) fn import_source(ctx: &mut Context<'_, '_>) -> CommandResult {
    let importing = ctx.server.config.boolean(config::id::IMPORT_MODE);
    if !importing && !ctx.arg(2).eq_ignore_ascii_case(b"off") {
        return Err(CommandError::constant("ERR Server is not in import mode"));
    }
    set_flag_from_argument(ctx, ClientFlags::IMPORT_SOURCE)
}

fn set_flag_from_argument(ctx: &mut Context<'_, '_>, flag: ClientFlags) -> CommandResult {
    let word = ctx.arg(2);
    let on = word.eq_ignore_ascii_case(b"on");
    if !on && !word.eq_ignore_ascii_case(b"off") {
        return Err(CommandError::SYNTAX);
    }
    ctx.client.flags.set(flag, on);
    ctx.reply.ok();
    Ok(())
}
