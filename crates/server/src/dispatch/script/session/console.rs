//! The connection of a debugger session's user, which belongs to the session's thread.

use std::sync::Arc;
use std::time::Duration;

use weft_reactor::{DetachedConnection, Event, Output, Reactor, ReceiveOutcome, Token};

use crate::net::kill_mark::KillMark;
use crate::state::Server;
use weft_acl::AclAccount;
use weft_os::time::Instant;
use weft_scripting::Console;

/// The only connection.
const CONNECTION_TOKEN: Token = 0;
/// The number of bytes read at a time. One command is taken from them and the rest is dropped, so the size matters.
const RECEIVE_BYTES: usize = 1024;
/// The interval at which the console checks if the process ends, or if the client was killed or its ACL user deleted.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The time in which the user must receive sent data.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// The connection of a debugger's user.
pub struct DebuggerConnection {
    reactor: Reactor,
    events: Vec<Event>,
    /// Bytes received and not parsed yet.
    received: Vec<u8>,
    is_closed: bool,
    server: Arc<Server>,
    /// Set once the client is killed.
    kill_mark: Arc<KillMark>,
    /// The ACL user of the client.
    account: Arc<AclAccount>,
    /// `true` if the script's writes take effect, so that it continues without its user.
    should_continue_without_user: bool,
}

impl DebuggerConnection {
    /// Takes over the connection of a client that logged in to `account` and shares `kill_mark`.
    ///
    /// # Errors
    /// When no descriptors are left.
    pub fn open(
        registered: DetachedConnection,
        server: Arc<Server>,
        kill_mark: Arc<KillMark>,
        account: Arc<AclAccount>,
        should_continue_without_user: bool,
    ) -> std::io::Result<Self> {
        let mut reactor = Reactor::new()?;
        reactor.adopt(CONNECTION_TOKEN, registered)?;
        Ok(DebuggerConnection {
            reactor,
            events: Vec::new(),
            received: Vec::new(),
            is_closed: false,
            server,
            kill_mark,
            account,
            should_continue_without_user,
        })
    }

    /// Waits for an event, and receives available input.
    fn wait_for_input(&mut self, timeout: Duration) {
        if self.reactor.wait(Some(timeout), &mut self.events, 1).is_err() {
            self.is_closed = true;
        }
        for event in self.events.drain(..) {
            match event {
                Event::Readable(_) => match self
                    .reactor
                    .receive(CONNECTION_TOKEN, &mut self.received, RECEIVE_BYTES)
                {
                    Ok(ReceiveOutcome::Bytes { .. } | ReceiveOutcome::WouldBlock) => {}
                    Ok(ReceiveOutcome::Closed) | Err(_) => self.is_closed = true,
                },
                Event::Closed(_) | Event::SendFailed(_) => self.is_closed = true,
                Event::Writable(_) | Event::Accepted(..) | Event::AcceptFailed(..) => {}
            }
        }
    }

    fn has_unsent(&self) -> bool {
        self.reactor.in_flight(CONNECTION_TOKEN) > 0
    }

    /// Returns `true` if the client was killed or its ACL user was deleted. It gets nothing more.
    fn is_revoked(&self) -> bool {
        self.kill_mark.is_killed() || self.account.is_deleted()
    }

    /// Returns `true` if the process is ending.
    fn is_process_ending(&self) -> bool {
        self.server.scripting.running.is_shutting_down()
    }

    /// Returns `true` if the process is ending, or waits for this session to do so.
    fn is_shutting_down(&self) -> bool {
        self.is_process_ending()
            || (self.should_continue_without_user && self.server.lifecycle.shutdown.is_in_progress())
    }
}

impl Console for DebuggerConnection {
    fn send(&mut self, bytes: &[u8]) {
        if self.is_revoked() {
            return;
        }
        let mut output = Output::new();
        output.bytes.extend_from_slice(bytes);
        if self.reactor.send(CONNECTION_TOKEN, &mut output).is_err() {
            self.is_closed = true;
        }
        let since = Instant::now();
        while self.has_unsent() && !self.is_closed && !self.is_revoked() && since.elapsed() < SEND_TIMEOUT {
            self.wait_for_input(CHECK_INTERVAL);
        }
    }

    fn receive(&mut self, into: &mut Vec<u8>) -> bool {
        loop {
            if self.is_revoked() {
                return false;
            }
            if !self.received.is_empty() {
                break;
            }
            if self.is_closed || self.is_shutting_down() {
                return false;
            }
            self.wait_for_input(CHECK_INTERVAL);
        }
        let piece = self.received.len().min(RECEIVE_BYTES);
        into.extend(self.received.drain(..piece));
        true
    }

    fn is_over(&mut self, has_written: bool) -> bool {
        if !self.should_continue_without_user && !self.is_closed {
            self.wait_for_input(Duration::ZERO);
        }
        let has_left = self.is_closed || self.is_revoked();
        // While a shutdown is prepared, what a script has written cannot be discarded: the shutdown may be aborted, and
        // a dump must not contain a part of a script.
        let is_ending = if has_written {
            self.is_process_ending()
        } else {
            self.is_shutting_down()
        };
        is_ending || (has_left && !self.should_continue_without_user)
    }
}
