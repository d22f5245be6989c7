//! The threads of a load's clients, beside the thread that observes the server.

use std::thread;

use crate::error::{Error, ErrorContext, Result};
use crate::process;

#[cfg(test)]
mod tests;

/// Runs `work` on a thread for each of `clients`, and `watch` on the calling one. A thread is pinned to the core of its
/// number, if there is one. `stop` requests the end of all work. It is called when `watch` has ended, and when a thread
/// has failed or cannot be started. Returns the results of `watch` and of the threads, which are in the order of the
/// clients.
///
/// # Errors
/// Fails with [`Error::Interrupted`] if `watch` does, or else with the first error of a thread, or else with that of
/// `watch`.
///
/// # Panics
/// Panics if a thread does.
pub fn run_client_threads<C: Send, R: Send, T>(
    cores: &[usize],
    clients: impl IntoIterator<Item = C>,
    work: impl Fn(C) -> Result<R> + Sync,
    stop: impl Fn() + Sync,
    watch: impl FnOnce() -> Result<T>,
) -> Result<(T, Vec<R>)> {
    let (work, stop) = (&work, &stop);
    thread::scope(|scope| {
        let mut handles = Vec::new();
        for (number, client) in clients.into_iter().enumerate() {
            let core = cores.get(number).copied();
            let body = move || {
                let outcome = core
                    .map_or(Ok(()), |core| process::pin_this_thread(&[core]))
                    .and_then(|()| work(client));
                if outcome.is_err() {
                    stop();
                }
                outcome
            };
            let spawned = thread::Builder::new()
                .name(format!("client-{number}"))
                .spawn_scoped(scope, body)
                .inspect_err(|_| stop());
            handles.push(spawned.context("starting a client thread")?);
        }
        let watched = watch();
        stop();
        let mut outcomes = Vec::new();
        for handle in handles {
            outcomes.push(handle.join().expect("a client thread does not panic"));
        }
        match watched {
            Err(Error::Interrupted) => Err(Error::Interrupted),
            watched => {
                let results = outcomes.into_iter().collect::<Result<Vec<R>>>()?;
                Ok((watched?, results))
            }
        }
    })
}
