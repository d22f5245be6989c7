//! Replicas that take the dump over a connection of its own, and the stream over another one meanwhile.
//!
//! ```text
//!   main channel   PSYNC ─▶ +DUALCHANNELSYNC                 ┌▶ REPLCONF set-rdb-client-id N, PSYNC ─▶ stream … ACK ─▶ Online
//!   dump channel            SYNC ─▶ $ENDOFF offset id db N ──┘ ─▶ $EOF:mark, bytes …, mark ─▶ closed
//! ```
//!
//! From the moment of the dump on its stream is kept for the dump channel: that is *awaited*, until the main channel asks
//! for the stream and takes the place over. So the backlog has to keep little more than what is on its way, and what
//! comes while the replica loads is kept by the replica. A dump channel may be gone before that, when the dump is small or
//! the replica slow; then the stream is kept for some seconds more, its *grace*. The limits of replicas' outputs hold for
//! what is kept, too.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use weft_reactor::unix_ms;

use super::PrimaryThread;
use crate::config::{ClientClass, Config, id};
use crate::observability::log;
use crate::observability::metrics::Counter;
use crate::replication::{Channel, Progress};

/// A dump whose connection is gone, and whose stream nobody has asked for yet.
pub(crate) struct AwaitedMainChannel {
    /// The id that the client had.
    client: u64,
    /// How the log shows it.
    shown: Vec<u8>,
    since: Instant,
    over_soft_limit_since: Option<Instant>,
}

/// How much may be kept for a replica.
pub(crate) struct PendingLimits {
    hard_bytes: u64,
    soft_bytes: u64,
    soft: Duration,
}

impl PendingLimits {
    pub(crate) fn of(config: &Config) -> PendingLimits {
        let limit = config.output_buffer_limits()[ClientClass::Replica as usize];
        let backlog_bytes = config.unsigned(id::REPL_BACKLOG_SIZE);
        // What the backlog keeps anyhow costs nothing.
        let at_least = |bytes: u64| if bytes == 0 { u64::MAX } else { bytes.max(backlog_bytes) };
        PendingLimits {
            hard_bytes: at_least(limit.hard_bytes),
            soft_bytes: at_least(limit.soft_bytes),
            soft: Duration::from_secs(limit.soft_seconds.max(0) as u64),
        }
    }

    /// Whether that is too much, for who has been above the soft limit since then.
    pub(crate) fn are_passed(&self, bytes: u64, since: &mut Option<Instant>) -> bool {
        let above = bytes > self.soft_bytes;
        *since = above.then(|| since.unwrap_or_else(Instant::now));
        let too_long = since.is_some_and(|since| !self.soft.is_zero() && since.elapsed() > self.soft);
        bytes > self.hard_bytes || too_long
    }
}

impl PrimaryThread {
    /// A main channel takes over what was kept for a dump; whether there is something.
    pub(crate) fn associate(&mut self, dump: u64, name: &str) -> bool {
        let replicas = &self.server.repl.replicas;
        if !replicas.awaited().remove(&dump) {
            return false;
        }
        log::debug!("Dual channel replication: Remove psync waiting replica {name} with cid {dump}");
        replicas.backlog().unpin(dump);
        self.graces.retain(|grace| grace.client != dump);
        true
    }

    /// A replica gets the stream while its dump is on its way.
    pub(crate) fn stream_beside_dump(&mut self, token: usize) {
        let Some(replica) = self.replicas.get_mut(&token) else {
            return;
        };
        replica.progress = Progress::LoadsDump;
        replica.heard = Instant::now();
        self.publish(token, |known| {
            known.progress = Progress::LoadsDump;
            known.channel = Channel::Main;
        });
        self.pump(token);
    }

    /// A replica has told how far it is: if it did not have its dump before, it has it now.
    pub(crate) fn note_loaded(&mut self, token: usize) {
        let Some(replica) = self.replicas.get_mut(&token) else {
            return;
        };
        if replica.progress == Progress::LoadsDump {
            log::notice!("Synchronization with replica {} succeeded", replica.name);
            self.go_online(token, false);
        }
    }

