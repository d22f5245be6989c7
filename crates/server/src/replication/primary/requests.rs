//! Processes the commands that replicas send while they are served.

use weft_base::clock::unix_ms;
use weft_base::{ReplicationOffset, ThreadIndex};
use weft_resp::number::parse_i64;
use weft_resp::{Args, ParseOutcome, RequestLimits};

use super::PrimaryThread;
use crate::commands::permission::check_queued_command;
use crate::commands::registry;
use crate::observability::log;
use crate::state::PermissionLoss;
use weft_command_table::registry::Lookup;
use weft_command_table::spec::flag;
use weft_os::atomic::Ordering;
use weft_os::time::Instant;

/// The size that an incomplete request of a replica may have, in bytes. Replicas send short commands.
const MAX_REQUEST_BYTES: usize = 1 << 20;

impl PrimaryThread {
    /// Parses and processes the input of a replica.
    pub(crate) fn process_input(&mut self, token: usize) {
        let Some(replica) = self.replicas.get_mut(&token) else {
            return;
        };
        let mut input = std::mem::take(&mut replica.connection.input);
        let mut ranges = Vec::new();
        let mut at = 0;
        let limits = RequestLimits {
            max_bulk_len: 64 * 1024,
            is_authenticated: true,
        };
        while at < input.len() {
            ranges.clear();
            let Some(replica) = self.replicas.get_mut(&token) else {
                return;
            };
            match replica.connection.parser.parse(&input[at..], &mut ranges, &limits) {
                ParseOutcome::Incomplete { .. } => break,
                // A newline that keeps the connection alive.
                ParseOutcome::Request { consumed, argc: 0 } => {
                    self.update_info(token, |known| known.last_heard_s = unix_ms() / 1000);
                    at += consumed;
                }
                ParseOutcome::Request { consumed, .. } => {
                    let args = Args::new(&input[at..at + consumed], &ranges);
                    self.process_command(token, &args.iter().collect::<Vec<_>>());
                    at += consumed;
                }
                ParseOutcome::Inline { consumed, args } => {
                    self.process_command(token, &args.iter().map(Vec::as_slice).collect::<Vec<_>>());
                    at += consumed;
                }
                ParseOutcome::Error(error) => {
                    log::warning!(
                        "Protocol error from a replica: {}",
                        String::from_utf8_lossy(&error.message())
                    );
                    return self.close_replica(token);
                }
            }
        }
        if let Some(replica) = self.replicas.get_mut(&token) {
            input.drain(..at);
            let is_too_large = input.len() > MAX_REQUEST_BYTES;
            replica.connection.input = input;
            if is_too_large {
                log::warning!("Closing a replica whose request exceeds {MAX_REQUEST_BYTES} bytes.");
                self.close_replica(token);
            }
        }
    }

    fn process_command(&mut self, token: usize, words: &[&[u8]]) {
        let Some(replica) = self.replicas.get_mut(&token) else {
            return;
        };
        replica.connection.client.commands += 1;
        if !self.may_run(token, words) {
            return;
        }
        let Some(replica) = self.replicas.get_mut(&token) else {
            return;
        };
        let name = words.first().map(|word| word.to_ascii_lowercase()).unwrap_or_default();
        match name.as_slice() {
            b"replconf" => {
                replica.connection.client.last_command = "replconf";
                self.process_replconf(token, words);
            }
            // The replica has requested synchronisation already.
            b"psync" | b"sync" => {}
            b"quit" => self.close_replica(token),
            _ => self.disconnect_for_command(token, words),
        }
    }

    /// Returns `true` if the present rules of a replica's user allow a command. Otherwise the replica is disconnected.
    fn may_run(&mut self, token: usize, words: &[&[u8]]) -> bool {
        let server = self.server.clone();
        let thread_index = ThreadIndex::new(self.seat.index());
        let Some(replica) = self.replicas.get_mut(&token) else {
            return false;
        };
        let client = &mut replica.connection.client;
        if client.login.is_unrestricted(server.acl.version()) {
            return true;
        }
        let Lookup::Found(command) = registry().lookup(words) else {
            return true;
        };
        let owned: Vec<Vec<u8>> = words.iter().map(|word| word.to_vec()).collect();
        let loss = match check_queued_command(&server, thread_index, client, command, &owned) {
            Ok(()) => return true,
            Err(loss) => loss,
        };
        client.last_command = command.full_name;
        if let PermissionLoss::Denied(bytes) = loss {
            let (name, error) = (command.full_name, String::from_utf8_lossy(&bytes));
            log::warning!(
                "Replica generated a reply to command '{name}', disconnecting it: {}",
                replica.description(&server.config)
            );
            log::warning!(
                "== CRITICAL == This primary is sending an error to its replica: '{}' after processing the command \
                 '{name}'",
                error.trim_end()
            );
        }
        self.close_replica(token);
        false
    }

    /// Disconnects a replica whose command would have a reply, since a reply would corrupt the stream.
    fn disconnect_for_command(&mut self, token: usize, words: &[&[u8]]) {
        let Some(replica) = self.replicas.get_mut(&token) else {
            return;
        };
        let (name, touches_keys) = match registry().lookup(words) {
            Lookup::Found(command) => {
                replica.connection.client.last_command = command.full_name;
                let flags = command.spec.flags;
                (
                    command.full_name,
                    [flag::WRITE, flag::READONLY, flag::MAY_REPLICATE]
                        .iter()
                        .any(|touches| flags.contains(*touches)),
                )
            }
            Lookup::UnknownCommand | Lookup::UnknownSubcommand { .. } => ("<unknown>", false),
        };
        log::warning!(
            "Replica generated a reply to command '{name}', disconnecting it: {}",
            replica.description(&self.server.config)
        );
        if touches_keys {
            log::warning!(
                "== CRITICAL == This primary is sending an error to its replica: 'Replica can't interact with the \
                 keyspace' after processing the command '{name}'"
            );
        }
        self.close_replica(token);
    }

    fn process_replconf(&mut self, token: usize, words: &[&[u8]]) {
        let number = |at: usize| words.get(at).and_then(|word| parse_i64(word));
        let is = |at: usize, name: &[u8]| words.get(at).is_some_and(|word| word.eq_ignore_ascii_case(name));
        if !is(1, b"ack") {
            return;
        }
        // An offset that no server can have reached acknowledges nothing.
        let offset = |at: usize| number(at).map(|bytes| ReplicationOffset::from_stated(bytes).unwrap_or_default());
        let Some(acknowledged) = offset(2) else {
            return;
        };
        let synced = if is(3, b"fack") { offset(4) } else { None };
        let now_s = unix_ms() / 1000;
        self.update_info(token, |known| {
            known.acknowledged_offset = known.acknowledged_offset.max(acknowledged);
            known.fsynced_offset = known.fsynced_offset.max(synced);
            known.last_heard_s = now_s;
        });
        if let Some(replica) = self.replicas.get_mut(&token) {
            replica.last_heard = Instant::now();
            let begins = replica.awaits_ack && replica.progress == crate::replication::ReplicaSyncState::Online;
            if begins {
                replica.awaits_ack = false;
                self.send_backlog(token);
            }
        }
        self.mark_loaded(token);
        self.server
            .replication
            .replicas
            .has_readers
            .store(true, Ordering::Relaxed);
    }
}
