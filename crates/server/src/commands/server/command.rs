//! COMMAND: describes the commands by their metadata.

use crate::commands::context::{Binding, CommandResult, Context, leased};
use crate::commands::registry;
use crate::commands::server::command_info;

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
    command_info::keys(registry(), &ctx.args, &mut ctx.reply);
    Ok(())
}

fn keys_and_flags(ctx: &mut Context<'_, '_>) -> CommandResult {
    command_info::keys_and_flags(registry(), &ctx.args, &mut ctx.reply);
    Ok(())
}

fn help(ctx: &mut Context<'_, '_>) -> CommandResult {
    ctx.reply_with_lines(command_info::HELP)
}
