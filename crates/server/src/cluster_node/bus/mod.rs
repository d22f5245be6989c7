//! The cluster bus: one thread that exchanges messages with the other nodes and monitors the state of the cluster.
//!
//! ```text
//!   sockets ──▶ bytes ──▶ messages ─┐
//!   ten times a second: a round ────┼──▶ State, under its lock ──▶ Todo, Actions
//!   PUBLISH, CLUSTER … (wake-up) ───┘                                 │
//!                                     1. nodes.conf is written ◀──────┤
//!                                     2. the view is published ◀──────┤
//!                                     3. messages are sent, links ◀───┘
//!                                        opened and closed, keys deleted
//! ```
//!
//! With this order, no node is told anything that this node could forget in a crash, and no command runs with a view
//! that is older than what this node has announced. The thread never waits for a peer: bytes that a socket does not
//! accept stay in flight, and a link with too many of them is closed. It does wait for the disk. If a turn takes longer
//! than the node timeout, workers stop accepting commands ([`Cluster::check_bus_progress`]), and withhold the replies
//! to writes until the bus has heard of a failover, or knows that there was none.

mod links;

use std::sync::Arc;
use std::time::Duration;

use weft_base::clock::{monotonic_us, unix_ms};
use weft_base::{LogSequence, SlotIndex, ThreadIndex};
use weft_reactor::{Event, Reactor};

use crate::cluster_node::key_deletion::{self, ImportMark};
use crate::cluster_node::topology;
use crate::keyspace::effects::Effects;
use crate::keyspace::{Seat, SlotHeader};
use crate::notify::messages::{NotificationSender, wait_until_read, wake_workers};
use crate::notify::pubsub::ChannelNamespace;
use crate::observability::log;
use crate::state::{PauseReason, Server};
use links::BusLinks;
use weft_cluster::node::NodeId;
use weft_cluster::slot_set::SlotSet;
use weft_cluster::state::BusAction;
use weft_cluster::{Cluster, LockedState};
use weft_config::id;
use weft_modules::module::cluster_messages::{self, ClusterMessage};
use weft_os::atomic::{AtomicBool, Ordering};
use weft_os::time::Instant;
use weft_scripting::Requester;
use weft_tls::{TlsError, TlsLayer, TlsState};

pub use links::bus_port;

/// The interval between two rounds.
const ROUND_INTERVAL: Duration = Duration::from_millis(100);
/// The maximum number of events per turn.
const MAX_EVENTS_PER_TURN: usize = 128;
/// The time for which keys are deleted in one turn.
const DELETION_TIME_PER_TURN: Duration = Duration::from_millis(20);
/// The longest time in a turn for which the bus waits for workers that cannot deliver as many messages as arrive. It is
/// short beside the times by which nodes judge each other.
const MAX_DELIVERY_WAIT: Duration = Duration::from_millis(50);
/// The interval between two checks while a failover is imminent.
const URGENT_INTERVAL: Duration = Duration::from_millis(2);

/// The cluster bus, which runs on its own thread.
pub struct ClusterBus {
    server: Arc<Server>,
    seat: Seat,
    reactor: Reactor,
    links: BusLinks,
    next_round: Instant,
    /// Set while something must be checked again very soon.
    is_urgent: bool,
    /// A worker to which this turn has sent more messages than it can read at the moment.
    overloaded_worker: Option<ThreadIndex>,
    /// The progress of stopping writes for a replica that takes over.
    write_stop: Option<StopProgress>,
}

/// The progress of stopping writes on this node.
#[derive(Default)]
struct StopProgress {
    /// The log sequence number of the last write, once no thread can take another one.
    last_sequence: Option<LogSequence>,
    /// Set by the log thread when it adds nothing more to the stream.
    log_settled: Arc<AtomicBool>,
}

