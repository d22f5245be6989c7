//! The threads that decode and insert the keys of an RDB file, while the caller reads it.
//!
//! ```text
//!                     ┌─ keys of slots 0, n, 2n, … ─▶ loader thread 0 ─▶ slots
//!   reader ── batch ──┤
//!                     └─ keys of slots 1, n+1, … ───▶ loader thread 1 ─▶ slots
//!      ▲                                                   │
//!      └─────────── memory of batches, faults, counts ◀────┘
//! ```
//!
//! 1. A slot belongs to one thread, whose queue is in the order of the file. So the last of two keys with the same
//!    name is the one that stays, or is found to be a duplicate.
//! 2. The reader waits only for memory (`batch.rs`), for the end of a pause, and in the end for the threads. A thread
//!    waits only for keys, or for the end of a pause. A pause waits for the threads' current keys. So they never wait
//!    for each other.
//! 3. A fault has the offset of its key. Threads insert the keys before the first fault and skip those behind it; the
//!    reader stops. So the fault that is reported is the first one of the file, whichever was found first.
//! 4. The memory of a batch is returned when the last thread has dropped it, also if that thread panics. Then the
//!    reader finds the queue closed, and passes the panic on when it joins the thread.

use std::panic::resume_unwind;
use std::sync::Arc;

use weft_os::sync::mpsc::{Receiver, Sender, channel};
use weft_os::thread::{Builder, Scope, ScopedJoinHandle};

use super::batch::{Batch, RawKey};
use super::insert::{InsertContext, KeyInserter, SharedSlots, SlotAccess};
use crate::keyspace::Slot;
use crate::keyspace::hash::KeyHasher;
use crate::observability::memory;

/// The maximum number of loader threads. The reader cannot keep more of them busy.
const MAX_THREADS: usize = 16;
/// The minimum length of a batch in bytes.
const BATCH_BYTES: usize = if cfg!(feature = "simulated") { 64 } else { 64 * 1024 };

/// The number of threads that decode and insert keys, and how the file is split among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadThreads {
    /// The number of threads; with one, the reader of the file inserts the keys itself.
    pub count: usize,
    /// The minimum length of a batch in bytes.
    pub batch_bytes: usize,
}

impl LoadThreads {
    /// The reader inserts all keys itself.
    pub const READER_ONLY: LoadThreads = LoadThreads {
        count: 1,
        batch_bytes: BATCH_BYTES,
    };

    /// Returns the threads of a server with this many workers.
    pub fn for_workers(workers: usize) -> LoadThreads {
        let cores = weft_os::thread::available_parallelism().map_or(1, usize::from);
        match (cores, workers.min(MAX_THREADS)) {
            (1, _) | (_, 0 | 1) => LoadThreads::READER_ONLY,
            (_, count) => LoadThreads {
                count,
                ..LoadThreads::READER_ONLY
            },
        }
    }
}

/// Keys of a batch for one thread.
struct Piece<'b> {
    batch: Arc<Batch<'b>>,
    keys: Vec<RawKey>,
}

/// A thread that was started, and the queues into which its part of the slots and its keys go.
struct StartedThread<'scope, 'b> {
    thread: ScopedJoinHandle<'scope, ()>,
    inserter: Sender<KeyInserter<'b>>,
    pieces: Sender<Piece<'b>>,
}

/// The slots that keys go into, before they are divided among threads.
pub(super) enum UndividedSlots<'a> {
    /// The keyspace.
    Keyspace(&'a SharedSlots<'a>),
    /// A staging keyspace.
    Staging(&'a mut [Slot]),
}

/// Takes batches and has their keys inserted.
pub(super) enum KeySink<'scope, 'b> {
    /// By the reader itself.
    Reader(KeyInserter<'b>),
    /// By threads.
    Threads(Vec<LoaderThread<'scope, 'b>>),
}

/// A running loader thread, and the keys of the current batch that are for it.
pub(super) struct LoaderThread<'scope, 'b> {
    thread: ScopedJoinHandle<'scope, ()>,
    pieces: Sender<Piece<'b>>,
    next_keys: Vec<RawKey>,
}

impl<'scope, 'b: 'scope> KeySink<'scope, 'b> {
    /// Starts up to `count` threads and divides the slots among them. If the system refuses a thread, there are fewer.
    pub fn start(
        scope: &'scope Scope<'scope, '_>,
        count: usize,
        context: &'b InsertContext<'b>,
        slots: UndividedSlots<'b>,
    ) -> KeySink<'scope, 'b> {
        let wanted = if count > 1 { count } else { 0 };
        let started: Vec<_> = (0..wanted).map_while(|index| start_thread(scope, index)).collect();
        let mut parts = divide_slots(slots, started.len().max(1)).into_iter();
        let mut inserter = || parts.next().map(|access| KeyInserter { context, access });
        let threads = started.into_iter().filter_map(|started| {
            // A thread that has ended is found when keys are sent to it.
            let _ = started.inserter.send(inserter()?);
            Some(LoaderThread {
                thread: started.thread,
                pieces: started.pieces,
                next_keys: Vec::new(),
            })
        });
        let threads: Vec<_> = threads.collect();
        match inserter() {
            Some(inserter) => KeySink::Reader(inserter),
            None => KeySink::Threads(threads),
        }
    }
}

