//! Removes the code that only the start executed from resident memory.
//!
//! The kernel maps code from its page cache, in blocks of 64 KiB, as it is executed. The start executes parts of all
//! subsystems: it parses a configuration, reads files and creates threads. Afterwards more than half of the program is
//! resident. Most of it is not executed again as long as the server has nothing to do.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// In an entry of the page map: the page is in memory.
const IS_PRESENT: u64 = 1 << 63;
/// In an entry of the page map: the page is one of a file, not a private copy.
const IS_OF_FILE: u64 = 1 << 61;

/// Removes the code of the program from the page tables of this process. The page cache keeps it, and the kernel maps
/// again what is executed from now on. Returns the number of bytes that were mapped.
///
/// Code of which the process has a private copy stays: a debugger has set breakpoints there.
///
/// # Errors
/// Fails if the kernel does not show the maps of the process.
pub fn release_start_code() -> io::Result<usize> {
    let program = fs::read_link("/proc/self/exe")?;
    let maps = fs::read("/proc/self/maps")?;
    let pages = File::open("/proc/self/pagemap")?;
    let page_bytes = rustix::param::page_size();
    let mut released = 0;
    for range in code_ranges(&String::from_utf8_lossy(&maps), &program.to_string_lossy()) {
        let mut entries = vec![0; range.len() / page_bytes * size_of::<u64>()];
        pages.read_exact_at(&mut entries, (range.start / page_bytes * size_of::<u64>()) as u64)?;
        let (entries, _) = entries.as_chunks::<8>();
        let present: Vec<u64> = entries
            .iter()
            .map(|entry| u64::from_ne_bytes(*entry))
            .filter(|entry| entry & IS_PRESENT != 0)
            .collect();
        if present.iter().any(|entry| entry & IS_OF_FILE == 0) {
            continue;
        }
        let address = std::ptr::without_provenance_mut(range.start);
        // SAFETY: rule 7: the mapping is the program's code, and none of its pages is a private copy.
        if unsafe { libc::madvise(address, range.len(), libc::MADV_DONTNEED) } == 0 {
            released += present.len() * page_bytes;
        }
    }
    Ok(released)
}

/// Returns the mappings of `program` that are code: private, executable and not writable.
fn code_ranges(maps: &str, program: &str) -> Vec<Range<usize>> {
    let parse = |line: &str| {
        let (place, rest) = line.split_once(' ')?;
        let is_code = rest.starts_with("r-xp ") && rest.ends_with(&format!(" {program}"));
        let (start, end) = place.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        is_code.then_some(address(start)?..address(end)?)
    };
    maps.lines().filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_of_the_program_is_found() {
        let maps = "\
55e7ad1a6000-55e7ad33c000 r--p 00000000 fe:00 10013120                   /usr/bin/weft-server
55e7ad33c000-55e7adad9000 r-xp 00195000 fe:00 10013120                   /usr/bin/weft-server
55e7adb45000-55e7adb48000 rw-p 0099c000 fe:00 10013120                   /usr/bin/weft-server
7f481b00e000-7f481b164000 r-xp 00026000 fe:00 326269                     /usr/lib/x86_64-linux-gnu/libc.so.6
7f481b164000-7f481b165000 rwxp 00000000 00:00 0 
7fff1dcb4000-7fff1dcb6000 r-xp 00000000 00:00 0                          [vdso]
55e7adb48000-55e7adb49000 r-xp 0099c000 fe:00 10013121                   /usr/bin/weft-server-old
";
        let found = code_ranges(maps, "/usr/bin/weft-server");
        assert_eq!(found, vec![0x55e7_ad33_c000..0x55e7_adad_9000]);
    }

    /// Returns `true` if the first page of a function is mapped.
    fn is_mapped(function: fn() -> u32) -> bool {
        let page_bytes = rustix::param::page_size();
        let pages = File::open("/proc/self/pagemap").expect("the page map");
        let mut entry = [0; 8];
        let offset = function as usize / page_bytes * 8;
        pages.read_exact_at(&mut entry, offset as u64).expect("an entry");
        u64::from_ne_bytes(entry) & IS_PRESENT != 0
    }

    #[inline(never)]
    fn answer() -> u32 {
        std::hint::black_box(42)
    }

    #[test]
    fn released_code_is_executed_again() {
        assert_eq!(answer(), 42);
        assert!(is_mapped(answer));
        let released = release_start_code().expect("the maps can be read");
        // Other tests may hold breakpoints under a debugger only, so the code was released.
        assert!(released > 0);
        assert_eq!(answer(), 42);
        assert!(is_mapped(answer));
    }
}
