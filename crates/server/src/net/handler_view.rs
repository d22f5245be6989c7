//! Views of clients: what the handlers of commands may read of a client while they run outside its worker, or in its
//! script.

use std::sync::Arc;

use weft_base::LogSequence;

use super::client::{Client, ClientFlags};

/// The flags that suppress replies. They are applied to the client itself.
const REPLY_SWITCHES: ClientFlags = ClientFlags::REPLY_OFF
    .union(ClientFlags::REPLY_SKIP)
    .union(ClientFlags::REPLY_SKIP_NEXT);
/// The maximum capacity of the name in a view that may become another one, in bytes.
const MAX_KEPT_NAME_BYTES: usize = 1024;

impl Client {
    /// Makes `view` what [`Self::handler_view`] returns. This is cheap for a view of the same client: sharing a counted
    /// reference takes a locked instruction, and this function shares only those that have changed.
    pub fn update_handler_view(&self, view: &mut Client) {
        // Every field is named: none may stay as the client before has left it.
        let Client {
            id,
            db,
            last_write_sequence,
            unacknowledged_write,
            protocol,
            login,
            name,
            lib_name,
            lib_version,
            flags,
            address,
            local_address,
            fd,
            created_ms,
            last_interaction_ms,
            last_command,
            net_input_bytes,
            net_output_bytes,
            commands,
            largest_output,
            worker,
            transaction,
            watches,
            subscriptions,
            tracking,
            redacted_arguments,
            handshake,
            transaction_figures,
            kill_mark,
            script_refusal,
            refused_slot,
            library_loads,
            module_login,
        } = view;
        (*id, *db, *protocol, *worker) = (self.id, self.db, self.protocol, self.worker);
        (*last_write_sequence, *unacknowledged_write) = (self.last_write_sequence, LogSequence::NONE);
        login.share(&self.login);
        share(address, &self.address);
        share(local_address, &self.local_address);
        name.clone_from(&self.name);
        lib_name.clear();
        lib_version.clear();
        *flags = self.flags.difference(REPLY_SWITCHES);
        (*fd, *last_command) = (-1, self.last_command);
        (*created_ms, *last_interaction_ms) = (self.created_ms, self.created_ms);
        (*net_input_bytes, *net_output_bytes, *commands, *largest_output) = (0, 0, 0, 0);
        tracking.clone_from(&self.tracking);
        redacted_arguments.clear();
        (*transaction, *transaction_figures, *library_loads) = (None, None, None);
        (*watches, *subscriptions, *handshake, *kill_mark) = (None, None, None, None);
        (*script_refusal, *refused_slot, *module_login) = (None, None, None);
    }

    /// Returns `true` if the view may be kept to become one of another client: it holds nothing that has to be dropped
    /// soon.
    pub fn may_become_other_view(&self) -> bool {
        self.transaction.is_none()
            && self.watches.is_none()
            && self.subscriptions.is_none()
            && self.tracking.is_none()
            && self.handshake.is_none()
            && self.transaction_figures.is_none()
            && self.kill_mark.is_none()
            && self.library_loads.is_none()
            && self.name.capacity() <= MAX_KEPT_NAME_BYTES
            && self.lib_name.capacity().max(self.lib_version.capacity()) <= MAX_KEPT_NAME_BYTES
    }
}

/// Makes both share the text of the second.
#[inline]
fn share(text: &mut Arc<str>, other: &Arc<str>) {
    if !Arc::ptr_eq(text, other) {
        *text = other.clone();
    }
}

#[cfg(test)]
mod tests;