impl ClusterBus {
    /// Creates the bus of a server in cluster mode, and listens. Reconciles the slots that have keys with the cluster
    /// configuration file.
    ///
    /// # Errors
    /// When the operating system refuses a socket or the reactor, or the keyspace has no free thread index.
    pub fn prepare(server: &Arc<Server>) -> std::io::Result<Option<ClusterBus>> {
        let Some(cluster) = &server.cluster else {
            return Ok(None);
        };
        let mut reactor = Reactor::new()?;
        let no_seat = || std::io::Error::other("the keyspace has no free thread index");
        let seat = server.keyspace.slots.join().ok_or_else(no_seat)?;
        let links = BusLinks::listen(&server.config, &mut reactor)?;
        let waker = reactor.waker();
        cluster.set_bus_waker(move || waker.wake());
        let mut bus = ClusterBus {
            server: server.clone(),
            seat,
            reactor,
            links,
            next_round: Instant::now(),
            is_urgent: false,
            overloaded_worker: None,
            write_stop: None,
        };
        bus.reconcile_slots_with_keys(cluster);
        Ok(Some(bus))
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// When the operating system refuses to create it.
    pub fn start(mut self) -> std::io::Result<()> {
        weft_os::thread::Builder::new()
            .name("weft-bus".to_owned())
            .spawn(move || self.run())
            .map(drop)
    }

    fn run(&mut self) {
        let server = self.server.clone();
        let Some(cluster) = &server.cluster else {
            return;
        };
        let mut events = Vec::new();
        loop {
            let timeout = self.next_round.saturating_duration_since(Instant::now());
            let timeout = if self.is_urgent {
                timeout.min(URGENT_INTERVAL)
            } else {
                timeout
            };
            events.clear();
            if let Err(error) = self.reactor.wait(Some(timeout), &mut events, MAX_EVENTS_PER_TURN) {
                log::warning!("The cluster bus cannot wait for events: {error}");
                weft_os::thread::sleep(ROUND_INTERVAL);
            }
            let began_us = monotonic_us();
            // A node that sleeps for a test neither sends nor receives.
            server.replication.sleep_if_requested();
            for event in events.drain(..) {
                self.handle(cluster, event);
            }
            self.propagate(cluster);
            if self.is_urgent {
                self.advance_manual_failover(cluster);
            }
            if Instant::now() >= self.next_round {
                self.next_round = Instant::now() + ROUND_INTERVAL;
                self.round(cluster);
            }
            self.perform_todo(cluster);
            self.is_urgent |= topology::check_acknowledgements(&server);
            cluster.record_bus_turn(began_us);
        }
    }

    fn lock<'c>(&self, cluster: &'c Cluster) -> LockedState<'c> {
        topology::lock_state(&self.server, cluster)
    }

    fn handle(&mut self, cluster: &Cluster, event: Event) {
        let now_ms = unix_ms();
        match event {
            Event::Accepted(_, socket) => {
                let Ok(tls) = self.tls(|contexts| contexts.create_node_layer()) else {
                    return;
                };
                if let Some(link) = self.links.add(&mut self.reactor, socket, tls) {
                    self.lock(cluster).on_link_made(link, None, now_ms);
                }
            }
            Event::AcceptFailed(_, error) => log::warning!("Error accepting cluster node: {error}"),
            Event::Readable(link) => {
                let max_bytes = self.lock(cluster).max_message_bytes(link);
                let taken = self.links.receive(&mut self.reactor, link, max_bytes);
                let mut state = self.lock(cluster);
                state.statistics.bytes_received += taken.bytes;
                for message in taken.messages {
                    if let Some(kind) = message.kind {
                        state.statistics.received[kind.number()] += 1;
                        if state.faults.dropped.includes(kind.number()) {
                            if state.faults.ends_links {
                                state.close_link(link);
                            }
                            continue;
                        }
                    }
                    if let Some(content) = message.content {
                        state.receive(link, content, &taken.ends, now_ms);
                    }
                }
                if taken.is_closed {
                    state.on_link_lost(link);
                    drop(state);
                    self.links.remove(&mut self.reactor, link);
                }
            }
            Event::SendFailed(link) | Event::Closed(link) => {
                self.lock(cluster).on_link_lost(link);
                self.links.remove(&mut self.reactor, link);
            }
            Event::Writable(link) => {
                if !self.links.on_sent(&mut self.reactor, link) {
                    self.lock(cluster).on_link_lost(link);
                    self.links.remove(&mut self.reactor, link);
                }
            }
        }
    }

    /// Returns the TLS layer of a new link, or `None` if the bus does not use TLS. Logs the reason if the layer cannot
    /// be created.
    fn tls(&self, make: impl FnOnce(&TlsState) -> Result<TlsLayer, TlsError>) -> Result<Option<TlsLayer>, ()> {
        if !self.server.config.boolean(id::TLS_CLUSTER) {
            return Ok(None);
        }
        make(&self.server.tls)
            .map(Some)
            .map_err(|reason| log::warning!("Cannot create a cluster bus link: {reason}"))
    }

    fn round(&mut self, cluster: &Cluster) {
        let mut state = self.lock(cluster);
        for (link, figures) in &mut state.links {
            figures.queued_bytes = self.links.in_flight(&self.reactor, *link);
            figures.is_blocked = figures.queued_bytes > 0;
        }
        state.run_round(unix_ms());
        cluster.set_peer_count(state.nodes.len().saturating_sub(1));
    }

    /// Sends the messages that were published on this node to the other nodes.
    fn propagate(&mut self, cluster: &Cluster) {
        let published = cluster.take_published();
        if published.is_empty() {
            return;
        }
        let mut state = self.lock(cluster);
        for message in published {
            state.propagate(message.is_sharded, &message.channel, &message.payload, unix_ms());
        }
    }

    /// Performs the actions that changes of the state require.
    fn perform_todo(&mut self, cluster: &Cluster) {
        let (publish, mut actions, pause_end_ms) = {
            let mut state = self.lock(cluster);
            if std::mem::take(&mut state.health_may_have_changed) {
                state.update_health(unix_ms());
            }
            self.is_urgent = state.is_urgent();
            let (actions, pause_end_ms) = state.take_actions();
            (state.todo.publish, actions, pause_end_ms)
        };
        let is_saved = topology::save(&self.server, cluster);
        let is_pause_over = pause_end_ms.is_some_and(|end_ms| unix_ms() >= end_ms);
        if !is_saved || is_pause_over {
            // No message may be sent that this node could forget, in particular no vote. Neither may one that says that
            // writes are paused if the turn has taken longer than the pause that it means.
            actions.retain(|action| !matches!(action, BusAction::Send(..)));
        }
        if publish {
            // If a running script prevents it, the next turn tries again.
            self.is_urgent |= !topology::publish(&self.server, cluster, &mut self.seat);
            // The publication waits for commands.
            if pause_end_ms.is_some_and(|end_ms| unix_ms() >= end_ms) {
                actions.retain(|action| !matches!(action, BusAction::Send(..)));
            }
        }
        for action in actions {
            self.perform_action(cluster, action);
        }
        if let Some(worker) = self.overloaded_worker.take().filter(|_| !self.is_urgent) {
            // After all other actions of the turn, among them the replies to pings.
            wait_until_read(&self.server, worker, MAX_DELIVERY_WAIT, &|| false);
        }
        self.drop_keys(cluster);
    }

    fn perform_action(&mut self, cluster: &Cluster, action: BusAction) {
        match action {
            BusAction::Send(link, bytes) => {
                if !self.links.send(&mut self.reactor, link, bytes) {
                    self.lock(cluster).on_link_lost(link);
                    self.links.remove(&mut self.reactor, link);
                }
            }
            BusAction::Close(link) => self.links.remove(&mut self.reactor, link),
            BusAction::Connect { node, ip, port } => {
                let tls = self.tls(|contexts| contexts.create_outgoing_layer(&ip));
                let link = tls
                    .ok()
                    .and_then(|tls| self.links.connect(&mut self.reactor, &ip, port, tls));
                let mut state = self.lock(cluster);
                match link {
                    Some(link) => state.on_link_made(link, Some(node), unix_ms()),
                    None => {
                        // The timeout for an answer starts now.
                        if let Some(node) = state.nodes.get_mut(&node).filter(|node| node.ping_sent_ms == 0) {
                            node.ping_sent_ms = unix_ms();
                        }
                    }
                }
            }
            BusAction::PauseWrites(until_ms) => self.pause_writes(until_ms),
            BusAction::ResumeWrites => self.resume_writes(),
            BusAction::DeliverToModule {
                sender,
                module,
                kind,
                payload,
            } => self.deliver_to_module(sender, module, kind, payload),
            BusAction::Publish {
                sharded,
                channel,
                payload,
            } => self.deliver(sharded, &channel, &payload),
        }
    }

    /// Lets the home worker deliver a message to a module.
    fn deliver_to_module(&self, sender: NodeId, module: u64, kind: u8, payload: Vec<u8>) {
        let message = ClusterMessage {
            sender: *sender.as_bytes(),
            module,
            kind,
            payload,
        };
        self.server
            .run_session_at_home(move |session| cluster_messages::deliver(session, &message));
    }

    /// Delivers a message that was published on another node.
    fn deliver(&mut self, sharded: bool, channel: &[u8], payload: &[u8]) {
        let mut effects = Effects::default();
        let space = if sharded {
            ChannelNamespace::ShardChannels
        } else {
            ChannelNamespace::Channels
        };
        NotificationSender::new(&self.server, &mut effects, ThreadIndex::new(self.seat.index()))
            .publish_message(space, channel, payload);
        wake_workers(&self.server, &mut effects);
        self.overloaded_worker = effects.full_mailbox.or(self.overloaded_worker);
    }

    // ---- manual failover --------------------------------------------------------------------------------------------
    /// Stops admitting writes, because a replica is about to take over.
    fn pause_writes(&mut self, until_ms: u64) {
        self.server.replication.suppresses_pings.store(true, Ordering::SeqCst);
        self.server
            .pause_clients(PauseReason::Failover, unix_ms(), until_ms, false);
        self.write_stop = Some(StopProgress::default());
        self.is_urgent = true;
    }

    fn resume_writes(&mut self) {
        self.write_stop = None;
        self.server.replication.suppresses_pings.store(false, Ordering::SeqCst);
        self.server.unpause_clients(PauseReason::Failover);
    }

    /// Advances a manual failover.
    fn advance_manual_failover(&mut self, cluster: &Cluster) {
        let may_have_stopped = {
            let state = self.lock(cluster);
            // A pause that is still to begin has nothing to do with the progress of an earlier one.
            let is_pause = |action: &BusAction| matches!(action, BusAction::PauseWrites(_));
            let is_beginning = state.actions.iter().any(is_pause);
            state.is_stopping() && !is_beginning
        };
        let is_still = may_have_stopped && self.has_stopped_writing();
        let mut state = self.lock(cluster);
        match is_still {
            true => state.record_writes_stopped(unix_ms()),
            false => state.check_primary_offset(unix_ms()),
        }
    }

    /// Returns `true` if all writes admitted before the pause are in the backlog, and nothing follows them.
    fn has_stopped_writing(&mut self) -> bool {
        let server = self.server.clone();
        let Some(stop) = &mut self.write_stop else {
            return false;
        };
        let Some(last_sequence) = stop.last_sequence else {
            let running = &server.scripting.running;
            if running.try_exclude_runs_per_tick(Requester::ClusterBus) {
                // In exclusive mode no thread writes.
                let all = self.seat.exclusive();
                stop.last_sequence = Some(server.propagation.last_sequence());
                let is_log_settled = stop.log_settled.clone();
                match server.replication.log_feeds_backlog() {
                    true => server
                        .propagation
                        .schedule_mark(move |_| is_log_settled.store(true, Ordering::SeqCst)),
                    false => is_log_settled.store(true, Ordering::SeqCst),
                }
                drop(all);
                running.end_exclusion();
            }
            return false;
        };
        let feeds_backlog = server.replication.log_feeds_backlog();
        let is_in = || {
            server
                .replication
                .replicas
                .backlog()
                .offset_of_sequence(last_sequence)
                .is_some()
        };
        stop.log_settled.load(Ordering::SeqCst) && (!feeds_backlog || is_in())
    }

    // ---- keys -------------------------------------------------------------------------------------------------------

    /// Deletes the keys of slots that another node owns, once commands use a view in which it does. What takes longer
    /// than a turn may take continues in the next one, so that this node is not taken for failed.
    fn drop_keys(&mut self, cluster: &Cluster) {
        let leftover = {
            let state = self.lock(cluster);
            if state.leftover.is_empty() {
                return;
            }
            (!state.is_handing_over() || state.me().is_replica()).then(|| state.leftover.clone())
        };
        let Some(leftover) = leftover else { return };
        let view = cluster.settled_view();
        if view.is_replica {
            return self.keep_slots_of_primary_to_drop(cluster);
        }
        let until = Instant::now() + DELETION_TIME_PER_TURN;
        // The publication of the view decides about slots that it shows as this node's own.
        for slot in leftover.iter().filter(|slot| !view.is_mine(*slot)) {
            if Instant::now() >= until {
                self.is_urgent = true;
                return;
            }
            if !self.holds_any(slot) || self.drop_keys_of_slot(cluster, slot, until) {
                self.lock(cluster).leftover.set(slot, false);
            }
        }
    }

    fn holds_any(&self, slot: SlotIndex) -> bool {
        self.server.keyspace.slots.header(slot.index()).may_hold_any()
    }

    /// On a replica, the primary deletes keys. If this node takes its place, it goes on with those that are left.
    fn keep_slots_of_primary_to_drop(&mut self, cluster: &Cluster) {
        let mut state = self.lock(cluster);
        let done: Vec<SlotIndex> = state.leftover.iter().filter(|slot| !self.holds_any(*slot)).collect();
        for slot in done {
            state.leftover.set(slot, false);
        }
    }

    /// Deletes the keys of a slot unless the slot comes back, or has come back since this turn began. It was emptied
    /// then, and the keys that it has are new. Returns `false` if it is in use until this time, for instance by a
    /// script.
    fn drop_keys_of_slot(&mut self, cluster: &Cluster, slot: SlotIndex, until: Instant) -> bool {
        let (server, seat) = (&self.server, &mut self.seat);
        // Under the lease, so no view is published between this check and the deletion.
        let should_delete = |server: &Server, slot: SlotIndex, header: &SlotHeader| {
            let Some(cluster) = &server.cluster else { return false };
            let view = cluster.settled_view();
            let is_left = || cluster.lock(&server.config).leftover.contains(slot);
            !header.is_importing() && !view.is_mine(slot) && !view.is_replica && is_left()
        };
        let deleted = key_deletion::delete_keys_of_slot(server, seat, slot, ImportMark::Keep, until, should_delete);
        let Some(keys) = deleted else { return false };
        if keys > 0 {
            let state = self.lock(cluster);
            let me = state.me();
            log::notice!(
                "Deleting keys in dirty slot {slot} on node {} in shard {} ({keys} keys)",
                me.log_name(),
                me.shard
            );
        }
        true
    }

    /// Assigns unowned slots that have keys to this node, and deletes the keys of slots that other nodes own, except in
    /// slots that this node imports. All this is what Valkey does. Keys that were kept in a slot that no node claims
    /// stay as they are: another node may have newer ones, or none.
    fn reconcile_slots_with_keys(&mut self, cluster: &Cluster) {
        let is_occupied = |slot: &SlotIndex| {
            let header = self.server.keyspace.slots.header(slot.index());
            header.may_hold_any() && !header.is_importing()
        };
        let occupied: Vec<SlotIndex> = SlotIndex::all().filter(is_occupied).collect();
        let mut state = self.lock(cluster);
        if state.me().is_replica() {
            return;
        }
        let (myself, mut lost) = (state.myself, SlotSet::default());
        for slot in occupied {
            if state.importing.contains_key(&slot) {
                // The keys are those that have come already, whoever owns the slot.
                continue;
            }
            match state.owner(slot) {
                owner if owner != Some(myself) && state.keeps_keys_of(slot) => {
                    log::notice!("I keep keys for slot {slot}, which no node claims, until another node claims it.");
                }
                None => {
                    log::notice!("I have keys for unassigned slot {slot}. Taking responsibility for it.");
                    state.add_slot(myself, slot);
                    state.todo.save = true;
                }
                Some(owner) if owner != myself => {
                    log::notice!(
                        "I have keys for slot {slot}, but the slot is assigned to another node. Deleting keys in the slot."
                    );
                    lost.set(slot, true);
                }
                Some(_) => {}
            }
        }
        state.leftover = lost.clone();
        drop(state);
        for slot in lost.iter() {
            // Commands and scripts run only later.
            if self.drop_keys_of_slot(cluster, slot, Instant::now()) {
                self.lock(cluster).leftover.set(slot, false);
            }
        }
        topology::save(&self.server, cluster);
        topology::publish(&self.server, cluster, &mut self.seat);
    }
}