    /// The connection of an awaited dump is gone.
    pub(crate) fn postpone(&mut self, client: u64, name: &str, shown: Vec<u8>) {
        if self.graces.iter().any(|grace| grace.client == client) {
            return;
        }
        let seconds = self.server.repl.replicas.grace_s.load(Ordering::Relaxed);
        log::verbose!("Dual channel replication: Postpone RDB client id={client} ({name}) free for {seconds} seconds");
        self.graces.push(AwaitedMainChannel {
            client,
            shown,
            since: Instant::now(),
            over_soft_limit_since: None,
        });
    }

    /// Nothing is kept for a dump any more.
    pub(crate) fn give_up(&mut self, client: u64) {
        let replicas = &self.server.repl.replicas;
        replicas.awaited().remove(&client);
        replicas.backlog().unpin(client);
        self.graces.retain(|grace| grace.client != client);
    }

    /// Gives up what was kept for too long, or has become too much.
    pub(crate) fn end_graces(&mut self) {
        if self.graces.is_empty() {
            return;
        }
        let patience = Duration::from_secs(self.server.repl.replicas.grace_s.load(Ordering::Relaxed));
        let bounds = PendingLimits::of(&self.server.config);
        let mut ended = Vec::new();
        let backlog = self.server.repl.replicas.backlog();
        let end = backlog.extent().map_or(0, |extent| extent.end);
        for grace in &mut self.graces {
            let bytes = backlog
                .place(grace.client)
                .map_or(0, |place| (end - place).max(0) as u64);
            if grace.since.elapsed() > patience {
                log::notice!(
                    "Dual channel replication: Replica main channel failed to establish PSYNC within the grace period ({} \
                     seconds). Freeing RDB client {}.",
                    grace.since.elapsed().as_secs(),
                    grace.client
                );
                ended.push(grace.client);
            } else if bounds.are_passed(bytes, &mut grace.over_soft_limit_since) {
                log::warning!(
                    "Client {} scheduled to be closed ASAP for overcoming of output buffer limits.",
                    String::from_utf8_lossy(&grace.shown)
                );
                let metrics = &self.server.metrics;
                metrics.add(self.seat.index(), Counter::OutputBufferDisconnections, 1);
                ended.push(grace.client);
            }
        }
        drop(backlog);
        ended.into_iter().for_each(|client| self.give_up(client));
    }

    /// Disconnects who has so much to come that the limits are passed.
    pub(crate) fn close_far_behind(&mut self) {
        let bounds = PendingLimits::of(&self.server.config);
        let mut far = Vec::new();
        {
            let backlog = self.server.repl.replicas.backlog();
            let end = backlog.extent().map_or(0, |extent| extent.end);
            for (token, replica) in &mut self.replicas {
                let behind = backlog
                    .place(replica.id())
                    .map_or(0, |place| (end - place).max(0) as u64);
                let behind = behind + self.reactor.in_flight(*token) as u64;
                if bounds.are_passed(behind, &mut replica.over_soft_limit_since) {
                    far.push(*token);
                }
            }
        }
        for token in far {
            if let Some(replica) = self.replicas.get(&token) {
                let id = replica.id();
                log::warning!(
                    "Client {} scheduled to be closed ASAP for overcoming of output buffer limits.",
                    String::from_utf8_lossy(&replica.shown())
                );
                let metrics = &self.server.metrics;
                metrics.add(self.seat.index(), Counter::OutputBufferDisconnections, 1);
                self.give_up(id);
            }
            self.close(token);
        }
    }

    /// Tells the log what a replica that needs all data waits for.
    pub(crate) fn tell_when_dump_begins(&self) {
        let config = &self.server.config;
        match &self.dump {
            Some(dump) if dump.with_mark => {
                log::notice!("Current BGSAVE has socket target. Waiting for next BGSAVE for SYNC");
            }
            Some(_) => {
                log::notice!("Can't attach the replica to the current BGSAVE. Waiting for next BGSAVE for SYNC");
            }
            None if self.server.snapshot.purpose().is_some() => log::notice!(
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
    /// How the log shows its client.
    pub(crate) fn shown(&self) -> Vec<u8> {
        self.connection.client.list_line(unix_ms(), self.connection.buffers(0))
    }
}
