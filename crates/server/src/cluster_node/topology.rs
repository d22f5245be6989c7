//! Applies changes of the cluster state: publishes the view that commands use, changes this server's replication role,
//! and writes the cluster configuration file.
//!
//! The state records which primary this node follows. When a view is published, in exclusive mode, the server's role is
//! changed to agree with it. So there is no moment at which commands use one role and data is written under the other.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use weft_base::clock::unix_ms;
use weft_base::{ClientId, DbIndex, LogSequence, ReplicationOffset, SlotIndex, ThreadIndex};

use crate::cluster_node::key_deletion::{self, DeletedKeys};
use crate::keyspace::access::WholeKeyspace;
use crate::keyspace::effects::{Effects, Hooks};
use crate::keyspace::flush::{DetachedTables, take_databases};
use crate::keyspace::slot_drop;
use crate::keyspace::{Exclusive, Seat};
use crate::notify::messages::{NotificationSender, wake_workers};
use crate::observability::log;
use crate::propagation::LogTarget;
use crate::replication::role;
use crate::replication::{Endpoint, ReplicaInfo, ReplicationState};
use crate::runtime::shutdown::ShutdownOptions;
use crate::state::{AcknowledgementLimits, BackgroundJob, Message, PauseReason, PendingAcknowledgement, Server};
use weft_cluster::node::NodeId;
use weft_cluster::slot_set::SlotSet;
use weft_cluster::state::{ClusterState, DataState};
use weft_cluster::view::ClusterView;
use weft_cluster::{Cluster, LockedState};
use weft_config::id;
use weft_os::atomic::Ordering;
use weft_os::time::Instant;
use weft_scripting::{Requester, ScriptRun};

/// The interval between two checks by a thread that waits for other nodes.
const RETRY: Duration = Duration::from_millis(1);
/// The maximum time for a replica to take over from a node that shuts down.
const FAILOVER_NOTICE_TIMEOUT: Duration = Duration::from_millis(1000);
/// The minimum time for which a node that shuts down waits for the acknowledgement of a replica, which reports its
/// offset each second.
const ACKNOWLEDGEMENT_TIMEOUT: Duration = Duration::from_millis(1200);
/// The maximum time for which a node that shuts down waits until no other node may take slots over from it. A target
/// that does not answer is waited for during four seconds.
const TAKEOVER_WAIT_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum time for each of these steps if the shutdown must not wait. Valkey waits for nothing then, not even for
/// the offsets that were requested right before.
const IMMEDIATE_STEP_TIMEOUT: Duration = Duration::from_millis(100);

/// The keys of slots on this node, for a caller in exclusive mode.
pub struct SlotKeyCounts<'a, 'p> {
    all: &'a Exclusive<'p>,
    flush_requested: Cell<bool>,
    to_empty: RefCell<SlotSet>,
}

impl SlotKeyCounts<'_, '_> {
    /// Returns the number of keys of a slot, in all databases.
    pub fn count_in_slot(&self, slot: SlotIndex) -> usize {
        slot_drop::count_keys_of_slot(self.all.cell(slot.index()))
    }

    /// Requests the deletion of the keys that are left in a slot from before it left this node, if there are any.
    pub fn request_emptying(&self, state: &mut ClusterState, slot: SlotIndex) {
        if state.leftover.set(slot, false) {
            self.to_empty.borrow_mut().set(slot, true);
        }
    }

    /// Requests the deletion of all keys once the change is in place.
    pub fn request_flush(&self) {
        self.flush_requested.set(true);
    }
}

/// Locks the cluster state after updating it with the state of this node's data.
pub fn lock_state<'c>(server: &Server, cluster: &'c Cluster) -> LockedState<'c> {
    let repl = &server.replication;
    let hollow = repl.awaits_full_sync.load(Ordering::Acquire);
    let data = DataState {
        // Also while the cluster state names a primary that this server does not follow yet, because a script runs:
        // that primary was never heard, so this server must not be elected with its own older data.
        age_ms: repl.silence_ms(unix_ms()),
        awaits_full_sync: hollow,
    };
    let offset = if hollow {
        0
    } else {
        repl.offset().bytes_since(ReplicationOffset::ZERO)
    };
    let mut state = cluster.lock(&server.config);
    state.data = data;
    state.me_mut().offset = offset;
    state
}

