//! Fragmentation: the free places in slabs that also hold allocations. Active defragmentation can empty such slabs; the
//! allocator by itself cannot return their pages.

use tikv_jemalloc_ctl::{Access, AsName, Mib};
use weft_os::sync::OnceLock;

#[cfg(not(feature = "jemalloc"))]
use super::no_slab as cells;
#[cfg(feature = "jemalloc")]
use weft_table::cells;

/// A size class of the allocator that has slabs.
struct SizeClass {
    /// The size of an allocation in bytes.
    bytes: u64,
    /// The number of allocations that fit into a slab.
    slab_places: u64,
    /// The name of the number of slabs.
    slabs: Mib<[usize; 6]>,
    /// The name of the number of allocations, including those in thread caches.
    allocations: Mib<[usize; 6]>,
}

impl SizeClass {
    fn of_index(index: u32) -> Option<SizeClass> {
        let bytes: usize = format!("arenas.bin.{index}.size\0").as_bytes().name().read().ok()?;
        let slab_places: u32 = format!("arenas.bin.{index}.nregs\0").as_bytes().name().read().ok()?;
        // The index under which the allocator sums up all arenas.
        let figure = |name: &str| {
            let name = format!("stats.arenas.4096.bins.{index}.{name}\0");
            name.as_bytes().name().mib().ok()
        };
        Some(SizeClass {
            bytes: bytes as u64,
            slab_places: u64::from(slab_places),
            slabs: figure("curslabs")?,
            allocations: figure("curregs")?,
        })
    }

    /// Returns the bytes of the free places in slabs, at the last epoch.
    fn free_bytes(&self) -> Option<u64> {
        let slabs: usize = self.slabs.read().ok()?;
        let allocations: usize = self.allocations.read().ok()?;
        let places = slabs as u64 * self.slab_places;
        Some(places.saturating_sub(allocations as u64) * self.bytes)
    }
}

/// The size classes with slabs. They do not change.
static SIZE_CLASSES: OnceLock<Vec<SizeClass>> = OnceLock::new();

fn size_classes() -> &'static [SizeClass] {
    SIZE_CLASSES.get_or_init(|| {
        let count: u32 = b"arenas.nbins\0"[..].name().read().unwrap_or(0);
        (0..count).filter_map(SizeClass::of_index).collect()
    })
}

/// Returns the bytes of the free places in the allocator's slabs, at the last epoch, and in the runs of cells.
pub fn fragmented_bytes() -> u64 {
    let slabs: u64 = size_classes().iter().filter_map(SizeClass::free_bytes).sum();
    let runs = cells::figures()
        .iter()
        .map(|class| class.run_bytes.saturating_sub(class.used_bytes + class.kept_bytes))
        .sum::<u64>();
    slabs + runs
}

#[cfg(all(test, feature = "jemalloc"))]
mod tests {
    use super::*;
    use tikv_jemalloc_ctl::epoch;

    #[test]
    fn free_places_between_allocations_are_counted() {
        let count = || {
            epoch::advance().expect("the allocator counts");
            fragmented_bytes()
        };
        const COUNT: u64 = 20_000;
        const BYTES: u64 = 1024;
        let mut boxes: Vec<_> = (0..COUNT).map(|_| Box::new([1u8; BYTES as usize])).collect();
        let before = count();
        let mut number = 0;
        boxes.retain(|_| {
            number += 1;
            number % 2 == 0
        });
        super::super::memory::return_thread_memory();
        let after = count();
        // Other tests allocate and free meanwhile.
        assert!(
            after > before + COUNT * BYTES / 4,
            "{before} bytes before, {after} after"
        );
        drop(boxes);
    }
}
