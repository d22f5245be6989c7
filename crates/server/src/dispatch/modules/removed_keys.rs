//! Keys that are removed, for modules that look at them before ([`crate::keyspace::removed_keys`]).
//!
//! While there are such modules, commands run on the home worker, in exclusive mode, and the modules look at the keys
//! after the handler of the command, within its unit and before they get its keyspace events. Keys that another thread
//! removes, because they have expired or are evicted, are a job for the home worker.

use weft_modules::module::server_events::{self, ServerEvent};
use weft_modules::session::Session;

use super::{ModuleSession, home};
use crate::dispatch::thread::ThreadState;
use crate::keyspace::Exclusive;
use crate::keyspace::removed_keys::{RemovedKey, exchange};
use crate::net::client::Client;

impl ModuleSession<'_, '_> {
    /// Lets modules look at keys that were removed. The session has exclusive mode.
    pub fn deliver_removed_keys(&mut self, keys: Vec<RemovedKey>) {
        for key in keys {
            self.deliver_removed_key(key);
        }
    }

    /// Lets modules look at the keys that the running call has removed so far.
    pub(super) fn deliver_keys_removed_so_far(&mut self) {
        while !self.thread.effects.removed_keys.is_empty() {
            let keys = std::mem::take(&mut self.thread.effects.removed_keys);
            self.deliver_removed_keys(keys);
        }
    }

    fn deliver_removed_key(&mut self, mut key: RemovedKey) {
        let server = self.thread.server.clone();
        let thread_index = self.thread.thread_index;
        let event = ServerEvent::KeyRemoved {
            removal: key.removal,
            db: key.db.get() as u32,
            key: key.name.clone(),
        };
        let entry = key.take_entry();
        let Some(all) = self.access.exclusive() else {
            return;
        };
        let present = exchange(all, &server.keyspace, thread_index, &key, entry);
        // The key may have expired. It is there as long as the modules look at it.
        let expiry_ms = std::mem::take(&mut self.thread.expiry_ms);
        home::run_there(self, |session: &mut dyn Session| {
            server_events::deliver(session, &event)
        });
        self.thread.expiry_ms = expiry_ms;
        if let Some(all) = self.access.exclusive() {
            drop(exchange(all, &server.keyspace, thread_index, &key, present));
        }
    }
}

/// Lets modules look at the keys that a command has removed, which has ended its unit.
pub fn deliver(thread: &mut ThreadState, all: &mut Exclusive<'_>, client: &mut Client) {
    while !thread.effects.removed_keys.is_empty() {
        let keys = std::mem::take(&mut thread.effects.removed_keys);
        home::run_unit_for(thread, all, client, |session| session.deliver_removed_keys(keys));
    }
}
