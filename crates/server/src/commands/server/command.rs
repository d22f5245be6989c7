//! COMMAND: what the commands are, from their metadata.

use weft_resp::{Args, Reply};

use crate::commands::command_info::{self, Sink};
use crate::commands::context::{Binding, CommandResult, Context, leased};
use crate::commands::registry;

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

impl Sink for Reply<'_> {
    fn array(&mut self, len: usize) {
        Reply::array(self, len);
    }
    fn map(&mut self, len: usize) {
        Reply::map(self, len);
    }
    fn set(&mut self, len: usize) {
        Reply::set(self, len);
    }
    fn bulk(&mut self, bytes: &[u8]) {
        Reply::bulk(self, bytes);
    }
    fn simple(&mut self, text: &str) {
        Reply::simple(self, text);
    }
    fn integer(&mut self, value: i64) {
        Reply::integer(self, value);
    }
    fn null(&mut self) {
        Reply::null_array(self);
    }
    fn error(&mut self, text: &str) {
        Reply::error(self, text);
    }
}

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
    let args: &Args<'_> = &ctx.args;
    command_info::list(
        registry(),
        args,
        |pattern, name| weft_resp::glob::matches(pattern, name, true),
        &mut ctx.reply,
    );
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
    command_info::help(&mut ctx.reply);
    Ok(())
}