/// Changes the cluster state while no command runs, publishes the new view and writes the file. The reply may be sent
/// after that.
pub fn change_state<R>(
    server: &Arc<Server>,
    cluster: &Cluster,
    seat: &mut Seat,
    change: impl FnOnce(&mut ClusterState, &SlotKeyCounts<'_, '_>) -> R,
) -> R {
    server.scripting.running.exclude_runs();
    change_state_without_scripts(server, cluster, seat, change)
}

/// Does the same for a command of a client, which does not wait for a script that may never end.
///
/// # Errors
/// An overdue run of a script. Nothing has changed then.
pub fn change_state_for_client<R>(
    server: &Arc<Server>,
    cluster: &Cluster,
    seat: &mut Seat,
    change: impl FnOnce(&mut ClusterState, &SlotKeyCounts<'_, '_>) -> R,
) -> Result<R, Arc<ScriptRun>> {
    server.scripting.running.exclude_runs_for_client()?;
    Ok(change_state_without_scripts(server, cluster, seat, change))
}

/// Changes the state for a caller that has excluded scripts, and ends their exclusion.
fn change_state_without_scripts<R>(
    server: &Arc<Server>,
    cluster: &Cluster,
    seat: &mut Seat,
    change: impl FnOnce(&mut ClusterState, &SlotKeyCounts<'_, '_>) -> R,
) -> R {
    let thread_index = ThreadIndex::new(seat.index());
    let mut all = seat.exclusive();
    let (result, emptied, to_empty) = {
        let keys = SlotKeyCounts {
            all: &all,
            flush_requested: Cell::new(false),
            to_empty: RefCell::default(),
        };
        let mut state = lock_state(server, cluster);
        let result = change(&mut state, &keys);
        state.update_health(unix_ms());
        (result, keys.flush_requested.get(), keys.to_empty.into_inner())
    };
    let deleted = key_deletion::delete_keys_exclusively(server, &mut all, thread_index, to_empty.iter());
    let publication = publish_next_view(server, cluster, &mut all, thread_index);
    let taken = emptied.then(|| flush_all(server, &mut all, thread_index));
    drop(all);
    server.scripting.running.end_exclusion();
    save(server, cluster);
    deleted.finish(server, thread_index);
    publication.finish(server, cluster, thread_index);
    cluster.wake_bus();
    if let Some(DetachedTables { tables, keys }) = taken {
        server.background.lazyfree.free(keys, 0, Box::new(tables));
    }
    result
}

/// A takeover of slots that this node has imported.
pub struct Takeover<'t, R> {
    /// The slots.
    pub slots: &'t SlotSet,
    /// Returns the present owner of the slots, or the reason for which they may not be taken over.
    pub check: &'t dyn Fn(&ClusterState) -> Result<NodeId, R>,
    /// Decides finally, when the new owner is on disk; `true` if storing it has succeeded.
    pub confirm: &'t dyn Fn(bool) -> Result<(), R>,
}

