//! Dumps and rewrites of the append-only file in the background of a node: each must end within a bound.
//!
//! A node that is still saving refuses the next BGSAVE, which is therefore put off. If nothing looked at the age of the
//! save, one that never ends would be put off for the rest of the run, and the last *finished* save stays `ok` in INFO.

use std::thread;
use std::time::{Duration, Instant};

use crate::failover::group::Group;

/// The time within which a dump or a rewrite must end. The data take less than a second to write, but on a busy machine
/// one fsync may take most of a minute.
pub const SAVE_BOUND: Duration = Duration::from_secs(120);

/// The time between two looks at a node.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// What a node writes in the background: its name, the field of INFO that is 1 meanwhile, and the one with the seconds
/// since it has begun.
const KINDS: [(&str, &str, &str); 2] = [
    ("dump", "rdb_bgsave_in_progress", "rdb_current_bgsave_time_sec"),
    (
        "rewrite of the append-only file",
        "aof_rewrite_in_progress",
        "aof_current_rewrite_time_sec",
    ),
];

/// The field of INFO that is 1 while a rewrite waits for the end of a dump.
const SCHEDULED: &str = "aof_rewrite_scheduled";

/// Checks in a text of `INFO persistence` that nothing has been written for longer than [`SAVE_BOUND`].
///
/// # Errors
/// Fails if something has, or if a field is missing.
pub fn check_age(info: &str) -> Result<(), String> {
    for (name, in_progress, age) in KINDS {
        if !is_set(info, in_progress)? {
            continue;
        }
        let text = field(info, age)?;
        let seconds: i64 = text.parse().map_err(|_| format!("{age} is {text:?}"))?;
        if seconds > SAVE_BOUND.as_secs() as i64 {
            return Err(format!(
                "a {name} has been under way for {seconds} s; it must end within {} s",
                SAVE_BOUND.as_secs()
            ));
        }
    }
    Ok(())
}

/// Waits until no node is saving. What is under way at the beginning has the whole bound once more.
///
/// # Errors
/// Fails if a node does not reply, or is still saving after [`SAVE_BOUND`].
pub fn wait_until_ended(group: &Group) -> Result<(), String> {
    let deadline = Instant::now() + SAVE_BOUND;
    for node in 0..group.servers.len() {
        loop {
            let info = group.call(node, "INFO persistence")?.text();
            let of_node = |why: String| format!("node {node}: {why}");
            if is_idle(&info).map_err(of_node)? {
                break;
            }
            check_age(&info).map_err(of_node)?;
            if Instant::now() > deadline {
                return Err(format!(
                    "node {node} is still saving {} s after the end of the round:\n{info}",
                    SAVE_BOUND.as_secs()
                ));
            }
            thread::sleep(LOOK_INTERVAL);
        }
    }
    Ok(())
}

/// Returns `true` if nothing is being written, and no rewrite is waiting for its turn.
fn is_idle(info: &str) -> Result<bool, String> {
    let names = KINDS.map(|(_, in_progress, _)| in_progress);
    for name in names.into_iter().chain([SCHEDULED]) {
        if is_set(info, name)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_set(info: &str, name: &str) -> Result<bool, String> {
    Ok(field(info, name)? != "0")
}

fn field<'t>(info: &'t str, name: &str) -> Result<&'t str, String> {
    let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.map(str::trim_end).ok_or_else(|| format!("INFO lacks {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(dump_s: Option<u64>, rewrite_s: Option<u64>, is_scheduled: bool) -> String {
        let lines = |in_progress: &str, age: &str, seconds: Option<u64>| {
            let shown = seconds.map_or("-1".to_owned(), |seconds| seconds.to_string());
            format!("{in_progress}:{}\r\n{age}:{shown}\r\n", u8::from(seconds.is_some()))
        };
        let [(_, dump, dump_age), (_, rewrite, rewrite_age)] = KINDS;
        lines(dump, dump_age, dump_s)
            + &lines(rewrite, rewrite_age, rewrite_s)
            + &format!("{SCHEDULED}:{}\r\n", u8::from(is_scheduled))
    }

    #[test]
    fn a_save_that_does_not_end_is_a_failure() {
        let bound = SAVE_BOUND.as_secs();
        assert_eq!(check_age(&info(None, None, true)), Ok(()));
        assert_eq!(check_age(&info(Some(bound), Some(bound), false)), Ok(()));
        for (dump_s, rewrite_s, part) in [
            (Some(bound + 1), None, "a dump has been under way for 121 s"),
            (
                Some(1),
                Some(bound + 1),
                "a rewrite of the append-only file has been under way for 121 s",
            ),
        ] {
            let outcome = check_age(&info(dump_s, rewrite_s, false));
            assert!(outcome.as_ref().is_err_and(|why| why.contains(part)), "{outcome:?}");
        }
    }

    #[test]
    fn a_node_is_idle_when_nothing_is_written_or_scheduled() {
        assert_eq!(is_idle(&info(None, None, false)), Ok(true));
        for busy in [
            info(Some(0), None, false),
            info(None, Some(0), false),
            info(None, None, true),
        ] {
            assert_eq!(is_idle(&busy), Ok(false), "{busy}");
        }
    }

    #[test]
    fn missing_and_wrong_fields_are_failures() {
        assert!(is_idle("").is_err_and(|why| why.contains("rdb_bgsave_in_progress")));
        assert!(check_age("rdb_bgsave_in_progress:1\r\n").is_err());
        assert!(check_age("rdb_bgsave_in_progress:1\r\nrdb_current_bgsave_time_sec:x\r\n").is_err());
    }
}
