//! The servers of a run with two of them, with a client for each; the beginning and the end of connections.

use std::time::Duration;

use fastrand::Rng;
use weft_os::thread;

use crate::client::{Client, ClientEnd, connect};
use crate::disturber;
use crate::history::ConnectionHistory;
use crate::operation::Operation;
use crate::reply::SeenReply;
use crate::scenario::RunPlan;

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

/// Connects a client of a run to one of the servers.
///
/// # Errors
/// If the server does not listen.
pub fn connect_client(socket: &str, random: &mut Rng, plan: &RunPlan) -> Result<Client, String> {
    let mut client = connect(socket, random.u64(..))?;
    client.sends_pieces = plan.sends_pieces;
    Ok(client)
}

/// Ends a client's connections to both servers, the one to server `node` with the client's last operations. Returns
/// their histories.
///
/// # Errors
/// If a reply is not what the run allows.
pub fn end_connections(
    connections: [Option<Client>; 2],
    node: usize,
    last: &[Operation],
    random: &mut Rng,
) -> Result<Vec<ConnectionHistory>, String> {
    let mut finished = Vec::new();
    for (number, connection) in connections.into_iter().enumerate() {
        let Some(client) = connection else { continue };
        finished.push(match number == node {
            true => end_connection(client, last.to_vec(), random)?,
            false => client.into_history(),
        });
    }
    Ok(finished)
}

/// Sends a last pipeline, and ends the connection in one of several ways.
///
/// # Errors
/// If a reply is not what the run allows.
pub fn end_connection(mut client: Client, last: Vec<Operation>, random: &mut Rng) -> Result<ConnectionHistory, String> {
    match random.u32(..3) {
        0 => match client.run_and_half_close(last) {
            Ok(()) | Err(ClientEnd::Closed) => {}
            // Its connection may have been killed by the disturber; then the end of the stream comes early.
            Err(ClientEnd::Failed(reason)) if !disturber::has_closed_connections() => {
                return Err(reason);
            }
            Err(ClientEnd::Failed(_)) => {}
        },
        1 => {
            return Ok(client.run_and_close(last));
        }
        _ => {}
    }
    Ok(client.into_history())
}
