//! The metrics endpoint: an HTTP server on a thread of its own, from which Prometheus reads the server's figures.
//!
//! ```text
//!   coordinator ── Listen, Stop ──▶ thread "weft-metrics" ──▶ groups ──▶ counters of all threads
//!                                     ▲ │ one rendering at a time
//!   scrapers ── GET /metrics ─────────┘ └──▶ the same text for every request that waits
//! ```
//!
//! 1. The thread takes no lease, does not pass the gate and sends no message to a worker. It reads atomics, and takes
//!    leaf locks (replicas, role, cluster, snapshot, slot migrations, error codes) for as long as copying or counting
//!    their content takes. So a scrape waits for no command, and no command waits for a scrape.
//! 2. Everything is bounded: connections ([`connection::MAX_CONNECTIONS`]; another one replaces the oldest), the bytes
//!    of a request ([`http::MAX_REQUEST_BYTES`]), and the time of each phase of a connection
//!    ([`connection::HttpPhase`]). A connection serves one request.
//! 3. Renderings take at most a twentieth of one CPU ([`thread::PAUSE_PER_RENDERING`]), whatever the number of
//!    requests. A rendering begins after the requests that it answers have arrived, so no reply is out of date.
//! 4. The thread and its sockets exist only while `metrics-port` is not 0. The coordinator starts and stops it.

mod connection;
mod exposition;
mod groups;
mod http;
mod thread;

use std::sync::Arc;
use std::time::Duration;

use weft_config::{Config, id};
use weft_os::sync::mpsc;
use weft_reactor::{Reactor, Waker};

use crate::net::listeners::{ListenError, Listeners};
use crate::observability::log;
use crate::state::Server;
use thread::EndpointThread;

/// The time that the thread has to end at shutdown. A turn of the thread takes a few milliseconds.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// A command for the thread. The answer is `true` on success.
enum EndpointCommand {
    /// Listen on the addresses and the port of the current configuration.
    Listen(mpsc::SyncSender<bool>),
    /// Close all sockets and end.
    Stop(mpsc::SyncSender<bool>),
}

/// The open sockets of an endpoint whose thread does not run yet.
pub struct OpenEndpoint {
    reactor: Reactor,
    listeners: Listeners,
}

impl OpenEndpoint {
    /// Opens the sockets that the configuration names; `None` if `metrics-port` is 0.
    ///
    /// # Errors
    /// If a socket cannot be opened. The reason has been logged.
    pub fn open(config: &Config) -> Result<Option<OpenEndpoint>, ListenError> {
        if config.integer(id::METRICS_PORT) == 0 {
            return Ok(None);
        }
        let mut reactor = Reactor::new().map_err(|error| {
            log::warning!("Cannot watch the sockets of the metrics endpoint: {error}");
            ListenError
        })?;
        let listeners = Listeners::open_for_metrics(config, &mut reactor)?;
        Ok(Some(OpenEndpoint { reactor, listeners }))
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// When the operating system refuses to create it.
    pub fn start(self, server: &Arc<Server>) -> std::io::Result<MetricsEndpoint> {
        let (commands, receiver) = mpsc::channel();
        let waker = self.reactor.waker();
        let thread = EndpointThread::new(server.clone(), self.reactor, self.listeners, receiver);
        weft_os::thread::Builder::new()
            .name("weft-metrics".to_owned())
            .spawn(move || thread.run())?;
        log::notice!(
            "Ready to serve metrics on port {}",
            server.config.integer(id::METRICS_PORT)
        );
        Ok(MetricsEndpoint { commands, waker })
    }
}

/// A running endpoint.
pub struct MetricsEndpoint {
    commands: mpsc::Sender<EndpointCommand>,
    waker: Waker,
}

impl MetricsEndpoint {
    /// Sends the thread a command, and wakes it.
    fn send(&self, command: EndpointCommand) {
        // If the thread has ended, the sender of the answer is dropped, which the receiver notices.
        let _ = self.commands.send(command);
        self.waker.wake();
    }

    /// Stops the thread, and waits until its sockets are closed.
    pub fn stop(self) {
        let (answer, answered) = mpsc::sync_channel(1);
        self.send(EndpointCommand::Stop(answer));
        if answered.recv_timeout(STOP_TIMEOUT).is_err() {
            log::warning!("The metrics endpoint has not ended in time.");
        }
    }
}

/// Adapts the endpoint to the current configuration: starts, moves or stops it. The answer is `true` on success.
pub fn apply_configuration(
    server: &Arc<Server>,
    endpoint: &mut Option<MetricsEndpoint>,
    answer: mpsc::SyncSender<bool>,
) {
    let is_wanted = server.config.integer(id::METRICS_PORT) != 0;
    match endpoint.take() {
        Some(running) if is_wanted => {
            running.send(EndpointCommand::Listen(answer));
            *endpoint = Some(running);
        }
        Some(running) => running.send(EndpointCommand::Stop(answer)),
        None => {
            let is_applied = match OpenEndpoint::open(&server.config) {
                Ok(None) => true,
                Ok(Some(opened)) => start_logged(opened, server, endpoint),
                Err(ListenError) => false,
            };
            // The requesting thread may have given up waiting.
            let _ = answer.send(is_applied);
        }
    }
}

fn start_logged(opened: OpenEndpoint, server: &Arc<Server>, endpoint: &mut Option<MetricsEndpoint>) -> bool {
    match opened.start(server) {
        Ok(started) => {
            *endpoint = Some(started);
            true
        }
        Err(error) => {
            log::warning!("Cannot start the thread of the metrics endpoint: {error}");
            false
        }
    }
}

#[cfg(test)]
mod tests;
