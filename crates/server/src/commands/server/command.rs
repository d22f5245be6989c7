//! COMMAND: describes the commands by their metadata.

use crate::commands::context::{Binding, CommandResult, Context, leased};
use crate::commands::server::command_info;
use crate::commands::{module_commands, registry};

/// COMMAND and its subcommands.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("command", leased(all)),
    ("command|count", leased(count)),
    ("command|docs", leased(docs)),
    ("command|getkeys", leased(keys)),
    ("command|getkeysandflags", leased(keys_and_flags)),
    ("command|help", leased(help)),
    ("command|info", leased(info)),
    ("command|list", leased(list)),
];

fn all(ctx: &mut Context<'_, '_>) -> CommandResult {
    command_info::all(registry(), &mut ctx.reply);
    Ok(())
}

fn count(ctx: &mut Context<'_, '_>) -> CommandResult {
    command_info::count(registry(), &mut ctx.reply);
    Ok(())
}

fn info(ctx: &mut Context<'_, '_>) -> CommandResult {
    command_info::info(registry(), &ctx.args, &mut ctx.reply);
    Ok(())
}

fn docs(ctx: &mut Context<'_, '_>) -> CommandResult {
    command_info::docs(registry(), &ctx.args, &mut ctx.reply);
    Ok(())
}

fn list(ctx: &mut Context<'_, '_>) -> CommandResult {
    command_info::list(registry(), &ctx.args, &mut ctx.reply);
    Ok(())
}

fn keys(ctx: &mut Context<'_, '_>) -> CommandResult {
    match words_for_home(ctx) {
        None => command_info::keys(registry(), &ctx.args, &mut ctx.reply),
        Some(words) => module_commands::reply_at_home(ctx, move |_, reply| {
            command_info::keys(registry(), &*words, reply);
        }),
    }
    Ok(())
}

fn keys_and_flags(ctx: &mut Context<'_, '_>) -> CommandResult {
    match words_for_home(ctx) {
        None => command_info::keys_and_flags(registry(), &ctx.args, &mut ctx.reply),
        Some(words) => module_commands::reply_at_home(ctx, move |_, reply| {
            command_info::keys_and_flags(registry(), &*words, reply);
        }),
    }
    Ok(())
}

/// Returns the words of the request, if a module has to be asked for the keys on another thread, and the client can
/// wait for that.
fn words_for_home(ctx: &Context<'_, '_>) -> Option<Vec<Vec<u8>>> {
    let quoted: Vec<&[u8]> = ctx.args.iter().skip(2).collect();
    let must_wait = ctx.may_block && !quoted.is_empty() && module_commands::must_be_asked_at_home(&*quoted);
    must_wait.then(|| ctx.args.iter().map(<[u8]>::to_vec).collect())
}

fn help(ctx: &mut Context<'_, '_>) -> CommandResult {
    ctx.reply_with_lines(command_info::HELP)
}
