//! Dual-channel replication: replicas that receive the dump over one connection and the replication stream over another
//! at the same time.
//!
//! ```text
//!   main channel  PSYNC ─▶ +DUALCHANNELSYNC         ┌▶ REPLCONF set-rdb-client-id N, PSYNC ─▶ stream … ACK ─▶ Online
//!   dump channel    SYNC ─▶ $ENDOFF offset id db N ──┘ ─▶ $EOF:mark, bytes …, mark ─▶ closed
//! ```
//!
//! From the moment of the dump on, the stream is kept for the dump channel. The dump is *awaited* until the main
//! channel requests the stream and takes over the pinned offset. So the backlog keeps little more than the bytes in
//! flight, and the replica buffers the stream while it loads the dump. A dump channel may close before the main channel
//! arrives, when the dump is small or the replica slow. The stream is then kept for some more seconds, the *grace
//! period*. The output buffer limits of replicas apply to the kept bytes, too.

use std::time::Duration;

use weft_base::clock::unix_ms;
use weft_base::{ClientId, LogSequence, ParkedClient, ReplicationOffset, ThreadIndex};

use super::PrimaryThread;
use crate::observability::log;
use crate::observability::metrics::Counter;
use crate::replication::{ReplicaChannel, ReplicaSyncState};
use weft_config::{ClientClass, Config, id};
use weft_os::atomic::Ordering;
use weft_os::time::Instant;

/// A dump whose connection is closed and whose stream no main channel has requested yet.
pub(crate) struct AwaitedMainChannel {
    /// The id of the closed client.
    client: ClientId,
    /// The description of the client for the server log.
    description: String,
    since: Instant,
    over_soft_limit_since: Option<Instant>,
}

/// The limits of the bytes kept for a replica.
pub(crate) struct PendingLimits {
    hard_bytes: u64,
    soft_bytes: u64,
    soft: Duration,
}

impl PendingLimits {
    pub(crate) fn of(config: &Config) -> PendingLimits {
        let limit = config.output_buffer_limits()[ClientClass::Replica as usize];
        let backlog_bytes = config.unsigned(id::REPL_BACKLOG_SIZE);
        // The bytes that the backlog keeps in any case cost nothing.
        let at_least = |bytes: u64| if bytes == 0 { u64::MAX } else { bytes.max(backlog_bytes) };
        PendingLimits {
            hard_bytes: at_least(limit.hard_bytes),
            soft_bytes: at_least(limit.soft_bytes),
            soft: Duration::from_secs(limit.soft_seconds.max(0) as u64),
        }
    }

    /// Returns `true` if `bytes` exceeds the limits. `since` is the time since which the soft limit has been exceeded,
    /// and is updated.
    pub(crate) fn are_exceeded(&self, bytes: u64, since: &mut Option<Instant>) -> bool {
        let above = bytes > self.soft_bytes;
        *since = above.then(|| since.unwrap_or_else(Instant::now));
        let too_long = since.is_some_and(|since| !self.soft.is_zero() && since.elapsed() > self.soft);
        bytes > self.hard_bytes || too_long
    }
}

impl PrimaryThread {
    /// Passes the bytes kept for the dump with the client id `dump` to a main channel. Returns `true` if there were
    /// any.
    pub(crate) fn take_over_dump(&mut self, dump: ClientId, name: &str) -> bool {
        let replicas = &self.server.replication.replicas;
        if !replicas.awaited_dumps().remove(&dump) {
            return false;
        }
        log::debug!("Dual channel replication: Remove psync waiting replica {name} with cid {dump}");
        replicas.backlog().unpin(dump);
        self.grace_periods.retain(|grace| grace.client != dump);
        true
    }

    /// Replies to a replica that has named the client of its dump while the links slept.
    pub(crate) fn confirm_dump(&self, requester: ParkedClient, dump: ClientId) {
        let is_awaited = self.server.replication.replicas.awaited_dumps().contains(&dump);
        let reply = match is_awaited {
            true => b"+OK\r\n".to_vec(),
            false => format!("-ERR Unrecognized RDB client id {dump}\r\n").into_bytes(),
        };
        self.server.send_reply(requester, reply, LogSequence::NONE);
    }

    /// Starts to send the stream to a replica that is still loading its dump.
    pub(crate) fn start_stream_during_dump(&mut self, token: usize) {
        let Some(replica) = self.replicas.get_mut(&token) else {
            return;
        };
        replica.progress = ReplicaSyncState::LoadingDump;
        replica.last_heard = Instant::now();
        self.update_info(token, |known| {
            known.progress = ReplicaSyncState::LoadingDump;
            known.channel = ReplicaChannel::Main;
        });
        self.send_backlog(token);
    }

    /// Marks a replica as online if it was loading its dump, because it has acknowledged an offset.
    pub(crate) fn mark_loaded(&mut self, token: usize) {
        let Some(replica) = self.replicas.get_mut(&token) else {
            return;
        };
        if replica.progress == ReplicaSyncState::LoadingDump {
            log::notice!("Synchronization with replica {} succeeded", replica.name);
            self.mark_online(token, false);
        }
    }