/// Takes slots over in exclusive mode: their keys become visible together with the view that makes this node their
/// owner. Returns `None` without a change while a script runs on a separate thread, or a replica takes over from this
/// node: it would not know of the slots. The same holds while a replica may win an election against the present owner
/// or against this node, as far as this node has heard: the takeover has a newer epoch, so the writes that the replica
/// accepts before it hears of that would be lost.
///
/// The file is written before any command runs: after a crash, this node would otherwise delete keys that were written
/// in the meantime. Other nodes hear of the change only when it is confirmed, since the state is locked until then. So
/// a disk that takes too long ends the takeover without a trace.
pub fn try_take_over<R>(
    server: &Arc<Server>,
    cluster: &Cluster,
    seat: &mut Seat,
    takeover: &Takeover<'_, R>,
) -> Option<Result<(), R>> {
    let must_wait = |state: &ClusterState| {
        let may_lose = |node| state.may_lose_election(node, unix_ms());
        let source = (takeover.check)(state);
        source.is_ok_and(|source| state.is_handing_over() || may_lose(source) || may_lose(state.myself))
    };
    // The caller tries again soon, so it does not close the gate in vain each time.
    let is_early = must_wait(&lock_state(server, cluster));
    if is_early || !server.scripting.running.try_exclude_runs(Requester::SlotTakeover) {
        return None;
    }
    let thread_index = ThreadIndex::new(seat.index());
    let mut all = seat.exclusive();
    let result = {
        let file = cluster.lock_file();
        let mut state = lock_state(server, cluster);
        let may_decide = !must_wait(&state);
        let result = may_decide.then(|| {
            let source = (takeover.check)(&state)?;
            state.take_over_slots(takeover.slots);
            let is_saved = file.save(&mut state).is_ok() || !must_save(server);
            let confirmed = (takeover.confirm)(is_saved);
            match confirmed {
                Ok(()) => {
                    for slot in takeover.slots.iter() {
                        all.header(slot.index()).set_importing(false);
                    }
                    state.broadcast_pong(unix_ms());
                }
                Err(_) => {
                    state.return_slots(takeover.slots, source);
                    // The file names this node. If the process ended before the next save, it would come back as the
                    // owner. Errors are dealt with by that save.
                    let _ = file.save(&mut state);
                }
            }
            confirmed
        });
        state.update_health(unix_ms());
        result
    };
    let publication = publish_next_view(server, cluster, &mut all, thread_index);
    drop(all);
    server.scripting.running.end_exclusion();
    save(server, cluster);
    publication.finish(server, cluster, thread_index);
    cluster.wake_bus();
    result
}

/// Propagates a command to the replicas. Returns its log sequence number. Called on a background thread.
fn propagate_to_replicas(server: &Arc<Server>, seat: &mut Seat, words: &[&[u8]]) -> LogSequence {
    server.scripting.running.exclude_runs();
    propagate_without_scripts(server, seat, words)
}

/// Does the same for a command of a client, which does not wait for a script that may never end.
///
/// # Errors
/// An overdue run of a script. Nothing was propagated then.
fn propagate_for_client(server: &Arc<Server>, seat: &mut Seat, words: &[&[u8]]) -> Result<LogSequence, Arc<ScriptRun>> {
    server.scripting.running.exclude_runs_for_client()?;
    Ok(propagate_without_scripts(server, seat, words))
}

/// Propagates a command for a caller that has excluded scripts, and ends their exclusion.
fn propagate_without_scripts(server: &Arc<Server>, seat: &mut Seat, words: &[&[u8]]) -> LogSequence {
    let sequence = {
        let _all = seat.exclusive();
        let mut log_writer = server.propagation.log_writer();
        if logs_for_replicas(server) {
            log_writer.propagate_before(LogTarget::REPLICAS, DbIndex::FIRST, words);
            log_writer.commit();
        }
        log_writer.last_sequence()
    };
    server.scripting.running.end_exclusion();
    server.replication.replicas.request_acks();
    server.propagation.request_flush();
    sequence
}

/// A command that was sent to the replicas before it takes effect on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PropagatedCommand {
    /// `true` if all replicas that were online have acknowledged it in time.
    pub is_acknowledged: bool,
    /// Its position in the propagation log; none if nothing is logged for replicas. The reply depends on it like that
    /// to a write: a replica may have taken over without it.
    pub log_sequence: LogSequence,
}

impl PropagatedCommand {
    /// A command of a node without replicas and backlog.
    const UNLOGGED: PropagatedCommand = PropagatedCommand {
        is_acknowledged: true,
        log_sequence: LogSequence::NONE,
    };
}

/// A command that was sent to the replicas, which may not have acknowledged it yet.
pub struct AwaitedCommand {
    log_sequence: LogSequence,
    /// The number of replicas that must acknowledge it.
    replicas: i64,
    limits: AcknowledgementLimits,
}

