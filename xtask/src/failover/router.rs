//! Finds the node that serves a client's keys, and ends the connections to a node that was stopped or killed.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustls::ClientConfig;

use crate::stress::client::{CallError, ClientSocket, StressClient, StressReply};
use crate::stress::watchdog::RequestRegistry;

/// The time within which every request to a running server must be answered.
pub const REPLY_BOUND: Duration = Duration::from_secs(20);
/// The time after which a client that looks for the primary tries another node.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);
/// The number of failed connections that are recorded.
const RECORDED_FAILURES: usize = 20;

/// The nodes of a group, as clients know them.
pub struct Router {
    nodes: Vec<SocketAddr>,
    is_cluster: bool,
    /// The configuration of clients, if the nodes listen with TLS.
    tls: Option<Arc<ClientConfig>>,
    state: Mutex<RouterState>,
}

#[derive(Default)]
struct RouterState {
    /// Nodes that cannot reply, because the scenario stopped or killed them.
    unavailable: HashSet<SocketAddr>,
    sockets: HashMap<u64, (SocketAddr, ClientSocket)>,
    last_token: u64,
    /// `None` if connections may end at any time.
    restarts: Option<PlannedRestarts>,
}

/// The restarts of nodes in a run in which connections may end for no other reason.
#[derive(Default)]
struct PlannedRestarts {
    under_way: HashSet<SocketAddr>,
    /// The end of the last restart of each node.
    ended: HashMap<SocketAddr, Instant>,
    /// The first connections that could not be opened although the node was not restarted.
    failures: Vec<String>,
}

impl PlannedRestarts {
    /// Returns `true` if a node has been restarted after `since`, or is being restarted.
    fn covers(&self, node: SocketAddr, since: Instant) -> bool {
        self.under_way.contains(&node) || self.ended.get(&node).is_some_and(|ended| *ended >= since)
    }
}

impl Router {
    pub fn new(nodes: Vec<SocketAddr>, is_cluster: bool) -> Self {
        Self {
            nodes,
            is_cluster,
            tls: None,
            state: Mutex::default(),
        }
    }

    /// Makes clients connect with TLS.
    pub fn with_tls(self, config: Arc<ClientConfig>) -> Self {
        Self {
            tls: Some(config),
            ..self
        }
    }

    /// Lets connections end only where [`Self::begin_restart`] has announced it.
    pub fn with_planned_restarts(self) -> Self {
        self.state().restarts = Some(PlannedRestarts::default());
        self
    }

    /// Announces that a node will end its connections and start again.
    pub fn begin_restart(&self, node: SocketAddr) {
        if let Some(restarts) = &mut self.state().restarts {
            restarts.under_way.insert(node);
        }
    }

    /// Announces that a node has started again.
    pub fn end_restart(&self, node: SocketAddr) {
        if let Some(restarts) = &mut self.state().restarts {
            restarts.under_way.remove(&node);
            restarts.ended.insert(node, Instant::now());
        }
    }

    /// Returns `true` if a connection to a node that was opened at this time may have ended.
    pub fn may_have_ended(&self, node: SocketAddr, opened: Instant) -> bool {
        let state = self.state();
        state
            .restarts
            .as_ref()
            .is_none_or(|restarts| restarts.covers(node, opened))
    }

    /// Returns the first connections that could not be opened although the node was not restarted.
    pub fn failures(&self) -> Vec<String> {
        let state = self.state();
        state
            .restarts
            .as_ref()
            .map_or_else(Vec::new, |restarts| restarts.failures.clone())
    }

    fn note_failure(&self, node: SocketAddr, begin: Instant, why: &str) {
        if let Some(restarts) = &mut self.state().restarts
            && !restarts.covers(node, begin)
            && restarts.failures.len() < RECORDED_FAILURES
        {
            restarts.failures.push(format!("{node}: {why}"));
        }
    }

    fn state(&self) -> MutexGuard<'_, RouterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks a node as unable to reply. Clients that wait for its replies see their connections end, as if they had
    /// lost patience.
    pub fn set_unavailable(&self, node: SocketAddr) {
        let mut state = self.state();
        state.unavailable.insert(node);
        for (address, socket) in state.sockets.values() {
            if *address == node {
                // Fails if the peer has closed the connection already.
                let _ = socket.shutdown(Shutdown::Both);
            }
        }
    }

