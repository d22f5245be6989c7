//! Applies changes of the cluster state: publishes the view that commands use, changes this server's replication role,
//! and writes the cluster configuration file.
//!
//! The state records which primary this node follows. When a view is published, in exclusive mode, the server's role is
//! changed to agree with it. So there is no moment at which commands use one role and data is written under the other.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use weft_reactor::unix_ms;

use crate::cluster::state::{DataState, State};
use crate::cluster::view::View;
use crate::cluster::{Cluster, Locked};
use crate::config::id;
use crate::keyspace::access::WholeKeyspace;
use crate::keyspace::effects::{Effects, Hooks};
use crate::keyspace::flush::{DetachedTables, take};
use crate::keyspace::slot_drop;
use crate::keyspace::{Exclusive, Seat};
use crate::notify::messages::{NotificationSender, wake};
use crate::observability::{lock as lock_list, log};
use crate::propagation::Target;
use crate::replication::role;
use crate::replication::{Endpoint, ReplicationState};
use crate::runtime::shutdown::Shutdown;
use crate::state::{Acknowledgement, Job, Message, PauseReason, Server};

/// The interval between two checks if a script still runs on a separate thread.
const RETRY: Duration = Duration::from_millis(1);
/// The maximum time for replicas to acknowledge that one of them has to take over.
const FAREWELL: Duration = Duration::from_millis(1000);

/// The keys of slots on this node, for a caller in exclusive mode.
pub struct Keys<'a, 'p> {
    all: &'a Exclusive<'p>,
    emptied: Cell<bool>,
}

impl Keys<'_, '_> {
    /// Returns the number of keys of a slot, in all databases.
    pub fn of_slot(&self, slot: u16) -> usize {
        slot_drop::count(self.all.cell(usize::from(slot)))
    }

    /// Requests the deletion of all keys once the change is in place.
    pub fn empty(&self) {
        self.emptied.set(true);
    }
}

/// Locks the cluster state after updating it with the state of this node's data.
pub fn lock<'c>(server: &Server, cluster: &'c Cluster) -> Locked<'c> {
    let repl = &server.repl;
    let hollow = repl.hollow.load(Ordering::Acquire);
    let data = DataState {
        age_ms: if repl.follows() { repl.silence_ms(unix_ms()) } else { 0 },
        hollow,
    };
    let offset = if hollow {
        0
    } else {
        u64::try_from(repl.offset()).unwrap_or(0)
    };
    let mut state = cluster.lock(&server.config);
    state.data = data;
    state.me_mut().offset = offset;
    state
}

/// Changes the cluster state while no command runs, publishes the new view and writes the file. The reply may be sent
/// after that.
pub fn change<R>(
    server: &Arc<Server>,
    cluster: &Cluster,
    seat: &mut Seat,
    change: impl FnOnce(&mut State, &Keys<'_, '_>) -> R,
) -> R {
    let running = &server.scripts.running;
    while !running.try_exclude_runs() {
        std::thread::sleep(RETRY);
    }
    let row = seat.index();
    let mut all = seat.exclusive();
    let (result, emptied) = {
        let keys = Keys {
            all: &all,
            emptied: Cell::new(false),
        };
        let mut state = lock(server, cluster);
        let result = change(&mut state, &keys);
        state.update_health(unix_ms());
        (result, keys.emptied.get())
    };
    let before = put_in_place(server, cluster);
    let taken = emptied.then(|| empty(server, &mut all, row));
    drop(all);
    running.end_exclusion();
    save(server, cluster);
    tell(server, cluster, before);
    cluster.wake_bus();
    if let Some(DetachedTables { tables, keys }) = taken {
        server.lazyfree.free(keys, 0, Box::new(tables));
    }
    result
}

/// Propagates a command to the replicas. Returns its log sequence number. Called on a background thread.
fn repeat(server: &Arc<Server>, seat: &mut Seat, words: &[&[u8]]) -> u64 {
    server.scripts.running.exclude_runs();
    let ticket = {
        let _all = seat.exclusive();
        let mut log_writer = server.propagation.log_writer();
        if server.keyspace.hooks.now().has(Hooks::LOG_REPLICAS) {
            log_writer.propagate_before(Target::REPLICAS, 0, words);
            log_writer.commit();
        }
        log_writer.last_sequence()
    };
    server.scripts.running.end_exclusion();
    server.propagation.wake();
    server.repl.replicas.ask();
    ticket
}

