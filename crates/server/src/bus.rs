//! The cluster bus: a thread that talks to the other nodes and watches over the cluster's health.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_reactor::{Reactor, unix_ms};

use crate::cluster::Cluster;
use crate::cluster::state::Action;
use crate::keyspace::effects::Effects;
use crate::keyspace::{SLOTS, Seat, slot_drop};
use crate::messages::{Post, wake};
use crate::observe::log;
use crate::state::{Message, Server, Unserved};
use crate::topology;

/// Between two looks at everything.
const TICK: Duration = Duration::from_millis(100);
/// Events of one turn.
const EVENTS_A_TURN: usize = 128;
/// Between two attempts to lease a slot.
const RETRY: Duration = Duration::from_micros(50);

/// The bus, on a thread of its own.
pub struct Bus {
    server: Arc<Server>,
    seat: Seat,
    reactor: Reactor,
    next_tick: Instant,
    /// Slots whose keys are to be deleted: they have another owner.
    dropping: Vec<u16>,
}

impl Bus {
    /// The bus of a server in cluster mode. What the data and the file say is made to agree.
    ///
    /// # Errors
    /// When the operating system refuses something.
    pub fn prepare(server: &Arc<Server>) -> std::io::Result<Option<Bus>> {
        let Some(cluster) = &server.cluster else {
            return Ok(None);
        };
        let reactor = Reactor::new()?;
        let seat = server.keyspace.slots.join().ok_or_else(|| std::io::Error::other("no seat is left at the keyspace"))?;
        // Nobody has made a bus before.
        let _ = cluster.bus.set(reactor.waker());
        let mut bus = Bus {
            server: server.clone(),
            seat,
            reactor,
            next_tick: Instant::now(),
            dropping: Vec::new(),
        };
        bus.agree_with_data(cluster);
        Ok(Some(bus))
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// When the operating system refuses it.
    pub fn start(mut self) -> std::io::Result<()> {
        std::thread::Builder::new()
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
            let timeout = self.next_tick.saturating_duration_since(Instant::now());
            events.clear();
            if let Err(error) = self.reactor.wait(Some(timeout), &mut events, EVENTS_A_TURN) {
                log::warning!("The cluster bus cannot wait for events: {error}");
                std::thread::sleep(TICK);
            }
            if Instant::now() >= self.next_tick {
                self.next_tick = Instant::now() + TICK;
                self.tick(cluster);
            }
            self.conclude(cluster);
        }
    }

    fn tick(&mut self, cluster: &Cluster) {
        let now_ms = unix_ms();
        let mut state = cluster.lock(&self.server.config);
        if !state.up {
            state.update_health(now_ms);
        }
    }

    /// Does what changes of the state ask for.
    fn conclude(&mut self, cluster: &Cluster) {
        topology::save(&self.server, cluster);
        let (publish, actions) = {
            let mut state = cluster.lock(&self.server.config);
            (state.todo.publish, std::mem::take(&mut state.actions))
        };
        if publish {
            topology::publish(&self.server, cluster, &mut self.seat);
        }
        for action in actions {
            self.act(action);
        }
        self.drop_keys(cluster);
    }

    fn act(&mut self, action: Action) {
        if let Action::DropKeys(slots) = action {
            self.dropping.extend(slots);
        }
    }

    // ---- keys ----------------------------------------------------------------------------------------------

    /// Deletes keys of slots that have another owner, once commands go by that.
    fn drop_keys(&mut self, cluster: &Cluster) {
        if self.dropping.is_empty() {
            return;
        }
        let view = cluster.view();
        let mut waiting = Vec::new();
        for slot in std::mem::take(&mut self.dropping) {
            if view.is_mine(slot) {
                // The view that says otherwise is not in place yet, or the slot has come back.
                let state = cluster.lock(&self.server.config);
                if state.owner(slot) != Some(state.myself) {
                    waiting.push(slot);
                }
            } else {
                self.drop_keys_of(slot);
            }
        }
        self.dropping = waiting;
    }

    fn drop_keys_of(&mut self, number: u16) {
        let (server, row) = (self.server.clone(), self.seat.index());
        let keyspace = &server.keyspace;
        let mut effects = Effects::default();
        let tables = loop {
            let pass = self.seat.enter();
            if let Some(mut lease) = pass.write_spinning(usize::from(number)) {
                effects.hooks = keyspace.hooks.now();
                let (tables, keys) = slot_drop::take_all(keyspace, row, number, lease.parts_mut(), &mut effects);
                Post::new(&server, &mut effects, row).tell(0);
                if keys > 0 {
                    log::notice!("Deleted {keys} keys in slot {number}, which another node has now");
                }
                break tables;
            }
            pass.announce_writer(usize::from(number));
            drop(pass);
            std::thread::sleep(RETRY);
        };
        if !effects.ready.is_empty() {
            let ready = std::mem::take(&mut effects.ready).into();
            server.workers[0].send(Message::Serve(Unserved::new(ready)));
        }
        let objects = tables.iter().map(|table| table.len() as u64).sum();
        server.lazyfree.free(objects, Box::new(tables));
        Post::new(&server, &mut effects, row).broadcast();
        wake(&server, &mut effects);
    }

    /// Slots with keys that nobody has become this node's; keys of slots that others have are deleted.
    fn agree_with_data(&mut self, cluster: &Cluster) {
        let occupied: Vec<u16> = (0..SLOTS as u16)
            .filter(|slot| self.server.keyspace.slots.header(usize::from(*slot)).may_hold_any())
            .collect();
        let mut state = cluster.lock(&self.server.config);
        if state.me().is_replica() {
            return;
        }
        let (myself, mut lost) = (state.myself, Vec::new());
        for slot in occupied {
            match state.owner(slot) {
                None => {
                    log::notice!("I have keys for unassigned slot {slot}. Taking responsibility for it.");
                    state.add_slot(myself, slot);
                    state.todo.save = true;
                }
                Some(owner) if owner != myself && state.importing.get(&slot) != Some(&owner) => {
                    log::notice!(
                        "I have keys for slot {slot}, but the slot is assigned to another node. Deleting keys in the slot."
                    );
                    lost.push(slot);
                }
                Some(_) => {}
            }
        }
        drop(state);
        for slot in lost {
            self.drop_keys_of(slot);
        }
        topology::save(&self.server, cluster);
        topology::publish(&self.server, cluster, &mut self.seat);
    }
}
