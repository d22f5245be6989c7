//! Frees memory on a thread of its own, so that no worker waits for the allocator to return megabytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

/// What can be freed: anything owned.
pub type Burden = Box<dyn std::any::Any + Send>;

struct Load {
    objects: u64,
    burden: Burden,
}

/// The way to the freeing thread.
pub struct LazyFree {
    sender: mpsc::Sender<Load>,
    pending: Arc<AtomicU64>,
    freed: Arc<AtomicU64>,
}

impl LazyFree {
    /// Starts the thread; it ends when the last sender is gone.
    ///
    /// # Errors
    /// When the operating system refuses a thread.
    pub fn start() -> std::io::Result<Self> {
        let (sender, receiver) = mpsc::channel::<Load>();
        let pending = Arc::new(AtomicU64::new(0));
        let freed = Arc::new(AtomicU64::new(0));
        let (still_pending, done) = (pending.clone(), freed.clone());
        std::thread::Builder::new()
            .name("weft-lazyfree".to_owned())
            .spawn(move || {
                for load in receiver {
                    let Load { objects, burden } = load;
                    drop(burden);
                    still_pending.fetch_sub(objects, Ordering::Relaxed);
                    done.fetch_add(objects, Ordering::Relaxed);
                }
            })?;
        Ok(LazyFree { sender, pending, freed })
    }

    /// Hands over something that counts as `objects` objects.
    pub fn free(&self, objects: u64, burden: Burden) {
        self.pending.fetch_add(objects, Ordering::Relaxed);
        if let Err(mpsc::SendError(load)) = self.sender.send(Load { objects, burden }) {
            // The thread is gone only at shutdown; free here then.
            drop(load);
            self.pending.fetch_sub(objects, Ordering::Relaxed);
        }
    }

    /// Objects that wait (`lazyfree_pending_objects`).
    pub fn pending(&self) -> u64 {
        self.pending.load(Ordering::Relaxed)
    }

    /// Objects freed so far (`lazyfreed_objects`).
    pub fn freed(&self) -> u64 {
        self.freed.load(Ordering::Relaxed)
    }

    /// Forgets the number of objects freed (CONFIG RESETSTAT).
    pub fn reset(&self) {
        self.freed.store(0, Ordering::Relaxed);
    }
}