    /// Marks a node as able to reply again.
    pub fn set_available(&self, node: SocketAddr) {
        self.state().unavailable.remove(&node);
    }

    /// Returns `true` if a node can reply.
    pub fn is_available(&self, node: SocketAddr) -> bool {
        !self.state().unavailable.contains(&node)
    }

    /// Opens a connection to a node; `None` if it is unavailable or refuses the connection.
    pub fn connect(self: &Arc<Self>, node: SocketAddr, patience: Duration) -> Option<RoutedClient> {
        if !self.is_available(node) {
            return None;
        }
        let opened = Instant::now();
        let connected = match &self.tls {
            None => StressClient::connect(node, patience, &RequestRegistry::default()),
            Some(config) => StressClient::connect_tls(node, patience, config),
        };
        let client = match connected {
            Ok(client) => client,
            Err(why) => {
                // On a busy machine a client that only looks for the primary may give up too early.
                if patience >= REPLY_BOUND {
                    self.note_failure(node, opened, &why);
                }
                return None;
            }
        };
        let token = self.register(node, &client).ok()??;
        Some(RoutedClient {
            client,
            token,
            node,
            opened,
            router: self.clone(),
        })
    }

    fn register(&self, node: SocketAddr, client: &StressClient) -> io::Result<Option<u64>> {
        let socket = client.socket()?;
        let mut state = self.state();
        if state.unavailable.contains(&node) {
            return Ok(None);
        }
        state.last_token += 1;
        let token = state.last_token;
        state.sockets.insert(token, (node, socket));
        Ok(Some(token))
    }

    /// Asks the nodes in random order which of them is the primary, in a cluster that of `slot`. Returns the first
    /// answer, which is out of date if it comes from a node that does not know of a failover yet.
    pub fn locate(self: &Arc<Self>, slot: u16, rng: &mut Rng) -> Option<SocketAddr> {
        let mut nodes = self.nodes.clone();
        rng.shuffle(&mut nodes);
        for node in nodes {
            let Some(mut client) = self.connect(node, LOOKUP_TIMEOUT) else {
                continue;
            };
            if self.is_cluster {
                let reply = client.call("CLUSTER SLOTS").ok();
                if let Some(owner) = reply.and_then(|reply| owner_of(slot, &reply)) {
                    return Some(owner);
                }
            } else if let Ok(role) = client.call("ROLE")
                && role.items().first().is_some_and(|name| name.text() == "master")
            {
                return Some(node);
            }
        }
        None
    }
}

/// Returns the primary of `slot` in a reply to CLUSTER SLOTS.
fn owner_of(slot: u16, reply: &StressReply) -> Option<SocketAddr> {
    reply.items().iter().find_map(|range| {
        let [StressReply::Integer(first), StressReply::Integer(last), primary, ..] = range.items() else {
            return None;
        };
        if !(*first..=*last).contains(&i64::from(slot)) {
            return None;
        }
        let [host, port, ..] = primary.items() else { return None };
        format!("{}:{}", host.text(), port.text()).parse().ok()
    })
}

/// A connection that [`Router::set_unavailable`] can end.
pub struct RoutedClient {
    client: StressClient,
    token: u64,
    node: SocketAddr,
    /// The time before the connection was opened.
    opened: Instant,
    router: Arc<Router>,
}

impl RoutedClient {
    /// Returns `true` if the connection may have ended: in a run with planned restarts, if its node was restarted.
    pub fn may_have_ended(&self) -> bool {
        self.router.may_have_ended(self.node, self.opened)
    }

    /// Sends several commands at once and reads their replies.
    ///
    /// # Errors
    /// Fails if the connection ends, or if a reply is late or unreadable.
    pub fn pipeline(&mut self, commands: &[Vec<String>]) -> Result<Vec<StressReply>, CallError> {
        self.client.pipeline(commands)
    }

    /// Sends a command of words separated by blanks and reads its reply.
    ///
    /// # Errors
    /// Fails like [`Self::pipeline`].
    pub fn call(&mut self, command: &str) -> Result<StressReply, CallError> {
        self.client.call(command)
    }
}

impl Drop for RoutedClient {
    fn drop(&mut self) {
        self.router.state().sockets.remove(&self.token);
    }
}
