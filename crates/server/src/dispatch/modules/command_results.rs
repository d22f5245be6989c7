//! The ends of commands, for modules that have subscribed to them.
//!
//! While there are such modules, the commands of clients run on the home worker, in exclusive mode
//! ([`weft_modules::module::home_commands`]), and the modules hear of a command before its client gets the reply.

use weft_command_table::registry::Command;
use weft_modules::module::server_events;
use weft_resp::Args;

use super::{ModuleSession, SessionAccess, home};
use crate::commands::context::Binding;
use crate::dispatch::command_events::{RecordedEnd, are_heard, copy_words, ended, kind_of};
use crate::dispatch::thread::ThreadState;
use crate::keyspace::Exclusive;
use crate::keyspace::access::HeldLeases;
use crate::net::client::Client;

/// Delivers the end of a client's command, which has ended its unit. The thread is in exclusive mode.
pub fn deliver(
    thread: &mut ThreadState,
    all: &mut Exclusive<'_>,
    client: &mut Client,
    (command, args): (&'static Command<Binding>, Args<'_>),
    end: RecordedEnd,
    changes: u64,
) {
    if server_events::is_subscribed(kind_of(end)) {
        let event = ended(command, (client.id, client.flags), end, changes, copy_words(args));
        home::run_unit_for(thread, all, client, |session| {
            home::run_there(session, |session| server_events::deliver(session, &event))
        });
    }
}

/// Delivers the end of a command within a unit: of a transaction, of a script, or of code of a module. If the thread
/// does not hold exclusive mode, the home worker delivers it.
pub fn deliver_within(
    thread: &mut ThreadState,
    held: HeldLeases<'_, '_>,
    client: &mut Client,
    (command, args): (&'static Command<Binding>, Args<'_>),
    end: RecordedEnd,
    changes: u64,
) {
    let kind = kind_of(end);
    if !server_events::is_subscribed(kind) {
        return;
    }
    let event = ended(command, (client.id, client.flags), end, changes, copy_words(args));
    let HeldLeases::Exclusive(all) = held else {
        return server_events::send(kind, || event);
    };
    let mut session = ModuleSession {
        thread,
        access: SessionAccess::Exclusive(all),
        pass: None,
        client,
        call: None,
        idle: None,
    };
    home::run_there(&mut session, |session| server_events::deliver(session, &event));
}

impl ModuleSession<'_, '_> {
    /// Delivers the end of a command that a module has called.
    pub fn deliver_end_of_call(
        &mut self,
        client: &mut Client,
        call: (&'static Command<Binding>, Args<'_>),
        end: RecordedEnd,
        changes: u64,
    ) {
        if are_heard() {
            deliver_within(self.thread, self.access.as_held_leases(), client, call, end, changes);
        }
    }
}
