//! The two servers of a run, with a client for each.

use std::time::Duration;

use weft_os::thread;

use crate::client::{Client, connect};
use crate::reply::SeenReply;

/// The number of times that something is asked before the run fails.
const PATIENCE: usize = 2000;

/// A client for each of two servers.
pub struct Admins {
    /// The clients.
    pub clients: [Client; 2],
    /// What shows the state of a server, for the reason of a failure.
    state_requests: &'static [&'static str],
}

impl Admins {
    /// Connects to both servers.
    ///
    /// # Errors
    /// If one of them does not listen.
    pub fn connect(sockets: [&str; 2], state_requests: &'static [&'static str]) -> Result<Self, String> {
        Ok(Self {
            clients: [connect(sockets[0], 1)?, connect(sockets[1], 2)?],
            state_requests,
        })
    }

    /// Sends a request of words to a server.
    ///
    /// # Errors
    /// If the connection ends before the reply.
    pub fn ask(&mut self, node: usize, request: &str) -> Result<SeenReply, String> {
        let words: Vec<&'static str> = request.split(' ').map(|word| &*String::leak(word.to_owned())).collect();
        let reply = self.clients[node].ask(&words);
        reply.map_err(|end| format!("{request} to node {node}: {end:?}"))
    }

    /// Sends a request whose reply is a text.
    ///
    /// # Errors
    /// If the connection ends before the reply, or the reply is no text.
    pub fn ask_text(&mut self, node: usize, request: &str) -> Result<String, String> {
        match self.ask(node, request)? {
            SeenReply::Bulk(text) => Ok(String::from_utf8_lossy(&text).into_owned()),
            other => Err(format!("{request} to node {node} was answered by {other:?}")),
        }
    }

    /// Asks until `is_so` returns `true`.
    ///
    /// # Errors
    /// If it does not for long, or fails.
    pub fn wait_until(
        &mut self,
        what: &str,
        mut is_so: impl FnMut(&mut Self) -> Result<bool, String>,
    ) -> Result<(), String> {
        for _ in 0..PATIENCE {
            if is_so(self)? {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(25));
        }
        let requests = self.state_requests.iter();
        let states: Vec<_> = requests
            .flat_map(|request| [0, 1].map(|node| self.ask(node, request)))
            .collect();
        Err(format!("{what}: not so for long; {states:?}"))
    }
}
