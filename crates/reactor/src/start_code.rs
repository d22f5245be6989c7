//! Removes the code and the constants that only the start used from resident memory.
//!
//! The kernel maps a file from its page cache, in blocks of 64 KiB, as it is used. The start uses parts of all
//! subsystems: it parses a configuration, reads files and creates threads, and the dynamic linker reads the tables of
//! every library. Afterwards more than half of the program and of its libraries is resident. Most of it is not used
//! again as long as the server has nothing to do.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

/// In an entry of the page map: the page is in memory.
const IS_PRESENT: u64 = 1 << 63;
/// In an entry of the page map: the page is one of a file, not a private copy.
const IS_OF_FILE: u64 = 1 << 61;

/// The mappings that [`release_start_code`] examines.
static RECORDED: OnceLock<Vec<Range<usize>>> = OnceLock::new();

/// Records where the program and its libraries are mapped, for [`release_start_code`]. The process must have one thread
/// only: a library that another thread loads is mapped in steps, and has private copies of pages a moment later.
///
/// Nothing is recorded if the kernel does not show the maps of the process.
pub fn record_start_mappings() {
    let program = fs::read_link("/proc/self/exe");
    let maps = fs::read("/proc/self/maps");
    if let (Ok(program), Ok(maps)) = (program, maps) {
        let ranges = unchanged_ranges(&String::from_utf8_lossy(&maps), &program.to_string_lossy());
        // A second call finds the same mappings.
        let _ = RECORDED.set(ranges);
    }
}

/// Removes the code and the constants of the program and of its libraries from the page tables of this process. The
/// page cache keeps them, and the kernel maps again what is used from now on. Returns the number of bytes that were
/// mapped, which is 0 without [`record_start_mappings`].
///
/// A mapping of which the process has private copies stays: the dynamic linker has written addresses there, or a
/// debugger breakpoints.
///
/// # Errors
/// Fails if the kernel does not show the page map of the process.
pub fn release_start_code() -> io::Result<usize> {
    let pages = File::open("/proc/self/pagemap")?;
    let page_bytes = rustix::param::page_size();
    let mut released = 0;
    for range in RECORDED.get().into_iter().flatten() {
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
        // SAFETY: rule 7: the mapping is one of the program or of a library, is not writable, and none of its pages is
        // a private copy.
        if unsafe { libc::madvise(address, range.len(), libc::MADV_DONTNEED) } == 0 {
            released += present.len() * page_bytes;
        }
    }
    Ok(released)
}

/// Returns the mappings of `program` and of shared libraries that are private and not writable: code and constants.
fn unchanged_ranges(maps: &str, program: &str) -> Vec<Range<usize>> {
    let parse = |line: &str| {
        let (place, rest) = line.split_once(' ')?;
        let is_unchanged = rest.starts_with("r-xp ") || rest.starts_with("r--p ");
        // The path is the last of six fields. It begins with a slash, which no other field contains.
        let path = &rest[rest.find('/')?..];
        let (start, end) = place.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        (is_unchanged && (path == program || is_library(path))).then_some(address(start)?..address(end)?)
    };
    maps.lines().filter_map(parse).collect()
}

/// Returns `true` if a file is a shared library by its name, such as `libc.so.6` or `libm-2.28.so`.
fn is_library(path: &str) -> bool {
    let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
    name.ends_with(".so") || name.contains(".so.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_and_constants_of_the_program_and_its_libraries_are_found() {
        let maps = "\
55e7ad1a6000-55e7ad33c000 r--p 00000000 fe:00 10013120                   /usr/bin/weft-server
55e7ad33c000-55e7adad9000 r-xp 00195000 fe:00 10013120                   /usr/bin/weft-server
55e7adb45000-55e7adb48000 rw-p 0099c000 fe:00 10013120                   /usr/bin/weft-server
7f481b000000-7f481b007000 r--s 00000000 fe:00 326260                     /usr/lib/x86_64-linux-gnu/gconv/gconv-modules.cache
7f481b00e000-7f481b164000 r-xp 00026000 fe:00 326269                     /usr/lib/x86_64-linux-gnu/libc.so.6
7f481b164000-7f481b165000 rwxp 00000000 00:00 0 
7f481b165000-7f481b166000 r--p 00000000 00:00 0 
7f481b166000-7f481b167000 r--p 00000000 fe:00 326271                     /lib/ld-2.28.so
7f481b167000-7f481b168000 rw-p 00001000 fe:00 326271                     /lib/ld-2.28.so
7f481b168000-7f481b169000 r--p 00000000 fe:00 326272                     /usr/share/some.social/notes
7fff1dcb4000-7fff1dcb6000 r-xp 00000000 00:00 0                          [vdso]
55e7adb48000-55e7adb49000 r-xp 0099c000 fe:00 10013121                   /usr/bin/weft-server-old
";
        let found = unchanged_ranges(maps, "/usr/bin/weft-server");
        let expected = [
            0x55e7_ad1a_6000..0x55e7_ad33_c000,
            0x55e7_ad33_c000..0x55e7_adad_9000,
            0x7f48_1b00_e000..0x7f48_1b16_4000,
            0x7f48_1b16_6000..0x7f48_1b16_7000,
        ];
        assert_eq!(found, expected);
    }

    /// Returns `true` if the page with this address is mapped.
    fn is_mapped(address: usize) -> bool {
        let page_bytes = rustix::param::page_size();
        let pages = File::open("/proc/self/pagemap").expect("the page map");
        let mut entry = [0; 8];
        let offset = address / page_bytes * 8;
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
        assert!(is_mapped(answer as fn() -> u32 as usize));
        record_start_mappings();
        let released = release_start_code().expect("the page map can be read");
        // Other tests may hold breakpoints under a debugger only, so the code was released.
        assert!(released > 0);
        assert_eq!(answer(), 42);
        assert!(is_mapped(answer as fn() -> u32 as usize));
    }
}
