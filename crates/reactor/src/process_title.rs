//! What `ps` shows as the command line of this process.
//!
//! The kernel reads it from the memory of the process, between two addresses that it was told. They are moved to a buffer
//! of our own, so a title may be longer than what the program was started with, and nothing that others point to is
//! overwritten: arguments and environment stay where they are. The call for that takes all borders of the process's memory
//! at once; those that do not change come from `/proc/self/stat`, as the kernel has them. One of them is the end of the heap,
//! which an allocator of another thread may move at that moment. So the call is made once, by the first title, while there is
//! one thread; later titles are only written into the buffer.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock};

/// Room for a title and the zero byte behind it.
const ROOM: usize = 1024;

/// The title. The kernel reads it whenever somebody asks, so it is never moved or freed. It lies on the heap, for the kernel
/// looks only at memory that belongs to no file: a static may share a page with the program's data, which does.
static TITLE: OnceLock<Box<[AtomicU8]>> = OnceLock::new();

/// Whether the kernel knows of it.
static SHOWN: AtomicBool = AtomicBool::new(false);

/// Held while the title changes.
static CHANGING: Mutex<()> = Mutex::new(());

/// Shows `title` as the command line of this process; what is too long is cut off, and so is what follows a zero byte. The
/// first title must come while the process has one thread.
///
/// # Errors
/// Where the kernel does not let a process do that (it was built without checkpoint and restore).
pub fn set_process_title(title: &[u8]) -> io::Result<()> {
    let _changing = CHANGING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let title = title.split(|byte| *byte == 0).next().unwrap_or_default();
    let shown = &title[..title.len().min(ROOM - 1)];
    let room = TITLE.get_or_init(|| (0..ROOM).map(|_| AtomicU8::new(0)).collect());
    for (place, byte) in room.iter().zip(shown.iter().chain(std::iter::repeat(&0))) {
        place.store(*byte, Ordering::Relaxed);
    }
    if SHOWN.load(Ordering::Relaxed) {
        return Ok(());
    }
    let mut borders = MemoryBounds::read()?.map();
    borders.arg_start = room.as_ptr().addr() as u64;
    borders.arg_end = borders.arg_start + ROOM as u64;
    put(&borders)?;
    SHOWN.store(true, Ordering::Relaxed);
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

fn put(map: &MemoryMap) -> io::Result<()> {
    // SAFETY: rule 1: the call reads a live local of the size that it says.
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

/// The borders of the process's memory as `/proc/self/stat` has them, in the order of that file.
#[derive(Debug, PartialEq, Eq)]
struct MemoryBounds {
    code: [u64; 2],
    stack: u64,
    /// Data, and the beginning of the heap.
    data: [u64; 3],
    environment: [u64; 2],
}

impl MemoryBounds {
    fn read() -> io::Result<MemoryBounds> {
        let text = std::fs::read("/proc/self/stat")?;
        MemoryBounds::parse(&String::from_utf8_lossy(&text)).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    }

    /// The name of the process, in parentheses, may hold anything, so fields are counted from behind it.
    fn parse(text: &str) -> Option<MemoryBounds> {
        /// The number that proc(5) gives to the first field behind the name.
        const FIRST: usize = 3;
        let (_, fields) = text.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - FIRST)?.parse().ok();
        Some(MemoryBounds {
            code: [field(26)?, field(27)?],
            stack: field(28)?,
            data: [field(45)?, field(46)?, field(47)?],
            environment: [field(50)?, field(51)?],
        })
    }

    /// The same for the kernel, without arguments. The program itself and its auxiliary vector stay.
    fn map(&self) -> MemoryMap {
        // SAFETY: rule 1; the call takes a number and tells where the heap ends.
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
