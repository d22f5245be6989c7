//! Shares dumps among replicas: selects the replicas that receive one together, begins it when it is due, and continues
//! with them when it has ended.
//!
//! A dump begins in exclusive mode, and so not while a script runs on a script thread. Until it has begun, its replicas
//! wait, other snapshots may be taken, and nothing has to be undone if the replicas disconnect. A dump to a file has
//! ended when the file is written. Each of its replicas continues when it has been sent the file, however long that
//! takes.

use std::time::Duration;

use super::full_sync::{self, DumpReceiver};
use super::{PrimaryThread, Replica};
use crate::observability::log;
use crate::persistence::rdb_file::RdbFormat;
use crate::replication::ReplicaSyncState;
use crate::replication::backlog_writer;
use weft_base::ClientId;
use weft_config::id;

/// The properties of the dump that a replica needs. Replicas with equal properties share one dump.
#[derive(Clone, Copy, PartialEq, Eq)]
struct DumpFilters {
    excludes_keys: bool,
    excludes_functions: bool,
    /// The format version of a dump that is sent to sockets. Dump files always have the newest format.
    format: RdbFormat,
    /// `true` if the dump uses a separate connection.
    is_dump_channel: bool,
}

/// A dump under way.
pub(crate) struct DumpInProgress {
    /// The ids of the clients that receive it.
    pub(crate) replicas: Vec<ClientId>,
    pub(crate) is_streamed: bool,
}

impl PrimaryThread {
    /// Begins a dump for the waiting replicas if it is due and no script runs.
    pub(crate) fn begin_dump_if_due(&mut self) {
        let Some((tokens, with_mark, wanted)) = self.next_dump() else {
            self.exclusion_for_dump.give_up(&self.server);
            return;
        };
        let was_pending = self.exclusion_for_dump.is_pending();
        if self.exclusion_for_dump.try_exclude(&self.server) {
            self.begin_dump(tokens, with_mark, wanted);
            self.server.scripting.running.end_exclusion();
        } else if !was_pending {
            log::notice!("A script is running. BGSAVE for replication delayed");
        }
    }

    /// Returns the tokens of the replicas that the next dump is for, `true` if the dump ends with a mark, and its
    /// properties; `None` if no dump is due, or if another snapshot is being written.
    fn next_dump(&self) -> Option<(Vec<usize>, bool, DumpFilters)> {
        let config = &self.server.config;
        let waits = |replica: &&Replica| replica.progress == ReplicaSyncState::WaitingForDump;
        let waiting: Vec<&Replica> = self.replicas.values().filter(waits).collect();
        let first = waiting.iter().map(|replica| replica.waiting_since).min()?;
        if self.dump.is_some() {
            return None;
        }
        let never_in_file = |replica: &&Replica| replica.handshake.excludes_data || replica.handshake.is_rdb_channel;
        let with_mark = waiting.iter().all(|replica| replica.handshake.supports_eof_mark)
            && (config.boolean(id::REPL_DISKLESS_SYNC) || waiting.iter().any(never_in_file));
        if with_mark {
            let delay = Duration::from_secs(config.unsigned(id::REPL_DISKLESS_SYNC_DELAY));
            let most = config.unsigned(id::REPL_DISKLESS_SYNC_MAX_REPLICAS) as usize;
            let enough = most > 0 && waiting.len() >= most;
            if first.elapsed() < delay && !enough {
                return None;
            }
        }
        let filters = |replica: &Replica| {
            let handshake = &replica.handshake;
            DumpFilters {
                excludes_keys: handshake.excludes_data,
                excludes_functions: handshake.excludes_functions,
                format: match with_mark {
                    true => RdbFormat::for_version(handshake.version),
                    false => RdbFormat::Newest,
                },
                is_dump_channel: handshake.is_rdb_channel,
            }
        };
        // Replicas with equal properties share one dump.
        let wanted = waiting.first().map(|replica| filters(replica))?;
        if !wanted.excludes_keys && self.server.persistence.snapshot.purpose().is_some() {
            return None;
        }
        let meant = |(_, replica): &(&usize, &Replica)| waits(replica) && filters(replica) == wanted;
        let tokens = self.replicas.iter().filter(meant).map(|(token, _)| *token).collect();
        Some((tokens, with_mark, wanted))
    }

