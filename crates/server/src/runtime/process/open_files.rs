//! `maxclients` and the limit on open files.

use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};

use crate::observability::log;
use weft_base::files::errno_text;

/// The number of descriptors besides those of clients: listeners, log, files.
const RESERVED: u64 = 32;

/// The step by which attempts decrease when the system refuses.
const STEP: rlim_t = 16;

/// Raises the limit on open files, if necessary, so that `clients` can be connected and `workers` have their own
/// descriptors. Returns the number of clients that the limit allows: fewer, with a warning in the log, if it cannot be
/// raised; 0 if not even one fits.
pub fn raise_limit(clients: u64, workers: usize) -> u64 {
    let reserved = reserved_descriptors(workers);
    let required = clients.saturating_add(reserved);
    let before = match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((soft, _)) => soft,
        Err(error) => {
            log::warning!(
                "Unable to obtain the current NOFILE limit ({}), assuming 1024 and setting the max clients \
                 configuration accordingly.",
                errno_text(error as i32)
            );
            return clients.min(1024 - reserved.min(1024));
        }
    };
    if before >= required {
        return clients;
    }
    let (reached, refusal) = raise_towards(before, required);
    if reached >= required {
        log::notice!("Increased maximum number of open files to {required} (it was originally set to {before}).");
        return clients;
    }
    let allowed = reached.saturating_sub(reserved);
    if allowed == 0 {
        log::warning!(
            "Your current 'ulimit -n' of {before} is not enough for the server to start. Please increase your open \
             file limit to at least {required}. Exiting."
        );
        return 0;
    }
    log::warning!("You requested maxclients of {clients} requiring at least {required} max file descriptors.");
    log::warning!("Server can't set maximum open files to {required} because of OS error: {refusal}.");
    log::warning!(
        "Current maximum open files is {reached}. maxclients has been reduced to {allowed} to compensate for low \
         ulimit. If you need higher maxclients increase 'ulimit -n'."
    );
    allowed
}

/// Returns the number of descriptors that are not for clients. Each worker has three: two of its reactor, and one for
/// the time that it waits for CPUs. Those of a few workers are within the reserve.
fn reserved_descriptors(workers: usize) -> u64 {
    RESERVED.max(16 + 3 * workers as u64)
}

/// Raises the limit as far towards `wanted` as the system allows: the limit reached, and the last refusal.
fn raise_towards(current: rlim_t, wanted: rlim_t) -> (rlim_t, String) {
    let hard = getrlimit(Resource::RLIMIT_NOFILE).map_or(current, |(_, hard)| hard);
    let mut refusal = String::new();
    // Only a privileged process gets beyond the hard limit, so that is one attempt; below it, steps.
    let mut attempt = wanted;
    while attempt > current {
        match setrlimit(Resource::RLIMIT_NOFILE, attempt, attempt.max(hard)) {
            Ok(()) => return (attempt, refusal),
            Err(error) => refusal = errno_text(error as i32),
        }
        attempt = if attempt > hard {
            hard
        } else {
            attempt.saturating_sub(STEP)
        };
    }
    (current, refusal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_many_workers_has_three_descriptors() {
        let reserved = [0, 1, 5, 6, 256].map(reserved_descriptors);
        assert_eq!(reserved, [32, 32, 32, 34, 784]);
    }
}
