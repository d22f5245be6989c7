//! Changes of what the cluster is: from the cluster's state to the view that commands go by, to this server's role in
//! replication, and to the file.
//!
//! Whom this node follows stands in the state. When a view is put into place, in exclusive mode, the server's role is made
//! to agree with it; so there is no moment at which commands are run by the one and data is written by the other.

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

/// Between two looks whether a script still runs on a thread of its own.
const RETRY: Duration = Duration::from_millis(1);
/// How long replicas may take to hear that one of them is to take over.
const FAREWELL: Duration = Duration::from_millis(1000);

/// Keys that slots have here, for who has closed the gate.
pub struct Keys<'a, 'p> {
    all: &'a Exclusive<'p>,
    emptied: Cell<bool>,
}

impl Keys<'_, '_> {
    /// Keys of a slot, in all databases.
    pub fn of_slot(&self, slot: u16) -> usize {
        slot_drop::count(self.all.cell(usize::from(slot)))
    }

    /// Has all keys deleted, once the change is in place.
    pub fn empty(&self) {
        self.emptied.set(true);
    }
}

/// The state, told what this node's data is.
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

/// Changes the state while no command runs, puts the new view into place and writes the file. The reply may be sent
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

/// Has the replicas repeat a command; returns its ticket in the log. On a background thread.
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

/// Has the replicas repeat a command, if there are any, and waits until they have it, or that long; whether they do. So a
/// replica that takes over knows what this node is about to do. On a background thread.
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

/// The same without a thread that waits: `then` is told later, and makes the job of what follows.
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

/// Has those go on whose commands the replicas have, or have not got in time; whether there are others left. The bus looks.
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
            // Without background threads the process is about to end.
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

/// Has the replica that is furthest on take over, as this server is about to end. Whoever waits for that waits no longer
/// than `patience`.
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
    // Whoever writes at this moment is done when the gate could be closed.
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

/// Puts into place what has changed without a command; whether it was possible: not while a script runs on a thread of
/// its own.
pub fn publish(server: &Arc<Server>, cluster: &Cluster, seat: &mut Seat) -> bool {
    let running = &server.scripts.running;
    if !running.try_exclude_runs() {
        if cluster.lock(&server.config).me().is_replica() && !server.repl.follows() {
            // Whatever is written from now on would be lost.
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

/// Makes the server's role agree with the file that was read. Before there are any clients.
pub fn begin(server: &Arc<Server>, cluster: &Cluster) {
    take_role(server, &cluster.view(), false);
}

/// In exclusive mode.
fn put_in_place(server: &Arc<Server>, cluster: &Cluster) -> Option<Arc<View>> {
    let (view, resync) = cluster.next_view();
    let before = view.map(|view| cluster.put_in_place(view));
    if let Some(before) = &before {
        // What a slot cost its former owner, or this node the last time it was its own, is no matter of the new one.
        server.slot_stats.reset(cluster.view().moved_since(before));
    }
    take_role(server, &cluster.view(), resync);
    server.repl.put(ReplicationState::YIELDS, false);
    before
}

/// In exclusive mode: this server follows whom the view says.
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

/// Deletes all keys, and has the log say so.
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

/// Writes the file if it is not up to date; whether others may be told. A node that cannot keep what it knows must not go
/// on as if it did.
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

/// Has clients told that wait for keys, or listen to channels, of slots that have left.
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
