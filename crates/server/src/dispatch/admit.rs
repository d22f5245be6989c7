//! Every reason to refuse a command, in the order in which clients see them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use weft_resp::Args;

use crate::commands::context::Binding;
use crate::commands::error::{CommandError, shown, shown_name};
use crate::commands::registry::{Command, Lookup, Registry};
use crate::commands::spec::Flags;
use crate::config::id;
use crate::net::client::Client;
use crate::state::Server;

use super::tunables::Tunables;

/// What becomes of a command before it may run.
pub enum Admission {
    /// It runs.
    Run,
    /// It waits for the end of CLIENT PAUSE.
    Paused,
    /// It is refused.
    Refused(CommandError),
}

/// Decides about a command that exists and has an acceptable number of arguments.
#[inline]
pub fn admit(
    server: &Arc<Server>,
    client: &Client,
    command: &'static Command<Binding>,
    tunables: &Tunables,
    now_ms: u64,
) -> Admission {
    let flags = command.spec.flags;
    if !flags.contains(Flags::NO_AUTH) && must_log_in(server, client) {
        return Admission::Refused(NOT_LOGGED_IN);
    }
    if flags.contains(Flags::PROTECTED)
        && let Some(error) = protected(server, client, command)
    {
        return Admission::Refused(error);
    }
    if client.transaction.is_some() && flags.contains(Flags::NO_MULTI) {
        return Admission::Refused(CommandError::text(format!(
            "ERR Command '{}' not allowed inside a transaction",
            command.full_name
        )));
    }
    if tunables.max_memory != 0
        && needs_memory(client, command)
        && server.used_memory.load(Ordering::Relaxed) > tunables.max_memory
    {
        return Admission::Refused(CommandError::constant(
            "OOM command not allowed when used memory > 'maxmemory'.",
        ));
    }
    let held_back = flags.intersects(CHANGES) || (command.full_name == "exec" && transaction_writes(client));
    if server.pause.holds(now_ms, held_back) {
        return Admission::Paused;
    }
    Admission::Run
}

/// Commands that are held back while nothing may change.
pub const CHANGES: Flags = Flags::WRITE.with(Flags::MAY_REPLICATE);

fn transaction_writes(client: &Client) -> bool {
    client
        .transaction
        .as_ref()
        .is_some_and(|transaction| transaction.writes)
}

/// Whether a command may make memory grow; EXEC does if a command of the transaction does.
fn needs_memory(client: &Client, command: &Command<Binding>) -> bool {
    let of_transaction = || {
        command.full_name == "exec"
            && client
                .transaction
                .as_ref()
                .is_some_and(|transaction| transaction.denied_out_of_memory)
    };
    command.spec.flags.contains(Flags::DENYOOM) || of_transaction()
}

/// Whether a client may only log in or leave. Once no password is asked for any more, everybody may go on.
#[inline]
pub fn must_log_in(server: &Server, client: &Client) -> bool {
    !client.authenticated && !server.config.text(id::REQUIREPASS).is_empty()
}

/// The error of a request by a client that must log in first.
pub const NOT_LOGGED_IN: CommandError = CommandError::constant("NOAUTH Authentication required.");

/// Whether a request comes from a program that speaks HTTP: somebody makes it talk to this port on their behalf.
pub fn is_http(args: Args<'_>) -> bool {
    let name = args.at(0);
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

/// The error of a request that names no command, or names one with a wrong number of arguments.
pub fn explain_unknown(commands: &Registry<Binding>, args: Args<'_>) -> CommandError {
    match commands.lookup(&args) {
        Lookup::Found(command) => {
            let mut text = b"ERR wrong number of arguments for '".to_vec();
            text.extend_from_slice(command.full_name.as_bytes());
            text.extend_from_slice(b"' command");
            CommandError::bytes(text)
        }
        Lookup::UnknownSubcommand { parent } => {
            let mut text = b"ERR unknown subcommand '".to_vec();
            text.extend_from_slice(shown_name(args.at(1)));
            text.extend_from_slice(b"'. Try ");
            text.extend_from_slice(parent.full_name.to_uppercase().as_bytes());
            text.extend_from_slice(b" HELP.");
            CommandError::bytes(text)
        }
        Lookup::UnknownCommand => {
            let mut text = b"ERR unknown command '".to_vec();
            text.extend_from_slice(shown_name(args.at(0)));
            text.extend_from_slice(b"', with args beginning with: ");
            let mut words: Vec<u8> = Vec::new();
            for index in 1..args.len() {
                if words.len() >= 128 {
                    break;
                }
                let room = 128 - words.len();
                words.push(b'\'');
                words.extend(shown(args.at(index)).iter().take(room));
                words.extend_from_slice(b"' ");
            }
            text.extend_from_slice(&words);
            CommandError::bytes(text)
        }
    }
}

fn protected(server: &Server, client: &Client, command: &Command<Binding>) -> Option<CommandError> {
    let allowed = match server.config.choice(id::ENABLE_DEBUG_COMMAND) {
        "yes" => true,
        "local" => client.is_local(),
        _ => false,
    };
    (!allowed).then(|| {
        CommandError::text(format!(
            "ERR {} command not allowed. If the enable-debug-command option is set to \"local\", you can run it \
             from a local connection, otherwise you need to set this option in the configuration file, and then \
             restart the server.",
            command.full_name.split('|').next().unwrap_or_default().to_uppercase()
        ))
    })
}
