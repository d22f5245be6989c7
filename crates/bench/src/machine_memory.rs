//! The machine's memory: its size, and making the free part ready for servers that grow.
//!
//! Hosts of virtual machines reclaim memory that their guest does not use (free page reporting, balloons). The first
//! access to such a page stops the guest's processor until the host has found and cleared a page: measured, 4 to 6 ms
//! per 2 MiB, against 0.1 ms (one huge page) or 0.65 ms (512 small ones) on memory that the host has already provided.
//! A kernel hands out its freshest free pages first, and small pages from fragments that it cannot report. So without
//! these preparations a measurement of growth would show which pages each server happened to get.

/// The size of the memory that is written before each load: more than a load makes a server grow.
const PREPARED_BYTES: u64 = 2 << 30;

/// The remark in the report.
pub const REMARK: &str = "Before each load, free memory of the machine was written and freed again, so that growing \
    servers do not wait for the host of the virtual machine";

/// Writes to free memory, and frees it. At most a quarter of what is available is used.
pub fn prepare_free_memory() {
    let bytes = available_bytes().map_or(0, |available| PREPARED_BYTES.min(available / 4));
    let written = vec![1_u8; usize::try_from(bytes).unwrap_or(0)];
    drop(std::hint::black_box(written));
}

/// Returns the memory that new programs can use without swapping, in bytes, if the system says so.
pub fn available_bytes() -> Option<u64> {
    field_bytes(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")
}

/// Returns the size of the machine's memory in bytes, if the system says so.
pub fn total_bytes() -> Option<u64> {
    field_bytes(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")
}

/// Returns the value of a field in the text of `/proc/meminfo`.
fn field_bytes(meminfo: &str, field: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::{available_bytes, field_bytes, total_bytes};

    #[test]
    fn the_available_memory_is_found_among_the_lines() {
        let text = "MemTotal:       24666512 kB\nMemFree:        21205576 kB\nMemAvailable:   22000000 kB\n";
        let available = |text| field_bytes(text, "MemAvailable:");
        assert_eq!(available(text), Some(22_000_000 * 1024));
        assert_eq!(field_bytes(text, "MemTotal:"), Some(24_666_512 * 1024));
        assert_eq!(available("MemTotal: 1 kB\n"), None);
        assert_eq!(available("MemAvailable: many kB\n"), None);
    }

    #[test]
    fn this_machine_has_at_least_the_memory_that_is_available() {
        assert!(available_bytes() > Some(0) && available_bytes() <= total_bytes());
    }
}