    /// Begins a dump. The caller has excluded scripts.
    fn begin_dump(&mut self, tokens: Vec<usize>, with_mark: bool, filters: DumpFilters) {
        assert!(self.dump.is_none(), "one dump for replicas is under way at a time");
        if self.open_backlog().is_err() {
            return;
        }
        let mut targets = Vec::new();
        for token in &tokens {
            let Some(replica) = self.replicas.get(token) else {
                continue;
            };
            match self.reactor.socket(*token).map(DumpReceiver::clone_of) {
                Some(Ok(socket)) => targets.push(DumpReceiver::new(
                    &replica.connection.client,
                    replica.name.clone(),
                    socket,
                    replica.connection.tls.clone(),
                    full_sync::OffsetAnnouncement::for_replica(replica.is_psync, filters.is_dump_channel),
                )),
                Some(Err(_)) | None => self.close_replica(*token),
            }
        }
        let ids: Vec<ClientId> = targets.iter().map(|target| target.id).collect();
        let kind = if with_mark { "replicas sockets" } else { "disk" };
        let using = if filters.is_dump_channel {
            "dual-channel"
        } else {
            "normal sync"
        };
        let wanted = full_sync::DumpRequirements {
            format: filters.format,
            excludes_keys: filters.excludes_keys,
        };
        match full_sync::begin(&self.server, targets, with_mark, wanted) {
            Ok(()) => {
                log::notice!("Starting BGSAVE for SYNC with target: {kind} using: {using}");
                for token in &tokens {
                    if let Some(replica) = self.replicas.get_mut(token) {
                        assert_eq!(
                            replica.progress,
                            ReplicaSyncState::WaitingForDump,
                            "a dump begins for replicas that wait for one"
                        );
                        replica.progress = ReplicaSyncState::ReceivingDump;
                    }
                    // The thread that writes the dump may have published a later state.
                    self.update_info(*token, |known| {
                        if known.progress == ReplicaSyncState::WaitingForDump {
                            known.progress = ReplicaSyncState::DumpStarted;
                        }
                    });
                }
                self.dump = Some(DumpInProgress {
                    replicas: ids,
                    is_streamed: with_mark,
                });
            }
            Err(full_sync::BeginDumpError::Busy) => {
                // The replicas continue to wait.
            }
            Err(full_sync::BeginDumpError::Failed(reason)) => {
                log::warning!("BGSAVE for replication failed: {reason}");
                tokens.into_iter().for_each(|token| self.close_replica(token));
            }
        }
    }

    /// Creates the backlog, and with it a history to follow, if there is none. The caller has excluded scripts.
    fn open_backlog(&mut self) -> Result<(), ()> {
        let server = &self.server;
        let repl = &server.replication;
        let is_needed = || !repl.is_replica() && repl.replicas.backlog().range().is_none();
        if !is_needed() {
            return Ok(());
        }
        let all = self.seat.exclusive();
        // The role may have changed since the check.
        let opened = match is_needed() {
            true => backlog_writer::open(server, &all),
            false => Ok(()),
        };
        drop(all);
        opened.map_err(|error| log::warning!("Replicas cannot be served: {error}"))
    }

    /// Continues with the replicas that have received the dump that has ended, and closes the others. `has_failed` is
    /// `true` if the dump was not completed.
    pub(crate) fn end_dump(&mut self, replicas: &[ClientId], served: &[ClientId], has_failed: bool, with_mark: bool) {
        let ended = self.dump.take();
        assert!(
            ended.is_some_and(|dump| dump.replicas == replicas),
            "the dump that ends is the one that was under way"
        );
        assert!(
            served.iter().all(|id| replicas.contains(id)),
            "a dump is received by replicas that it was made for"
        );
        for id in replicas {
            let Some(token) = self.token_of(*id) else {
                // The replica disconnected before its offset was pinned.
                let is_awaited = self.server.replication.replicas.awaited_dumps().contains(id);
                match is_awaited {
                    true => self.start_grace_period(*id, "gone", String::new()),
                    false => self.server.replication.replicas.backlog().unpin(*id),
                }
                continue;
            };
            if !served.contains(id) {
                if has_failed {
                    log::warning!("SYNC failed. BGSAVE child returned an error");
                }
                self.close_replica(token);
                continue;
            }
            // Otherwise the replica is being sent the file.
            if with_mark {
                self.continue_after_dump(token, with_mark);
            }
        }
        self.begin_dump_if_due();
    }

    /// Continues with a replica that has received a dump file, or disconnects it if it has not received all of it.
    pub(crate) fn end_file_transfer(&mut self, replica: ClientId, is_complete: bool) {
        // A replica that was disconnected meanwhile has no pinned offset any more.
        let Some(token) = self.token_of(replica) else {
            return;
        };
        match is_complete {
            true => self.continue_after_dump(token, false),
            false => self.close_replica(token),
        }
    }

    /// Continues with a replica that has received its dump: with the stream, unless it wanted only the dump.
    fn continue_after_dump(&mut self, token: usize, with_mark: bool) {
        let Some(replica) = self.replicas.get(&token) else {
            return;
        };
        if with_mark {
            log::notice!(
                "Streamed RDB transfer with replica {} succeeded (socket). Waiting for REPLCONF ACK from replica to \
                 enable streaming",
                replica.name
            );
        }
        if replica.handshake.wants_rdb_only {
            log::notice!(
                "RDB transfer completed, rdb only replica ({}) should be disconnected asap",
                replica.name
            );
            return self.close_replica(token);
        }
        log::notice!("Synchronization with replica {} succeeded", replica.name);
        self.mark_online(token, with_mark);
    }
}