impl AwaitedCommand {
    /// Returns `None` while replicas may still acknowledge the command in time. The caller asks again soon.
    pub fn poll(&mut self, server: &Server) -> Option<PropagatedCommand> {
        let log_sequence = self.log_sequence;
        let acknowledged = server.replication.replicas.acknowledged_sequence_count(log_sequence);
        let is_acknowledged = acknowledged >= self.replicas;
        if !is_acknowledged && !self.limits.is_over(server) {
            server.propagation.wake();
            return None;
        }
        Some(PropagatedCommand {
            is_acknowledged,
            log_sequence,
        })
    }
}

/// Propagates a command to the replicas, if there are any, which have up to `patience` to acknowledge it. So a replica
/// that takes over knows what this node is about to do. One that has lost its connection gets the command from the
/// backlog. If a client requested it, the wait also ends some time after the client has gone, and with the role of this
/// node. Called on a background thread.
///
/// # Errors
/// An overdue run of a script, which may never end. Nothing was propagated then.
pub fn propagate(
    server: &Arc<Server>,
    seat: &mut Seat,
    words: &[&[u8]],
    patience: Duration,
    client: Option<ClientId>,
) -> Result<AwaitedCommand, Arc<ScriptRun>> {
    let requester = client.map(|client| (client, server.replication.role_epoch()));
    let replicas = server.replication.replicas.online_count();
    let log_sequence = match replicas == 0 && !logs_for_replicas(server) {
        true => LogSequence::NONE,
        false => propagate_for_client(server, seat, words)?,
    };
    Ok(AwaitedCommand {
        log_sequence,
        replicas,
        limits: AcknowledgementLimits::new(patience, requester),
    })
}

/// Returns `true` if the propagation log feeds a backlog for replicas.
fn logs_for_replicas(server: &Server) -> bool {
    server.keyspace.hooks.current().intersects(Hooks::LOG_REPLICAS)
}

/// Does the same as [`propagate`] for a caller that does not ask. `then` is called later with the result, and returns
/// the job that continues.
///
/// # Errors
/// An overdue run of a script, which may never end. Nothing was propagated then, and `then` is not called.
pub fn propagate_then(
    server: &Arc<Server>,
    seat: &mut Seat,
    words: &[&[u8]],
    patience: Duration,
    client: ClientId,
    then: impl FnOnce(PropagatedCommand) -> BackgroundJob + Send + 'static,
) -> Result<(), Arc<ScriptRun>> {
    let requester = Some((client, server.replication.role_epoch()));
    let replicas = server.replication.replicas.online_count();
    if replicas == 0 && !logs_for_replicas(server) {
        then(PropagatedCommand::UNLOGGED)(server, seat);
        return Ok(());
    }
    let log_sequence = propagate_for_client(server, seat, words)?;
    let with_result = move |is_acknowledged| {
        then(PropagatedCommand {
            is_acknowledged,
            log_sequence,
        })
    };
    if replicas == 0 {
        with_result(true)(server, seat);
        return Ok(());
    }
    server.background.acknowledgements.lock().push(PendingAcknowledgement {
        sequence: log_sequence,
        replicas,
        limits: AcknowledgementLimits::new(patience, requester),
        continuation: Box::new(with_result),
    });
    if let Some(cluster) = &server.cluster {
        cluster.wake_bus();
    }
    Ok(())
}

/// Schedules the jobs whose commands the replicas have acknowledged, or whose wait is over. Returns `true` if other
/// jobs still wait. Called by the bus.
pub fn check_acknowledgements(server: &Arc<Server>) -> bool {
    let mut waiting = server.background.acknowledgements.lock();
    if waiting.is_empty() {
        return false;
    }
    server.propagation.wake();
    let replicas = &server.replication.replicas;
    for mut pending in std::mem::take(&mut *waiting) {
        let is_acknowledged = replicas.acknowledged_sequence_count(pending.sequence) >= pending.replicas;
        if is_acknowledged || pending.limits.is_over(server) {
            // Sending fails only without background threads, when the process is about to end.
            let job = (pending.continuation)(is_acknowledged);
            let _ = server.background.long_commands.send(job);
        } else {
            waiting.push(pending);
        }
    }
    !waiting.is_empty()
}