    /// Starts the grace period of an awaited dump whose connection is closed.
    pub(crate) fn start_grace_period(&mut self, client: ClientId, name: &str, shown: String) {
        if self.grace_periods.iter().any(|grace| grace.client == client) {
            return;
        }
        let seconds = self.server.replication.replicas.grace_s.load(Ordering::Relaxed);
        log::verbose!("Dual channel replication: Postpone RDB client id={client} ({name}) free for {seconds} seconds");
        assert!(
            self.server.replication.replicas.awaited_dumps().contains(&client),
            "a grace period is that of an awaited dump"
        );
        self.grace_periods.push(AwaitedMainChannel {
            client,
            description: shown,
            since: Instant::now(),
            over_soft_limit_since: None,
        });
    }

    /// Releases the part of the stream that is kept for a dump.
    pub(crate) fn release_awaited_dump(&mut self, client: ClientId) {
        let replicas = &self.server.replication.replicas;
        replicas.awaited_dumps().remove(&client);
        replicas.backlog().unpin(client);
        self.grace_periods.retain(|grace| grace.client != client);
    }

    /// Ends the grace periods that have expired or whose kept bytes exceed the limits.
    pub(crate) fn end_grace_periods(&mut self) {
        if self.grace_periods.is_empty() {
            return;
        }
        let patience = Duration::from_secs(self.server.replication.replicas.grace_s.load(Ordering::Relaxed));
        let bounds = PendingLimits::of(&self.server.config);
        let mut ended = Vec::new();
        let backlog = self.server.replication.replicas.backlog();
        let end = backlog.range().map_or(ReplicationOffset::ZERO, |extent| extent.end);
        for grace in &mut self.grace_periods {
            let bytes = backlog
                .reader_offset(grace.client)
                .map_or(0, |place| end.bytes_since(place));
            if grace.since.elapsed() > patience {
                log::notice!(
                    "Dual channel replication: Replica main channel failed to establish PSYNC within the grace period ({} \
                     seconds). Freeing RDB client {}.",
                    grace.since.elapsed().as_secs(),
                    grace.client
                );
                ended.push(grace.client);
            } else if bounds.are_exceeded(bytes, &mut grace.over_soft_limit_since) {
                log::warning!(
                    "Client {} scheduled to be closed ASAP for overcoming of output buffer limits.",
                    grace.description
                );
                let metrics = &self.server.stats.metrics;
                metrics.add(
                    ThreadIndex::new(self.seat.index()),
                    Counter::OutputBufferDisconnections,
                    1,
                );
                ended.push(grace.client);
            }
        }
        drop(backlog);
        ended.into_iter().for_each(|client| self.release_awaited_dump(client));
    }

    /// Disconnects the replicas whose unsent bytes exceed the limits.
    pub(crate) fn close_over_limit(&mut self) {
        let bounds = PendingLimits::of(&self.server.config);
        let mut far = Vec::new();
        {
            let backlog = self.server.replication.replicas.backlog();
            let end = backlog.range().map_or(ReplicationOffset::ZERO, |extent| extent.end);
            for (token, replica) in &mut self.replicas {
                let behind = backlog
                    .reader_offset(replica.id())
                    .map_or(0, |place| end.bytes_since(place));
                let behind = behind + self.reactor.in_flight(*token) as u64;
                if bounds.are_exceeded(behind, &mut replica.over_soft_limit_since) {
                    far.push(*token);
                }
            }
        }
        for token in far {
            if let Some(replica) = self.replicas.get(&token) {
                let id = replica.id();
                log::warning!(
                    "Client {} scheduled to be closed ASAP for overcoming of output buffer limits.",
                    replica.description(&self.server.config)
                );
                let metrics = &self.server.stats.metrics;
                metrics.add(
                    ThreadIndex::new(self.seat.index()),
                    Counter::OutputBufferDisconnections,
                    1,
                );
                self.release_awaited_dump(id);
            }
            self.close_replica(token);
        }
    }

    /// Logs why a replica that needs a full synchronisation has to wait.
    pub(crate) fn log_dump_delay(&self) {
        let config = &self.server.config;
        match &self.dump {
            Some(dump) if dump.is_streamed => {
                log::notice!("Current BGSAVE has socket target. Waiting for next BGSAVE for SYNC");
            }
            Some(_) => {
                log::notice!("Can't attach the replica to the current BGSAVE. Waiting for next BGSAVE for SYNC");
            }
            None if self.server.persistence.snapshot.purpose().is_some() => log::notice!(
                "No BGSAVE in progress, but another BG operation is active. BGSAVE for replication delayed"
            ),
            None if config.boolean(id::REPL_DISKLESS_SYNC) && config.unsigned(id::REPL_DISKLESS_SYNC_DELAY) > 0 => {
                log::notice!("Delay next BGSAVE for diskless SYNC");
            }
            None => {}
        }
    }
}

impl super::Replica {
    /// Returns the description of its client for the server log.
    pub(crate) fn description(&self, config: &Config) -> String {
        let hides_user_data = config.boolean(id::HIDE_USER_DATA_FROM_LOG);
        let buffers = self.connection.buffers(0);
        self.connection.client.log_line(unix_ms(), buffers, hides_user_data)
    }
}
