//! Cluster mode: which node has which slot, and what that means for commands.
//!
//! ```text
//!   CLUSTER SETSLOT …             bus: a node's PING                     a command on a worker
//!   ─────────────────             ──────────────────                     ─────────────────────
//!   on a background thread        on the bus's thread                    view of this passage of the gate:
//!        └────────── lock ─────────────┘                                 whose is the slot of its keys?
//!                     │                                                     mine ─▶ run it
//!                   State ──▶ a new View ──▶ put into place in               else ─▶ MOVED
//!                     │        if anything     exclusive mode               on its way ─▶ under the leases:
//!                   nodes.conf  is different                                 are the keys here? run it, ASK, TRYAGAIN
//! ```
//!
//! 1. [`State`] is behind one lock and knows neither sockets nor files nor keys. Nobody who holds the lock waits for
//!    anything else: not for the gate, not for the disk. Workers take it for CLUSTER NODES and the like alone.
//! 2. What commands go by is a [`View`]: immutable, and put into place in exclusive mode. A worker looks which view is
//!    the current one when it passes the gate, and it admits and runs a command within one passage; so no command
//!    runs by a view that is not in place any more. Who has decided by one and left the gate decides again.
//! 3. A slot that is on its way (MIGRATING, IMPORTING) has keys here and there. Whether a command runs here depends on
//!    the keys, so it is decided under their leases, right before the command runs.
//! 4. The file is written before the change is told to anybody: a reply, or a message to nodes.

pub mod changes;
pub mod cron;
mod election;
mod gossip;
pub mod links;
pub mod manual_failover;
pub mod message;
pub mod node;
pub mod nodes_conf;
pub mod nodes_text;
mod open_slots;
mod ownership;
mod ping;
mod receive;
mod replicas;
pub mod settings;
pub mod slot_set;
pub mod slot_tags;
pub mod state;
pub mod view;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use weft_reactor::{Waker, unix_ms};

use crate::config::{Config, id};
use crate::observability::{lock, log};
use nodes_conf::{NodesFile, Unusable};
use settings::Settings;
use state::State;
use view::View;

/// The cluster as one process has it.
pub struct Cluster {
    state: Mutex<State>,
    file: NodesFile,
    /// Held while the file is written, so that a newer text never comes before an older one.
    writing: Mutex<()>,
    view: Mutex<Arc<View>>,
    version: AtomicU64,
    /// The configuration's generation that the state shows.
    generation: AtomicU64,
    /// Wakes the bus.
    pub bus: OnceLock<Waker>,
    /// What was published here and is to be told others.
    published: Mutex<Vec<Published>>,
    /// Whether that is kept back, while somebody has the keyspace to himself.
    keeps_back: AtomicBool,
    /// Whether there are other nodes.
    company: AtomicBool,
}

/// Something published: whether its channel is a shard channel, the channel, the message.
pub type Published = (bool, Vec<u8>, Vec<u8>);

/// The state, to look at and to change.
pub type Locked<'a> = MutexGuard<'a, State>;

impl Cluster {
    /// Reads the file, or makes a new node.
    ///
    /// # Errors
    /// When the file cannot be used; the log has told.
    pub fn start(config: &Config) -> Result<Self, Unusable> {
        use std::os::unix::ffi::OsStringExt;
        let path = PathBuf::from(std::ffi::OsString::from_vec(
            config.text(id::CLUSTER_CONFIG_FILE).to_vec(),
        ));
        let file = NodesFile::lock(path)?;
        let (settings, now_ms) = (Settings::read(config, None), unix_ms());
        let state = match file.load(settings.clone(), now_ms)? {
            Some(state) => {
                log::notice!("Node configuration loaded, I'm {}", state.myself);
                state
            }
            None => {
                let state = State::new(settings, now_ms);
                log::notice!("No cluster configuration found, I'm {}", state.myself);
                state
            }
        };
        let cluster = Cluster {
            view: Mutex::new(Arc::new(View::of(&state))),
            state: Mutex::new(state),
            file,
            writing: Mutex::new(()),
            version: AtomicU64::new(1),
            generation: AtomicU64::new(config.generation()),
            bus: OnceLock::new(),
            published: Mutex::default(),
            keeps_back: AtomicBool::new(false),
            company: AtomicBool::new(false),
        };
        cluster.save(true).map_err(|_| Unusable)?;
        Ok(cluster)
    }

