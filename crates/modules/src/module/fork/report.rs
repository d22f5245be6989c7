//! Memory that a child shares with its parent: what it reports about itself.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// The figures. Both processes use them only by atomic operations.
#[repr(C)]
struct Figures {
    /// The progress between 0 and 1, as the bits of a number.
    progress: AtomicU64,
    /// The memory that the child has for itself, in bytes.
    private_bytes: AtomicU64,
}

/// A mapping with the figures. It is shared with a process that is forked while it exists.
pub struct SharedReport(NonNull<Figures>);

// SAFETY: the figures are atomics, and the mapping belongs to this value.
unsafe impl Send for SharedReport {}
// SAFETY: as above.
unsafe impl Sync for SharedReport {}

impl SharedReport {
    /// Creates the mapping, with all figures 0.
    ///
    /// # Errors
    /// If the system has no memory for it.
    pub fn new() -> io::Result<SharedReport> {
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a new mapping at any address.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), size_of::<Figures>(), protection, flags, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let figures = NonNull::new(address.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(SharedReport(figures))
    }

    fn figures(&self) -> &Figures {
        // SAFETY: the mapping has the size of the figures, is zeroed and aligned to a page, and lives as long as this.
        unsafe { self.0.as_ref() }
    }

    /// Returns the progress between 0 and 1.
    pub fn progress(&self) -> f64 {
        f64::from_bits(self.figures().progress.load(Ordering::Relaxed))
    }

    /// Sets the progress.
    pub fn set_progress(&self, progress: f64) {
        let progress = if progress.is_finite() {
            progress.clamp(0.0, 1.0)
        } else {
            0.0
        };
        self.figures().progress.store(progress.to_bits(), Ordering::Relaxed);
    }

    /// Returns the memory that the child has for itself, in bytes.
    pub fn private_bytes(&self) -> u64 {
        self.figures().private_bytes.load(Ordering::Relaxed)
    }

    /// Sets the memory that the child has for itself.
    pub fn set_private_bytes(&self, bytes: u64) {
        self.figures().private_bytes.store(bytes, Ordering::Relaxed);
    }
}

impl Drop for SharedReport {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and nothing refers to it any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size_of::<Figures>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::SharedReport;

    #[test]
    fn figures_are_kept_within_their_bounds() {
        let report = SharedReport::new().expect("memory");
        assert_eq!((report.progress(), report.private_bytes()), (0.0, 0));
        report.set_progress(0.5);
        report.set_private_bytes(7);
        assert_eq!((report.progress(), report.private_bytes()), (0.5, 7));
        report.set_progress(f64::NAN);
        assert_eq!(report.progress(), 0.0);
        report.set_progress(3.0);
        assert_eq!(report.progress(), 1.0);
    }
}