/// Propagates a command to the replicas, if there are any, and waits up to `patience` until they have acknowledged it.
/// Returns `true` if they have. So a replica that takes over knows what this node is about to do. Called on a
/// background thread.
pub fn repeat_first(server: &Arc<Server>, seat: &mut Seat, words: &[&[u8]], patience: Duration) -> bool {
    let replicas = &server.repl.replicas;
    let wanted = replicas.online();
    if wanted == 0 {
        return true;
    }
    let ticket = repeat(server, seat, words);
    let start = Instant::now();
    loop {
        if replicas.having_ticket(ticket) >= wanted {
            return true;
        }
        if start.elapsed() >= patience {
            return false;
        }
        std::thread::sleep(RETRY);
        server.propagation.wake();
    }
}

/// Does the same as [`repeat_first`] without blocking a thread. `then` is called later with the result, and returns the
/// job that continues.
pub fn repeat_first_then(
    server: &Arc<Server>,
    seat: &mut Seat,
    words: &[&[u8]],
    patience: Duration,
    then: impl FnOnce(bool) -> Job + Send + 'static,
) {
    let replicas = server.repl.replicas.online();
    if replicas == 0 {
        return then(true)(server, seat);
    }
    let ticket = repeat(server, seat, words);
    lock_list(&server.acknowledgements).push(Acknowledgement {
        ticket,
        replicas,
        until: Instant::now() + patience,
        then: Box::new(then),
    });
    if let Some(cluster) = &server.cluster {
        cluster.wake_bus();
    }
}

/// Schedules the jobs whose commands the replicas have acknowledged, or not acknowledged in time. Returns `true` if
/// other jobs still wait. Called by the bus.
pub fn look_at_acknowledgements(server: &Arc<Server>) -> bool {
    let mut waiting = lock_list(&server.acknowledgements);
    if waiting.is_empty() {
        return false;
    }
    server.propagation.wake();
    let (replicas, now) = (&server.repl.replicas, Instant::now());
    for Acknowledgement {
        ticket,
        replicas: wanted,
        until,
        then,
    } in std::mem::take(&mut *waiting)
    {
        let have = replicas.having_ticket(ticket) >= wanted;
        if have || now >= until {
            // Sending fails only without background threads, when the process is about to end.
            let _ = server.background.send(then(have));
        } else {
            waiting.push(Acknowledgement {
                ticket,
                replicas: wanted,
                until,
                then,
            });
        }
    }
    !waiting.is_empty()
}

/// Makes the replica with the greatest offset take over, because this server is about to shut down. Waits up to
/// `patience` for that replica to acknowledge all writes.
pub fn hand_over_at_end(server: &Arc<Server>, patience: Duration) {
    let Some(cluster) = server.cluster.as_ref().filter(|_| !server.repl.follows()) else {
        return;
    };
    let Some(mut seat) = server.keyspace.slots.join() else {
        return;
    };
    let replicas = &server.repl.replicas;
    if !cluster.lock(&server.config).me().votes() || replicas.online() == 0 {
        return;
    }
    server.pause_clients(PauseReason::Shutdown, unix_ms(), u64::MAX, false);
    // Every write under way ends before exclusive mode is reached.
    server.scripts.running.exclude_runs();
    let last_ticket = {
        let _all = seat.exclusive();
        server.propagation.last_sequence()
    };
    server.scripts.running.end_exclusion();
    let start = Instant::now();
    replicas.ask();
    let target = loop {
        let offset = replicas.backlog().offset_of(last_ticket);
        let furthest = replicas.furthest_node();
        match furthest {
            None => break None,
            Some((node, acknowledged)) => {
                let has_all = offset.is_some_and(|offset| acknowledged >= offset);
                if has_all || start.elapsed() >= patience {
                    break Some(node);
                }
            }
        }
        server.propagation.wake();
        std::thread::sleep(RETRY);
    };
    let Some(node) = target else {
        log::warning!("Unable to find a replica to perform the auto failover on shutdown.");
        return;
    };
    log::notice!("Perform auto failover to replica {node} on shutdown.");
    let words: [&[u8]; 5] = [b"CLUSTER", b"FAILOVER", b"FORCE", b"REPLICAID", node.as_bytes()];
    if !repeat_first(server, &mut seat, &words, FAREWELL) {
        log::warning!("Not all replicas have confirmed that they know of the failover.");
    }
}

