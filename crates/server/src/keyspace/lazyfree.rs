//! Frees memory on a separate thread, so that no worker waits while the allocator frees megabytes.

use std::sync::Arc;

use crate::observability::used_memory::UsedMemory;
use weft_os::atomic::{AtomicU64, Ordering};
use weft_os::sync::mpsc;

/// An owned value to be freed.
pub type DeferredFree = Box<dyn std::any::Any + Send>;

struct LazyFreeLoad {
    objects: u64,
    bytes: usize,
    value: DeferredFree,
}

/// A handle that sends values to the freeing thread.
#[derive(Clone)]
pub struct LazyFree {
    sender: mpsc::Sender<LazyFreeLoad>,
    pending: Arc<AtomicU64>,
    freed: Arc<AtomicU64>,
    memory: Arc<UsedMemory>,
}

impl LazyFree {
    /// Starts the thread, which counts in `memory`. The thread ends when the last sender is dropped.
    ///
    /// # Errors
    /// The error of the operating system if the thread cannot be created.
    pub fn start(memory: Arc<UsedMemory>) -> std::io::Result<Self> {
        let (sender, receiver) = mpsc::channel::<LazyFreeLoad>();
        let pending = Arc::new(AtomicU64::new(0));
        let freed = Arc::new(AtomicU64::new(0));
        let (still_pending, done, counted) = (pending.clone(), freed.clone(), memory.clone());
        weft_os::thread::Builder::new()
            .name("weft-lazyfree".to_owned())
            .spawn(move || {
                let mut cell = counted.freeing_cell();
                for load in receiver {
                    let LazyFreeLoad {
                        objects,
                        bytes,
                        value: burden,
                    } = load;
                    counted.note_freeing_started();
                    drop(burden);
                    counted.note_freed(bytes, &mut cell);
                    still_pending.fetch_sub(objects, Ordering::Relaxed);
                    done.fetch_add(objects, Ordering::Relaxed);
                }
            })?;
        Ok(LazyFree {
            sender,
            pending,
            freed,
            memory,
        })
    }

    /// Sends a value to the freeing thread. It counts as `objects` objects and takes about `bytes` bytes, 0 if that is
    /// not known.
    pub fn free(&self, objects: u64, bytes: usize, burden: DeferredFree) {
        self.pending.fetch_add(objects, Ordering::Relaxed);
        self.memory.queue_for_freeing(bytes);
        let load = LazyFreeLoad {
            objects,
            bytes,
            value: burden,
        };
        if let Err(mpsc::SendError(load)) = self.sender.send(load) {
            // The thread ends only at shutdown. The value is then freed here.
            drop(load);
            self.pending.fetch_sub(objects, Ordering::Relaxed);
        }
    }

    /// The number of objects waiting to be freed (`lazyfree_pending_objects`).
    pub fn pending(&self) -> u64 {
        self.pending.load(Ordering::Relaxed)
    }

    /// The number of objects freed so far (`lazyfreed_objects`).
    pub fn freed(&self) -> u64 {
        self.freed.load(Ordering::Relaxed)
    }

    /// Resets the number of objects freed (CONFIG RESETSTAT).
    pub fn reset(&self) {
        self.freed.store(0, Ordering::Relaxed);
    }
}