impl<'b> KeySink<'_, 'b> {
    /// Inserts the keys of a batch, or hands them to the threads. Returns `false` if a thread has panicked.
    pub fn take_batch(&mut self, batch: Batch<'b>, keys: &mut Vec<RawKey>) -> bool {
        match self {
            KeySink::Reader(inserter) => {
                inserter.insert_keys(&batch, keys);
                keys.clear();
                true
            }
            KeySink::Threads(threads) => {
                let count = threads.len();
                for key in keys.drain(..) {
                    threads[KeyHasher::slot(key.hash) % count].next_keys.push(key);
                }
                let batch = Arc::new(batch);
                threads.iter_mut().all(|thread| thread.send_keys(&batch))
            }
        }
    }

    /// Waits until all keys are inserted.
    ///
    /// # Panics
    /// With the panic of a thread, if there was one.
    pub fn finish(self) {
        let KeySink::Threads(threads) = self else {
            return;
        };
        // All threads end before a panic is passed on.
        let ends: Vec<_> = threads.into_iter().map(LoaderThread::finish).collect();
        for end in ends {
            end.unwrap_or_else(|panic| resume_unwind(panic));
        }
    }
}

impl<'b> LoaderThread<'_, 'b> {
    /// Sends the thread its keys of a batch. Returns `false` if the thread has panicked.
    fn send_keys(&mut self, batch: &Arc<Batch<'b>>) -> bool {
        if self.next_keys.is_empty() {
            return true;
        }
        let expected = self.next_keys.len();
        let piece = Piece {
            batch: batch.clone(),
            keys: std::mem::replace(&mut self.next_keys, Vec::with_capacity(expected)),
        };
        self.pieces.send(piece).is_ok()
    }

    fn finish(self) -> weft_os::thread::Result<()> {
        drop(self.pieces);
        self.thread.join()
    }
}

fn start_thread<'scope, 'b: 'scope>(
    scope: &'scope Scope<'scope, '_>,
    index: usize,
) -> Option<StartedThread<'scope, 'b>> {
    let (inserter, inserters) = channel();
    let (pieces, received) = channel();
    let thread = Builder::new()
        .name(format!("weft-load-{index}"))
        .spawn_scoped(scope, move || run_thread(&inserters, &received))
        .ok()?;
    Some(StartedThread {
        thread,
        inserter,
        pieces,
    })
}

/// Inserts the keys that the reader sends, until it sends no more.
fn run_thread<'b>(inserters: &Receiver<KeyInserter<'b>>, pieces: &Receiver<Piece<'b>>) {
    let Ok(mut inserter) = inserters.recv() else {
        return;
    };
    while let Ok(piece) = pieces.recv() {
        memory::use_own_arena();
        inserter.insert_keys(&piece.batch, &piece.keys);
    }
}

fn divide_slots(slots: UndividedSlots<'_>, parts: usize) -> Vec<SlotAccess<'_>> {
    match slots {
        UndividedSlots::Keyspace(shared) => (0..parts).map(|_| SlotAccess::Keyspace(shared)).collect(),
        UndividedSlots::Staging(slots) => {
            let mut divided: Vec<Vec<&mut Slot>> = (0..parts).map(|_| Vec::new()).collect();
            for (index, slot) in slots.iter_mut().enumerate() {
                divided[index % parts].push(slot);
            }
            divided
                .into_iter()
                .map(|part| SlotAccess::Staging(part, parts))
                .collect()
        }
    }
}

/// Runs `read` with a sink for the keys of a file.
pub(super) fn with_key_sink<'b, R>(
    count: usize,
    context: &'b InsertContext<'b>,
    slots: UndividedSlots<'b>,
    read: impl for<'scope> FnOnce(KeySink<'scope, 'b>) -> R,
) -> R {
    weft_os::thread::scope(|scope| read(KeySink::start(scope, count, context, slots)))
}
