//! A worker's part in the waits of clients that modules have blocked.

use weft_base::LogSequence;
use weft_reactor::Output;

use super::Worker;
use super::waits::ClientWait;
use crate::dispatch::batch::BatchConnections;
use crate::dispatch::record;
use crate::net::client::ClientFlags;
use crate::state::{BlockedClientEvent, EndedModuleWait, ModuleWait};

impl Worker {
    /// Ends the waits of this worker's clients that have ended on this thread.
    pub(crate) fn deliver_module_waits(&mut self) {
        while !self.thread.ended_module_waits.is_empty() {
            for ended in std::mem::take(&mut self.thread.ended_module_waits) {
                self.deliver_module_wait(ended);
            }
        }
    }

    /// Ends the wait of a client that a module had blocked: its connection continues, unless another module blocks it.
    pub(crate) fn deliver_module_wait(&mut self, ended: EndedModuleWait) {
        let Some(token) = self.find_parked(ended.client, ended.park_id) else {
            if let Some(next) = ended.next_wait {
                self.abandon_module_wait(*next);
            }
            return;
        };
        let Some(ClientWait::Module(mut wait)) = self.end_wait(ended.client) else {
            return;
        };
        if let Some(waiter) = wait.waiter.take() {
            self.remove_waiter(waiter);
        }
        let nanoseconds = wait.nanoseconds + ended.nanoseconds;
        self.record_write(token, ended.log_sequence);
        // What threads of the module have written meanwhile counts as written by the client, as in Valkey.
        let last = self.server().propagation.last_sequence();
        self.record_log_sequence(token, LogSequence::NONE, last);
        match ended.next_wait {
            Some(mut next) => {
                (next.command, next.nanoseconds) = (wait.command, nanoseconds);
                (next.request_bytes, next.logged_command) = (wait.request_bytes, wait.logged_command);
                self.start_next_step(token, crate::state::NextStep::BlockByModule(next));
            }
            None => {
                // The reply of the command comes first. The module can only add to it.
                let (mut reply, failed) = match wait.withheld.take() {
                    Some(withheld) => (withheld.output, withheld.failed || ended.failed),
                    None => (Output::new(), ended.failed),
                };
                reply.bytes.extend_from_slice(&ended.reply);
                self.record_module_wait(&mut wait, nanoseconds, reply.len(), failed);
                if ended.closes_connection
                    && let Some(connection) = self.clients.connection(token)
                {
                    connection.client.flags.set(ClientFlags::CLOSE_AFTER_REPLY, true);
                }
                self.append_reply(token, |output| output.append(&mut reply));
            }
        }
    }

    /// Records the end of a command that has waited for a module.
    pub(super) fn record_module_wait(
        &mut self,
        wait: &mut ModuleWait,
        nanoseconds: u64,
        reply_bytes: usize,
        failed: bool,
    ) {
        record::record_module_command(&self.thread, wait, nanoseconds, reply_bytes, failed);
        let client = weft_base::ClientId::new(wait.blocked.caller.client_id);
        let token = self.clients.by_id.get(&client).copied();
        if let Some(connection) = token.and_then(|token| self.clients.slots.get_mut(token)?.as_mut()) {
            connection.client.commands += 1;
        }
    }

    /// Lets the module know that a client that it has blocked has gone, or has got another reply.
    pub(super) fn abandon_module_wait(&mut self, wait: ModuleWait) {
        if let Some(waiter) = wait.waiter {
            self.abandon_waiter(waiter);
        }
        let event = BlockedClientEvent::Disconnected(wait.blocked);
        self.server().handle_blocked_client_at_home(event);
    }
}