/// Publishes a change of the state that was not made by a command. Returns `false` if that is impossible because a
/// script runs on a separate thread.
pub fn publish(server: &Arc<Server>, cluster: &Cluster, seat: &mut Seat) -> bool {
    let running = &server.scripts.running;
    if !running.try_exclude_runs() {
        if cluster.lock(&server.config).me().is_replica() && !server.repl.follows() {
            // Anything written from now on would be lost.
            server.repl.put(ReplicationState::YIELDS, true);
        }
        return false;
    }
    let all = seat.exclusive();
    let before = put_in_place(server, cluster);
    drop(all);
    running.end_exclusion();
    tell(server, cluster, before);
    true
}

/// Changes the server's role to agree with the cluster configuration file. Called before there are any clients.
pub fn begin(server: &Arc<Server>, cluster: &Cluster) {
    take_role(server, &cluster.view(), false);
}

/// Publishes the next view, if there is one, and takes its role. Called in exclusive mode.
fn put_in_place(server: &Arc<Server>, cluster: &Cluster) -> Option<Arc<View>> {
    let (view, resync) = cluster.next_view();
    let before = view.map(|view| cluster.put_in_place(view));
    if let Some(before) = &before {
        // The statistics of a slot under its former owner do not apply to the new one.
        server.slot_stats.reset(cluster.view().moved_since(before));
    }
    take_role(server, &cluster.view(), resync);
    server.repl.put(ReplicationState::YIELDS, false);
    before
}

/// Makes this server follow the primary that the view names. Called in exclusive mode.
fn take_role(server: &Arc<Server>, view: &View, resync: bool) {
    let followed = server.repl.state().primary.clone();
    match &view.followed {
        Some((host, port)) => {
            let wanted = Endpoint {
                host: host.as_str().into(),
                port: *port,
            };
            if resync || followed.as_ref() != Some(&wanted) {
                role::follow(server, wanted, resync);
            }
        }
        // The primary's address is not known at the moment.
        None if view.is_replica => {}
        None => {
            if role::unfollow(server) {
                log::notice!("This node is a primary now");
            }
        }
    }
}

/// Deletes all keys and propagates FLUSHALL.
fn empty(server: &Arc<Server>, all: &mut Exclusive<'_>, row: usize) -> DetachedTables {
    let keyspace = &server.keyspace;
    let mut effects = Effects {
        log_writer: server.propagation.log_writer(),
        ..Effects::of(keyspace)
    };
    effects.hooks = keyspace.hooks.now();
    let databases = 0..keyspace.counts.databases();
    let taken = take(&mut WholeKeyspace::Alone(all), databases, keyspace, row);
    if effects.logs() {
        effects.log_also(0, &[b"FLUSHALL"]);
        effects.log_writer.commit();
    }
    NotificationSender::new(server, &mut effects, row).invalidate_everything();
    wake(server, &mut effects);
    taken
}

/// Writes the cluster configuration file if it is out of date. Returns `true` if other nodes may be told. A node that
/// cannot store its state must not continue, so this requests a shutdown if `cluster-config-save-behavior` is `sync`.
pub fn save(server: &Server, cluster: &Cluster) -> bool {
    let kept = cluster.save(false).is_ok() || server.config.choice(id::CLUSTER_CONFIG_SAVE_BEHAVIOR) != "sync";
    if !kept {
        log::warning!("Fatal: can't update cluster config file.");
        server.request_shutdown(Shutdown {
            save: crate::runtime::shutdown::Save::Never,
            now: true,
            force: true,
            ..Shutdown::default()
        });
    }
    kept
}

/// Notifies clients that are blocked on keys, or subscribed to channels, of slots that this node has lost.
fn tell(server: &Server, cluster: &Cluster, before: Option<Arc<View>>) {
    let Some(before) = before else {
        return;
    };
    let view = cluster.view();
    let went_down = before.up && !view.up;
    if went_down || view.lost_since(&before).next().is_some() {
        for worker in &server.workers {
            worker.send(Message::SlotsLeft);
        }
    }
}