/// The maximum times for the steps of a failover on shutdown.
#[derive(Debug, PartialEq, Eq)]
struct HandoverTimeouts {
    /// Until no other node may take slots over from this one.
    takeovers: Duration,
    /// Until a replica has acknowledged all writes.
    acknowledgement: Duration,
    /// Until the replica has taken over.
    notice: Duration,
}

impl HandoverTimeouts {
    /// Returns the times for a shutdown that waits up to `patience` for replicas. It is zero if the shutdown must not
    /// wait.
    fn new(patience: Duration) -> HandoverTimeouts {
        if patience.is_zero() {
            return HandoverTimeouts {
                takeovers: IMMEDIATE_STEP_TIMEOUT,
                acknowledgement: IMMEDIATE_STEP_TIMEOUT,
                notice: IMMEDIATE_STEP_TIMEOUT,
            };
        }
        let acknowledgement = patience.max(ACKNOWLEDGEMENT_TIMEOUT);
        HandoverTimeouts {
            takeovers: acknowledgement.min(TAKEOVER_WAIT_TIMEOUT),
            acknowledgement,
            notice: FAILOVER_NOTICE_TIMEOUT,
        }
    }
}

/// Makes the replica with the greatest offset take over, because this server is about to shut down. Waits up to
/// `patience` for that replica to acknowledge all writes, and hardly at all if that is zero. The acknowledgements were
/// requested before the final dump was written: a request in the stream would be missing in the dump.
pub fn fail_over_on_shutdown(server: &Arc<Server>, patience: Duration) {
    let Some(cluster) = server.cluster.as_ref().filter(|_| !server.replication.is_replica()) else {
        return;
    };
    let Some(mut seat) = server.keyspace.join_within(IMMEDIATE_STEP_TIMEOUT) else {
        log::warning!("No auto failover on shutdown, because the keyspace has no free thread index.");
        return;
    };
    let replicas = &server.replication.replicas;
    {
        let mut state = cluster.lock(&server.config);
        if !state.me().has_vote() {
            return;
        }
        // From now on, no other node is permitted to take slots over.
        state.is_handing_over_on_shutdown = true;
    }
    server.pause_clients(PauseReason::Shutdown, unix_ms(), u64::MAX, false);
    // Every write under way ends before exclusive mode is reached.
    server.scripting.running.exclude_runs();
    let last_sequence = {
        let _all = seat.exclusive();
        server.propagation.last_sequence()
    };
    server.scripting.running.end_exclusion();
    let timeouts = HandoverTimeouts::new(patience);
    if !wait_for_takeovers(server, cluster, timeouts.takeovers) {
        log::warning!("No auto failover on shutdown, because another node may still take slots over.");
        return;
    }
    let start = Instant::now();
    let target = loop {
        let offset = replicas.backlog().offset_of_sequence(last_sequence);
        let has_all = |replica: &ReplicaInfo| offset.is_some_and(|offset| replica.acknowledged_offset >= offset);
        match replicas.furthest_node() {
            Some(replica) if has_all(&replica) => break Some(replica),
            // A replica without all writes would lose some.
            Some(_) if start.elapsed() >= timeouts.acknowledgement => break None,
            None => break None,
            Some(_) => {}
        }
        server.propagation.wake();
        weft_os::thread::sleep(RETRY);
    };
    let Some(ReplicaInfo { id, node, .. }) = target else {
        log::notice!("Unable to find a replica to perform the auto failover on shutdown.");
        return;
    };
    log::notice!("Perform auto failover to replica {node} on shutdown.");
    let words: [&[u8]; 5] = [b"CLUSTER", b"FAILOVER", b"FORCE", b"REPLICAID", node.as_bytes()];
    let sequence = propagate_to_replicas(server, &mut seat, &words);
    if !wait_for_successor(server, id, sequence, timeouts.notice) {
        log::warning!("The replica has not acknowledged the failover.");
    }
}

