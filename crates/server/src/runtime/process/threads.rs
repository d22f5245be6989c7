//! A report on the threads of this process from the operating system, for diagnosing a slow server.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use weft_base::files::error_text;

use crate::observability::log;

/// The maximum number of times that the threads are listed for one report.
const MAX_LISTINGS: usize = 10;

/// One thread.
#[derive(Debug, PartialEq, Eq)]
struct ThreadInfo {
    name: String,
    state: char,
    /// The time in user mode, in the system's ticks.
    user_ticks: u64,
    /// The time in the kernel, in the system's ticks.
    system_ticks: u64,
}

/// Logs the name, the current activity and the CPU time of each thread.
pub fn log_threads() {
    match all_threads(list_threads) {
        Ok(threads) => threads.into_iter().for_each(log_thread),
        Err(error) => log::warning!("The threads cannot be listed: {}", error_text(&error)),
    }
}

fn list_threads() -> io::Result<BTreeSet<u32>> {
    let parse = |task: io::Result<fs::DirEntry>| -> io::Result<Option<u32>> {
        Ok(task?.file_name().to_str().and_then(|name| name.parse().ok()))
    };
    fs::read_dir("/proc/self/task")?
        .filter_map(|task| parse(task).transpose())
        .collect()
}

/// Returns the ids of all threads. `list` lists those that the kernel shows. If a thread ends meanwhile, the kernel
/// continues at the same position of a shorter list, and leaves one of the other threads out (`proc_task_readdir` in
/// `fs/proc/base.c`). So the threads are listed until no unknown one appears.
fn all_threads(mut list: impl FnMut() -> io::Result<BTreeSet<u32>>) -> io::Result<BTreeSet<u32>> {
    let mut threads = list()?;
    for _ in 1..MAX_LISTINGS {
        let known = threads.len();
        threads.extend(list()?);
        if threads.len() == known {
            break;
        }
    }
    Ok(threads)
}

fn log_thread(id: u32) {
    let task = PathBuf::from(format!("/proc/self/task/{id}"));
    let thread = match read_task_file(&task, "stat").map(|text| ThreadInfo::parse(&text)) {
        Ok(Some(thread)) => thread,
        Ok(None) => return log::warning!("Thread {id}: the system does not tell what it is doing"),
        Err(error) if has_ended(&error) => return,
        Err(error) => return log::warning!("Thread {id}: {}", error_text(&error)),
    };
    let place = match thread.state {
        'R' => String::new(),
        // The kernel may hide the place.
        _ => read_task_file(&task, "wchan")
            .ok()
            .filter(|place| place != "0")
            .unwrap_or_default(),
    };
    log::warning!(
        "Thread {id} '{}': {}{}{place}, user time {} and system time {} ticks",
        thread.name,
        thread.state_name(),
        if place.is_empty() { "" } else { " in " },
        thread.user_ticks,
        thread.system_ticks
    );
}

/// Returns `true` if an error means that a thread has ended: before its file was opened, or before it was read.
fn has_ended(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error().map(Errno::from_raw) == Some(Errno::ESRCH)
}

fn read_task_file(task: &Path, file: &str) -> io::Result<String> {
    let text = fs::read(task.join(file))?;
    Ok(String::from_utf8_lossy(&text).trim().to_owned())
}

impl ThreadInfo {
    /// The name, in parentheses, may contain any character, so fields are counted from its end.
    fn parse(stat: &str) -> Option<ThreadInfo> {
        /// The number that proc(5) gives to the first field after the name.
        const FIRST_FIELD_NUMBER: usize = 3;
        let (head, fields) = stat.rsplit_once(')')?;
        let (_, name) = head.split_once('(')?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let number = |field: usize| fields.get(field - FIRST_FIELD_NUMBER)?.parse().ok();
        Some(ThreadInfo {
            name: name.to_owned(),
            state: fields.first()?.chars().next()?,
            user_ticks: number(14)?,
            system_ticks: number(15)?,
        })
    }

    fn state_name(&self) -> &'static str {
        match self.state {
            'R' => "running",
            'S' => "sleeping",
            'D' => "waiting for a device",
            'T' | 't' => "stopped",
            _ => "ending",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_the_kernel_leaves_out_once_are_found() {
        // While the threads are listed, thread 3 ends.
        let mut listings = [[1, 2, 3, 5], [1, 2, 4, 5], [1, 2, 4, 5]].into_iter();
        let threads = all_threads(|| {
            let listing = listings.next().expect("no unknown thread has appeared");
            Ok(listing.into_iter().collect())
        });
        assert_eq!(threads.expect("the threads"), BTreeSet::from([1, 2, 3, 4, 5]));
        assert_eq!(listings.next(), None);
    }

    #[test]
    fn a_report_ends_while_threads_begin_all_the_time() {
        let mut last = 0;
        let threads = all_threads(|| {
            last += 1;
            Ok(BTreeSet::from([last]))
        });
        assert_eq!(threads.expect("the threads").len(), MAX_LISTINGS);
    }

    #[test]
    fn this_thread_is_listed() {
        let own = u32::try_from(nix::unistd::gettid().as_raw()).expect("an id");
        // Threads of other tests end meanwhile, so one listing may leave this thread out.
        assert!(all_threads(list_threads).expect("the threads").contains(&own));
    }

    #[test]
    fn thread_names_may_contain_any_character() {
        let stat = "12 (a) b) S 1 1 1 0 -1 4194560 100 0 0 0 75 9 0 0 20 0 1 0";
        let expected = ThreadInfo {
            name: "a) b".to_owned(),
            state: 'S',
            user_ticks: 75,
            system_ticks: 9,
        };
        assert_eq!(ThreadInfo::parse(stat), Some(expected));
        assert_eq!(ThreadInfo::parse("12 (a) S 1"), None);
        assert_eq!(ThreadInfo::parse(""), None);
    }
}
