//! The server commands: one file per topic.

pub mod acl;
pub mod command;
pub mod command_info;
pub mod commandlog;
pub mod config;
pub mod debug;
pub mod digest;
mod elements;
pub mod info;
pub mod latency;
pub mod lolwut;
pub mod memory;
pub mod module_files;
pub mod module_parameters;
pub mod modules;
pub mod monitor;
mod populate;
pub mod replication;
mod restart;
pub mod save;
pub mod sections;
pub mod shutdown;
pub mod time;
pub mod weft;

use super::context::{CommandResult, Context};

/// Replies with a container's HELP: its usage line, then each topic's usage and description.
pub fn reply_with_help(ctx: &mut Context<'_, '_>, container: &str, topics: &[(&str, &str)]) -> CommandResult {
    let lines = topics.iter().map(|(_, text)| 1 + text.lines().count()).sum::<usize>();
    ctx.reply.array(lines + 3);
    ctx.reply.simple(&format!(
        "{container} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
    ));
    for (usage, text) in topics {
        ctx.reply.simple(usage);
        for line in text.lines() {
            ctx.reply.simple(&format!("    {line}"));
        }
    }
    ctx.reply.simple("HELP");
    ctx.reply.simple("    Print this help.");
    Ok(())
}