/// Waits until a replica, given by the id of its client, has taken over: then it closes its connection. Until then this
/// node can vote for it, which it may need in a small cluster. Returns `false` if the replica has not even acknowledged
/// the command with this sequence number within `timeout`.
fn wait_for_successor(server: &Server, replica: ClientId, sequence: LogSequence, timeout: Duration) -> bool {
    let replicas = &server.replication.replicas;
    let start = Instant::now();
    let mut has_requested = false;
    while let Some(acknowledged) = replicas.acknowledged_offset_of(replica) {
        let offset = replicas.backlog().offset_of_sequence(sequence);
        if start.elapsed() >= timeout {
            return offset.is_some_and(|offset| acknowledged >= offset);
        }
        // Not earlier: the request has to follow the command in the stream. What follows the final dump there does not
        // matter any more, because a replica takes over.
        if offset.is_some() && !std::mem::replace(&mut has_requested, true) {
            server.request_acks_at_shutdown();
        }
        server.propagation.wake();
        weft_os::thread::sleep(RETRY);
    }
    true
}

/// Waits until no other node may take slots over from this one: a replica would be elected with the same slots. Returns
/// `false` if that takes longer than `timeout`.
fn wait_for_takeovers(server: &Server, cluster: &Cluster, timeout: Duration) -> bool {
    let start = Instant::now();
    while !cluster.lock(&server.config).granted.is_empty() {
        if start.elapsed() >= timeout {
            return false;
        }
        weft_os::thread::sleep(RETRY);
    }
    true
}

/// Publishes a change of the state that was not made by a command. Returns `false` if that is impossible because a
/// script runs on a separate thread. Commands to slots that were lost are refused all the same.
pub fn publish(server: &Arc<Server>, cluster: &Cluster, seat: &mut Seat) -> bool {
    let running = &server.scripting.running;
    if !running.try_exclude_runs_per_tick(Requester::ClusterBus) {
        let state = cluster.lock(&server.config);
        if withdraw_what_is_lost(server, cluster, &state) {
            server
                .replication
                .set_state_bits(ReplicationState::ROLE_CHANGE_PENDING, true);
        }
        return false;
    }
    let thread_index = ThreadIndex::new(seat.index());
    let mut all = seat.exclusive();
    let publication = publish_next_view(server, cluster, &mut all, thread_index);
    drop(all);
    running.end_exclusion();
    publication.finish(server, cluster, thread_index);
    true
}

/// Refuses commands to slots that this node has lost according to a state that cannot be published yet: what they write
/// would be lost. Returns `true` if this server is to become a replica, which must not write at all.
fn withdraw_what_is_lost(server: &Server, cluster: &Cluster, state: &ClusterState) -> bool {
    cluster.restrict_view(state);
    state.me().is_replica() && !server.replication.is_replica()
}

/// Changes the server's role to agree with the cluster configuration file. Called before there are any clients.
pub fn apply_loaded_role(server: &Arc<Server>, cluster: &Cluster) {
    adopt_role(server, &cluster.view(), false);
}

/// A view that was published.
struct Publication {
    /// The view before it that was published in exclusive mode, if it differs.
    before: Option<Arc<ClusterView>>,
    /// The keys that were left in slots which can get new keys under the published view.
    deleted: DeletedKeys,
}

impl Publication {
    /// Does what follows after the exclusive mode.
    fn finish(self, server: &Arc<Server>, cluster: &Cluster, thread_index: ThreadIndex) {
        if self.deleted.count() > 0 {
            log::notice!(
                "Deleted {} keys that were left in slots of other nodes.",
                self.deleted.count()
            );
        }
        self.deleted.finish(server, thread_index);
        notify_clients_of_lost_slots(server, cluster, self.before);
    }
}

