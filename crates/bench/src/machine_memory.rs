//! Makes the machine's free memory ready for servers that grow.
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
    let available = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| available_bytes(&text));
    let bytes = available.map_or(0, |available| PREPARED_BYTES.min(available / 4));
    let written = vec![1_u8; usize::try_from(bytes).unwrap_or(0)];
    drop(std::hint::black_box(written));
}

/// Returns the value of `MemAvailable` in the text of `/proc/meminfo`.
fn available_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::available_bytes;

    #[test]
    fn the_available_memory_is_found_among_the_lines() {
        let text = "MemTotal:       24666512 kB\nMemFree:        21205576 kB\nMemAvailable:   22000000 kB\n";
        assert_eq!(available_bytes(text), Some(22_000_000 * 1024));
        assert_eq!(available_bytes("MemTotal: 1 kB\n"), None);
        assert_eq!(available_bytes("MemAvailable: many kB\n"), None);
    }
}
