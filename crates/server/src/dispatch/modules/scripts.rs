//! Scripts that call commands of modules.
//!
//! Such a script runs on the home worker, in exclusive mode from its start to its end. So does a script that may cause
//! keyspace events that modules get. A script is known to call a command of a module from
//! an earlier run, or because its code contains the name of such a command. Otherwise it is found out when it calls
//! one: then the script restarts, as one does that is refused a slot. If it has made lasting changes by then, the call
//! fails.

use super::{ModuleCall, ModuleSession, SessionAccess, command};
use crate::commands::context::Binding;
use crate::commands::scripting::module_calls;
use crate::dispatch::thread::ThreadState;
use crate::keyspace::access::HeldLeases;
use crate::net::client::Client;
use weft_command_table::registry::Command;
use weft_modules::module::loading;
use weft_modules::objects::reply::FinishedReply;
use weft_resp::Args;
use weft_scripting::Program;

/// Returns `true` if a script has to run on the home worker, in exclusive mode, and does not.
pub fn must_run_at_home(thread: &ThreadState, program: &Program, is_read_only: bool) -> bool {
    let generation = loading::generation();
    generation > 0
        && !thread.server.workers.is_empty()
        && (thread.home_events.concern_script(is_read_only)
            || program
                .profile()
                .calls_modules(generation, || module_calls::names_module_command(program.code())))
}

/// Runs a command of a module for a script, which holds what the command needs.
pub fn run_for_script(
    thread: &mut ThreadState,
    held: HeldLeases<'_, '_>,
    client: &mut Client,
    command: (&'static Command<Binding>, Binding),
    args: Args<'_>,
) -> FinishedReply {
    let access = match held {
        HeldLeases::Script(leases) => SessionAccess::Leased(leases),
        HeldLeases::Exclusive(all) => SessionAccess::Exclusive(all),
        HeldLeases::Nothing | HeldLeases::One(_) | HeldLeases::Many(_) | HeldLeases::Private(_) => {
            unreachable!("a script holds leases that can grow, or exclusive mode")
        }
    };
    thread.effects.hooks = thread.server.keyspace.hooks.current();
    let mut call = ModuleCall::default();
    let mut session = ModuleSession {
        thread,
        access,
        pass: None,
        client,
        call: Some(&mut call),
        idle: None,
    };
    let mut reply = FinishedReply::default();
    command::run_code(&mut session, command.0, command.1, &args, &mut reply);
    command::finish_call(&mut session, command.0, args, &[]);
    reply
}