/// Publishes the next view, if there is one, and takes its role. Keys of slots that this node had lost are deleted
/// before it can get new keys in them, if the bus has not deleted them yet. Called in exclusive mode.
fn publish_next_view(
    server: &Arc<Server>,
    cluster: &Cluster,
    all: &mut Exclusive<'_>,
    thread_index: ThreadIndex,
) -> Publication {
    let next = cluster.next_view(server.propagation.last_sequence());
    let deleted = key_deletion::delete_keys_exclusively(server, all, thread_index, next.to_empty.iter());
    let before = next.view.map(|view| cluster.publish_view(view));
    if next.settles_writes {
        server.wake_log_waiters();
    }
    if let Some(before) = &before {
        // The statistics of a slot under its former owner do not apply to the new one.
        server.stats.slots.reset(cluster.view().moved_since(before));
        // A migration may have ended, or become impossible.
        server.background.wake_migration_thread();
        if before.is_replica && !cluster.view().is_replica {
            let occupied = SlotIndex::all().filter(|slot| {
                let header = server.keyspace.slots.header(slot.index());
                header.may_hold_any() && !header.is_importing()
            });
            cluster.lock(&server.config).add_leftover(occupied);
        }
    }
    adopt_role(server, &cluster.view(), next.needs_full_sync);
    // The bus may have learned more meanwhile, and could not publish it.
    let state = cluster.lock(&server.config);
    let is_role_pending = state.todo.publish && withdraw_what_is_lost(server, cluster, &state);
    server
        .replication
        .set_state_bits(ReplicationState::ROLE_CHANGE_PENDING, is_role_pending);
    drop(state);
    Publication { before, deleted }
}

/// Makes this server follow the primary that the view names. Called in exclusive mode.
fn adopt_role(server: &Arc<Server>, view: &ClusterView, resync: bool) {
    let followed = server.replication.state().primary.clone();
    match &view.primary_address {
        Some((host, port)) => {
            let wanted = Endpoint {
                host: host.as_str().into(),
                port: *port,
            };
            if resync || followed.as_ref() != Some(&wanted) {
                role::become_replica(server, wanted, resync);
            }
        }
        // The primary's address is not known at the moment.
        None if view.is_replica => {}
        None => {
            if role::become_primary(server) {
                log::notice!("This node is now a primary");
            }
        }
    }
}

/// Deletes all keys and propagates FLUSHALL.
fn flush_all(server: &Arc<Server>, all: &mut Exclusive<'_>, thread_index: ThreadIndex) -> DetachedTables {
    let keyspace = &server.keyspace;
    let mut effects = Effects {
        log_writer: server.propagation.log_writer(),
        ..Effects::for_keyspace(keyspace)
    };
    effects.hooks = keyspace.hooks.current();
    let databases = DbIndex::all(keyspace.counts.databases());
    let taken = take_databases(&mut WholeKeyspace::Exclusive(all), databases, keyspace, thread_index);
    if effects.is_logging() {
        effects.log_also(DbIndex::FIRST, &[b"FLUSHALL"]);
        effects.log_writer.commit();
    }
    NotificationSender::new(server, &mut effects, thread_index).invalidate_all_keys();
    wake_workers(server, &mut effects);
    taken
}

/// Writes the cluster configuration file if it is out of date. Returns `true` if other nodes may be told. A node that
/// cannot store its state must not continue, so this requests a shutdown if `cluster-config-save-behavior` is `sync`.
pub fn save(server: &Server, cluster: &Cluster) -> bool {
    if cluster.save(false).is_ok() {
        return true;
    }
    if !must_save(server) {
        cluster.log_unsaved_state();
        return true;
    }
    log::warning!("Fatal: can't update cluster config file.");
    server.request_shutdown(ShutdownOptions {
        save: crate::runtime::shutdown::SavePolicy::Never,
        is_immediate: true,
        is_forced: true,
        is_failure: true,
        ..ShutdownOptions::default()
    });
    false
}

/// Returns `true` if this node must not continue with a state that it cannot store.
fn must_save(server: &Server) -> bool {
    server.config.choice(id::CLUSTER_CONFIG_SAVE_BEHAVIOR) == "sync"
}

/// Notifies clients that are blocked on keys, or subscribed to channels, of slots that this node has lost.
fn notify_clients_of_lost_slots(server: &Server, cluster: &Cluster, before: Option<Arc<ClusterView>>) {
    let Some(before) = before else {
        return;
    };
    let view = cluster.view();
    let went_down = before.is_up && !view.is_up;
    // With ASKING, clients may wait for keys of a slot that is being imported.
    if went_down || view.lost_since(&before).next().is_some() || view.has_given_up_import_since(&before) {
        for worker in &server.workers {
            worker.send(Message::SlotsLeft);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
