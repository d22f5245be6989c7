//! The ends and refusals of commands, as events for modules that have subscribed to them.
//!
//! What is sent from here is a job for the home worker. A command that runs there is delivered in place
//! (`dispatch/modules/command_results.rs`).

use weft_acl::{Denial, DenialReason};
use weft_base::ClientId;
use weft_command_table::registry::Command;
use weft_modules::module::server_events::{self, CommandResult, EventKind, ReportedEnd, ServerEvent};
use weft_resp::Args;

use crate::commands::context::Binding;
use crate::commands::error::CommandError;
use crate::net::client::{Client, ClientFlags};

/// The number of a missing authentication among the reasons of denials.
const NOT_AUTHENTICATED: u64 = 0;

/// The end of a command, as its accounting has recorded it.
#[derive(Clone, Copy, Debug)]
pub struct RecordedEnd {
    /// The run time in nanoseconds.
    pub nanoseconds: u64,
    /// `true` if the command has replied with an error.
    pub failed: bool,
}

/// Returns `true` if modules hear of commands that have run.
#[inline]
pub fn are_heard() -> bool {
    server_events::is_subscribed(EventKind::CommandSucceeded) || server_events::is_subscribed(EventKind::CommandFailed)
}

/// Copies the words of a command.
pub fn copy_words(args: Args<'_>) -> Vec<Box<[u8]>> {
    args.iter().map(Box::from).collect()
}

/// Builds the event of a command that has run.
pub fn ended(
    command: &Command<Binding>,
    client: (ClientId, ClientFlags),
    end: RecordedEnd,
    changes: u64,
    words: Vec<Box<[u8]>>,
) -> ServerEvent {
    ServerEvent::CommandEnded(Box::new(CommandResult {
        name: Some(command.full_name),
        end: match end.failed {
            true => ReportedEnd::Failed,
            false => ReportedEnd::Succeeded,
        },
        duration_us: end.nanoseconds / 1000,
        changes,
        client_id: client.0.get(),
        is_from_module: client.1.intersects(ClientFlags::MODULE_CALL),
        words,
    }))
}

/// Returns the kind of the event of a command that has run.
pub fn kind_of(end: RecordedEnd) -> EventKind {
    match end.failed {
        true => EventKind::CommandFailed,
        false => EventKind::CommandSucceeded,
    }
}

/// The words and the client of a command that another thread completes.
pub struct AwaitedEnd {
    command: &'static Command<Binding>,
    client: (ClientId, ClientFlags),
    words: Vec<Box<[u8]>>,
}

impl AwaitedEnd {
    /// Copies what modules will hear of a command; `None` if none hears of commands.
    pub fn of(command: &'static Command<Binding>, args: Args<'_>, client: &Client) -> Option<AwaitedEnd> {
        are_heard().then(|| AwaitedEnd {
            command,
            client: (client.id, client.flags),
            words: copy_words(args),
        })
    }

    /// Sends the end of the command.
    pub fn send(self, end: RecordedEnd) {
        server_events::send(kind_of(end), || ended(self.command, self.client, end, 0, self.words));
    }
}

/// Sends the refusal of a command.
fn send_refusal(
    command: Option<&Command<Binding>>,
    args: Args<'_>,
    client: &Client,
    kind: EventKind,
    end: ReportedEnd,
) {
    server_events::send(kind, || {
        ServerEvent::CommandEnded(Box::new(CommandResult {
            name: command.map(|command| command.full_name),
            end,
            duration_us: 0,
            changes: 0,
            client_id: client.id.get(),
            is_from_module: false,
            words: copy_words(args),
        }))
    });
}

/// Returns an error as Valkey shows it to modules: the text of an `ERR`, or all of an error with another code.
fn shown_error(error: &CommandError) -> Vec<u8> {
    match error.0.strip_prefix(b"ERR ") {
        Some(text) => text.to_vec(),
        None => [b"-", &*error.0, b"\r\n"].concat(),
    }
}

/// Lets modules know that a command was refused with this error.
pub fn send_rejection(command: Option<&Command<Binding>>, args: Args<'_>, client: &Client, error: &CommandError) {
    let is_unauthenticated = error.code() == b"NOAUTH";
    if is_unauthenticated && server_events::is_subscribed(EventKind::CommandDenied) {
        let end = ReportedEnd::Denied(NOT_AUTHENTICATED, None);
        send_refusal(command, args, client, EventKind::CommandDenied, end);
    } else if !is_unauthenticated && server_events::is_subscribed(EventKind::CommandRejected) {
        let end = ReportedEnd::Rejected(Some(shown_error(error)));
        send_refusal(command, args, client, EventKind::CommandRejected, end);
    }
}

/// Lets modules know that the keys of a command belong to another node.
pub fn send_redirection(command: &Command<Binding>, args: Args<'_>, client: &Client) {
    if server_events::is_subscribed(EventKind::CommandRejected) {
        let end = ReportedEnd::Rejected(None);
        send_refusal(Some(command), args, client, EventKind::CommandRejected, end);
    }
}

/// Lets modules know that the client of a command lacks a permission.
pub fn send_denial(command: &Command<Binding>, args: Args<'_>, client: &Client, denial: Denial) {
    if !server_events::is_subscribed(EventKind::CommandDenied) {
        return;
    }
    let object = || (denial.argument > 0).then(|| args.argument(denial.argument).to_vec());
    let end = match denial.reason {
        DenialReason::Command => ReportedEnd::Denied(1, None),
        DenialReason::Key => ReportedEnd::Denied(2, object()),
        DenialReason::Channel => ReportedEnd::Denied(3, object()),
        DenialReason::Database => ReportedEnd::Denied(4, None),
        DenialReason::Auth | DenialReason::Certificate => ReportedEnd::Denied(NOT_AUTHENTICATED, None),
    };
    send_refusal(Some(command), args, client, EventKind::CommandDenied, end);
}
