//! A report on the threads of this process from the operating system, for diagnosing a slow server.

use std::fs;
use std::path::Path;

use crate::observability::log;

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
    let Ok(tasks) = fs::read_dir("/proc/self/task") else {
        return log::warning!("The system does not tell what the threads are doing");
    };
    for task in tasks.flatten() {
        let line = |file: &str| read_task_file(&task.path(), file);
        let Some(thread) = line("stat").and_then(|text| ThreadInfo::parse(&text)) else {
            // The thread has just ended.
            continue;
        };
        let place = match thread.state {
            'R' => String::new(),
            _ => line("wchan").filter(|place| place != "0").unwrap_or_default(),
        };
        log::warning!(
            "Thread {} '{}': {}{}{place}, user time {} and system time {} ticks",
            task.file_name().display(),
            thread.name,
            thread.state_name(),
            if place.is_empty() { "" } else { " in " },
            thread.user_ticks,
            thread.system_ticks
        );
    }
}

fn read_task_file(task: &Path, file: &str) -> Option<String> {
    let text = fs::read_to_string(task.join(file)).ok()?;
    Some(text.trim().to_owned())
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
    use super::ThreadInfo;

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
