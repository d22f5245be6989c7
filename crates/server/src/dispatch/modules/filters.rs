//! The filters by which modules change commands ([`weft_modules::module::command_filters`]).

use weft_modules::module::command_filters;
use weft_modules::module::home_commands::{self, HomeReason};
use weft_modules::objects::arguments::CommandWords;
use weft_resp::Args;

use super::{ModuleSession, SessionAccess, home};
use crate::dispatch::thread::ThreadState;
use crate::keyspace::Exclusive;
use crate::keyspace::access::HeldLeases;
use crate::net::client::Client;

/// Returns `true` if there are filters.
#[inline]
pub fn exist() -> bool {
    home_commands::are_required_for(HomeReason::CommandFilters)
}

/// Lets the filters see a client's command. Returns its words if they have changed them.
pub fn apply(
    thread: &mut ThreadState,
    all: &mut Exclusive<'_>,
    client: &mut Client,
    args: Args<'_>,
) -> Option<CommandWords> {
    let client_id = client.id.get();
    home::run_unit_for(thread, all, client, |session| {
        home::run_there(session, |session| command_filters::apply(session, client_id, args))
    })
    .flatten()
}

/// Does the same for a command of a script, which holds exclusive mode.
pub fn apply_in_script(
    thread: &mut ThreadState,
    held: HeldLeases<'_, '_>,
    client: &mut Client,
    args: Args<'_>,
) -> Option<CommandWords> {
    let HeldLeases::Exclusive(all) = held else {
        return None;
    };
    let mut session = ModuleSession {
        thread,
        access: SessionAccess::Exclusive(all),
        pass: None,
        client,
        call: None,
        idle: None,
    };
    session.filter_call(args)
}

impl ModuleSession<'_, '_> {
    /// Lets the filters see a command that a module or a script calls. Returns its words if they have changed them.
    /// Filters run at home, so they do not see what a slot-safe command calls.
    pub fn filter_call(&mut self, args: Args<'_>) -> Option<CommandWords> {
        if !self.access.is_exclusive() {
            return None;
        }
        let client_id = self.client.id.get();
        home::run_there(self, |session| command_filters::apply(session, client_id, args)).flatten()
    }
}
