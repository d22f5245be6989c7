//! The process title: the command line that `ps` shows for this process.
//!
//! The kernel reads the command line from the memory of the process, between two addresses that it was given. This
//! module points them at a buffer of its own. A title may then be longer than the original arguments. Arguments and
//! environment stay unchanged, so other pointers to them remain valid. The call that sets the addresses takes all
//! bounds of the process's memory at once. Those that do not change come from `/proc/self/stat`, as the kernel reports
//! them. One of them is the end of the heap, which an allocator of another thread may move at that moment. Therefore
//! the call is made only once, by the first title, while the process has one thread. Later titles are only written into
//! the buffer.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock};

/// The size of the buffer: a title and the zero byte behind it.
const TITLE_BYTES: usize = 1024;

/// The title. The kernel reads it whenever a process requests it, so it is never moved or freed. It is on the heap,
/// because the kernel reads only memory that is not backed by a file. A static may share a page with the program's
/// data, which is.
static TITLE: OnceLock<Box<[AtomicU8]>> = OnceLock::new();

/// `true` once the kernel reads the title from the buffer.
static TITLE_IS_MAPPED: AtomicBool = AtomicBool::new(false);

/// Held while the title changes.
static TITLE_LOCK: Mutex<()> = Mutex::new(());

/// Sets the command line of this process to `title`. The title is cut at the size of the buffer and at the first zero
/// byte. The first title must be set while the process has one thread.
///
/// # Errors
/// Fails if the kernel does not allow it (it was built without checkpoint and restore).
pub fn set_process_title(title: &[u8]) -> io::Result<()> {
    let _changing = TITLE_LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let title = title.split(|byte| *byte == 0).next().unwrap_or_default();
    let shown = &title[..title.len().min(TITLE_BYTES - 1)];
    let buffer = TITLE.get_or_init(|| (0..TITLE_BYTES).map(|_| AtomicU8::new(0)).collect());
    for (place, byte) in buffer.iter().zip(shown.iter().chain(std::iter::repeat(&0))) {
        place.store(*byte, Ordering::Relaxed);
    }
    if TITLE_IS_MAPPED.load(Ordering::Relaxed) {
        return Ok(());
    }
    let mut bounds = MemoryBounds::read()?.to_memory_map();
    bounds.arg_start = buffer.as_ptr().addr() as u64;
    bounds.arg_end = bounds.arg_start + TITLE_BYTES as u64;
    set_memory_map(&bounds)?;
    TITLE_IS_MAPPED.store(true, Ordering::Relaxed);
    Ok(())
}

/// The kernel's `struct prctl_mm_map`.
#[repr(C)]
struct MemoryMap {
    start_code: u64,
    end_code: u64,
    start_data: u64,
    end_data: u64,
    start_brk: u64,
    brk: u64,
    start_stack: u64,
    arg_start: u64,
    arg_end: u64,
    env_start: u64,
    env_end: u64,
    auxv: u64,
    auxv_size: u32,
    exe_fd: u32,
}

fn set_memory_map(map: &MemoryMap) -> io::Result<()> {
    // SAFETY: rule 1: the call reads a live local of the size that it states.
    let result = unsafe {
        libc::prctl(
            libc::PR_SET_MM,
            libc::PR_SET_MM_MAP,
            std::ptr::from_ref(map),
            size_of::<MemoryMap>(),
            0,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The bounds of the process's memory as `/proc/self/stat` reports them, in the order of that file.
#[derive(Debug, PartialEq, Eq)]
struct MemoryBounds {
    code: [u64; 2],
    stack: u64,
    /// The data segment, and the start of the heap.
    data: [u64; 3],
    environment: [u64; 2],
}

impl MemoryBounds {
    fn read() -> io::Result<MemoryBounds> {
        let text = std::fs::read("/proc/self/stat")?;
        MemoryBounds::parse(&String::from_utf8_lossy(&text)).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    }

    /// Parses the content of `/proc/self/stat`. The name of the process, in parentheses, may contain any character, so
    /// fields are counted from behind it.
    fn parse(text: &str) -> Option<MemoryBounds> {
        /// The number that proc(5) gives to the first field behind the name.
        const FIRST_FIELD: usize = 3;
        let (_, fields) = text.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - FIRST_FIELD)?.parse().ok();
        Some(MemoryBounds {
            code: [field(26)?, field(27)?],
            stack: field(28)?,
            data: [field(45)?, field(46)?, field(47)?],
            environment: [field(50)?, field(51)?],
        })
    }

    /// Converts the bounds to the kernel's structure, without arguments. The program file and its auxiliary vector stay
    /// unchanged.
    fn to_memory_map(&self) -> MemoryMap {
        // SAFETY: rule 1; the call takes a number and returns the end of the heap.
        let brk = unsafe { libc::sbrk(0) }.addr() as u64;
        MemoryMap {
            start_code: self.code[0],
            end_code: self.code[1],
            start_data: self.data[0],
            end_data: self.data[1],
            start_brk: self.data[2],
            brk,
            start_stack: self.stack,
            arg_start: 0,
            arg_end: 0,
            env_start: self.environment[0],
            env_end: self.environment[1],
            auxv: 0,
            auxv_size: 0,
            exe_fd: u32::MAX,
        }
    }
}

#[cfg(test)]
mod tests;