    /// The state, with the parameters of now.
    pub fn lock(&self, config: &Config) -> Locked<'_> {
        let mut state = lock(&self.state);
        let generation = config.generation();
        if self.generation.swap(generation, Ordering::Relaxed) != generation {
            let settings = Settings::read(config, Some(&state.settings));
            state.configure(settings);
        }
        state
    }

    /// What the dump for a replica tells of slots on their way: a note and its name.
    pub fn open_slots_note(&self) -> Option<(&'static str, Vec<u8>)> {
        let text = lock(&self.state).open_slots_note()?;
        Some((open_slots::NOTE, text.into_bytes()))
    }

    /// Takes over what the dump of this node's primary tells of slots on their way.
    pub fn take_open_slots(&self, note: &[u8]) {
        if !note.is_empty() {
            lock(&self.state).take_open_slots(note);
            self.wake_bus();
        }
    }

    /// The number of the view in place.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The view in place.
    pub fn view(&self) -> Arc<View> {
        lock(&self.view).clone()
    }

    /// The view that should be in place, if that is another one; and whether the data of the primary that it names must be
    /// taken over as a whole.
    pub fn next_view(&self) -> (Option<View>, bool) {
        let mut state = lock(&self.state);
        if !std::mem::take(&mut state.todo.publish) {
            return (None, false);
        }
        let (view, resync) = (View::of(&state), std::mem::take(&mut state.resync));
        drop(state);
        ((view != *self.view()).then_some(view), resync)
    }

    /// Puts a view into place; returns the one before. For who has closed the gate.
    pub fn put_in_place(&self, view: View) -> Arc<View> {
        let before = std::mem::replace(&mut *lock(&self.view), Arc::new(view));
        self.version.fetch_add(1, Ordering::Release);
        before
    }

    /// Writes the file if it does not say what is so; `always` if it shall be written anyway.
    ///
    /// # Errors
    /// When that fails; the log has told.
    pub fn save(&self, always: bool) -> std::io::Result<()> {
        let _writing = lock(&self.writing);
        let (text, sync) = {
            let mut state = lock(&self.state);
            if !state.todo.save && !always {
                return Ok(());
            }
            state.todo.save = false;
            let sync = std::mem::take(&mut state.todo.sync);
            (nodes_conf::text(&state), sync || always)
        };
        self.file.save(&text, sync).inspect_err(|error| {
            log::warning!("Could not write the cluster config file: {error}");
            lock(&self.state).todo.save = true;
        })
    }

    /// Whether there are other nodes; the bus finds out.
    pub fn set_company(&self, company: bool) {
        self.company.store(company, Ordering::Relaxed);
    }

    /// Has the other nodes told of something published.
    pub fn publish(&self, sharded: bool, channel: &[u8], payload: &[u8]) {
        if !self.company.load(Ordering::Relaxed) {
            return;
        }
        let mut published = lock(&self.published);
        let first = published.is_empty();
        published.push((sharded, channel.to_vec(), payload.to_vec()));
        drop(published);
        if first {
            self.wake_bus();
        }
    }

    /// What was published since the last call.
    pub fn take_published(&self) -> Vec<Published> {
        let mut published = lock(&self.published);
        match self.keeps_back.load(Ordering::Relaxed) {
            true => Vec::new(),
            false => std::mem::take(&mut *published),
        }
    }

    /// Keeps back what is published, or lets it go: what a transaction publishes goes out when that is over.
    pub fn keep_back(&self, keeps_back: bool) {
        let published = lock(&self.published);
        self.keeps_back.store(keeps_back, Ordering::Relaxed);
        if !keeps_back && !published.is_empty() {
            drop(published);
            self.wake_bus();
        }
    }

    /// What links take, with what waits to be sent over them, bytes.
    pub fn link_bytes(&self) -> usize {
        let waiting = |(_, channel, payload): &Published| size_of::<Published>() + channel.len() + payload.len();
        let published: usize = lock(&self.published).iter().map(waiting).sum();
        let state = lock(&self.state);
        let links = state.links.values();
        let linked: usize = links
            .map(|link| size_of::<state::LinkFigures>() + link.queued_bytes)
            .sum();
        published + linked
    }

    /// Wakes the bus: there is something for it to do.
    pub fn wake_bus(&self) {
        if let Some(bus) = self.bus.get() {
            bus.wake();
        }
    }
}
