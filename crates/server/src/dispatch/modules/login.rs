//! AUTH, and HELLO with AUTH, if modules authenticate clients.
//!
//! The modules decide first ([`weft_modules::module::authentication`]). Then the handler of the command runs, which
//! takes their decision from the client, or checks the password if they have not decided.

use weft_modules::module::authentication::{self, Decision};
use weft_modules::objects::context::Caller;
use weft_modules::objects::reply::{FinishedReply, ReplyError};
use weft_reactor::Output;
use weft_resp::Args;

use super::{ModuleSession, home};
use crate::commands::connection::credentials;
use crate::commands::context::{Binding, module};
use crate::dispatch::plan::are_modules_asked_for_login;
use crate::dispatch::thread::LeasedCall;
use crate::net::client::ModuleLogin;
use crate::net::transaction::Transaction;
use weft_command_table::registry::Command;

/// Returns the binding of a queued command. Only a transaction that was planned for code of modules runs it.
pub fn binding_in_transaction(transaction: &Transaction, command: &Command<Binding>, binding: Binding) -> Binding {
    match transaction.runs_modules && are_modules_asked_for_login(command) {
        true => module(None),
        false => binding,
    }
}

/// Runs AUTH or HELLO.
pub(super) fn run(session: &mut ModuleSession<'_, '_>, args: Args<'_>) -> FinishedReply {
    let decision = match credentials(&session.thread.server, args) {
        None => Decision::NotHandled,
        Some((user, password)) => {
            let caller = Caller {
                client_id: session.client.id.get(),
                db: session.client.db.get() as u32,
                protocol: session.client.protocol,
            };
            let words: Vec<Vec<u8>> = args.iter().map(<[u8]>::to_vec).collect();
            let (user, password) = (user.to_vec(), password.to_vec());
            let asked = home::run_there(session, |session| {
                authentication::authenticate(session, &caller, &words, &user, &password)
            });
            asked.unwrap_or(Decision::NotHandled)
        }
    };
    complete(session, args, decision)
}

/// Completes the command after the modules have decided.
pub(super) fn complete(session: &mut ModuleSession<'_, '_>, args: Args<'_>, decision: Decision) -> FinishedReply {
    session.client.module_login = match decision {
        Decision::Blocked => return FinishedReply::default(),
        Decision::Replied(reply) => return reply,
        Decision::NotHandled => None,
        Decision::Granted => Some(Box::new(ModuleLogin::Granted)),
        Decision::Denied(text) => Some(Box::new(ModuleLogin::Denied(text))),
    };
    let command = crate::commands::registry().command(args.argument(0));
    let Some((command, binding)) = command.and_then(|command| Some((command, command.handler?))) else {
        return FinishedReply::default();
    };
    let mut output = Output::new();
    let call = LeasedCall {
        command,
        args,
        planned: &[],
        held: session.access.as_held_leases(),
        pass: session.pass,
    };
    let mut context = session
        .thread
        .split_frame()
        .0
        .context(call, session.client, &mut output);
    let result = (binding.handler)(&mut context);
    drop(context);
    session.client.module_login = None;
    let mut errors = Vec::new();
    if let Err(error) = result {
        output.clear();
        error.append_to(&mut output.bytes);
        errors.push(ReplyError {
            code: Box::from(error.code()),
            is_custom: false,
            is_counted: true,
        });
    }
    output.copy_shared();
    FinishedReply {
        bytes: std::mem::take(&mut output.bytes),
        errors,
    }
}
